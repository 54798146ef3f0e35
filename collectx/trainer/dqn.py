"""`trainer.kind=dqn`: double deep Q-learning (van Hasselt et al. 2016) from a replay buffer, for any collector.

    batch --extend--> buffer --sample--> gradient steps --publish--> workers, with the epsilon of the hour

Async workers of this machine extend the buffer themselves, and their batches do not go through this process.

Off-policy: frames may be as old as the buffer is long, and workers as far behind as they are, so sync and async
collectors serve alike. Rewards of several steps are summed without a correction for that, as in Rainbow (Hessel et al.
2018).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from tensordict import TensorDict
from torch import nn

from collectx.config import DqnTrainerConfig
from collectx.replay import PrioritizedSampler, ReplayBuffer, UniformSampler
from collectx.trainer.base import Collection
from collectx.trainer.learner import has_reached
from collectx.trainer.nstep_frames import NstepFrames

# Gradient steps on one sample: fewer calls, and no more than so many steps between a frame's goal and its use.
_STEPS_AT_ONCE = 16


class DqnTrainer:
    """Q-learning with a target network that follows the policy's slowly, and a Huber loss."""

    def __init__(self, cfg: DqnTrainerConfig, policy: Callable, seed: int, device: torch.device):
        self._cfg = cfg
        self._device = device
        self.policy: Any = cast(Any, policy).to(device)
        self._target = copy.deepcopy(self.policy).requires_grad_(False)
        self._parameters: list[torch.Tensor] = [*self.policy.parameters()]
        self._optimizer = torch.optim.Adam(self._parameters, lr=cfg.learning_rate, eps=1e-5, fused=True)
        if cfg.priority_alpha is None:
            sampler: Any = UniformSampler(seed)
        else:
            sampler = PrioritizedSampler(cfg.priority_alpha, cfg.priority_beta, seed=seed)
        self._buffer = ReplayBuffer(cfg.buffer_frames, sampler=sampler)
        self.shared_replay = NstepFrames(self._buffer, self.policy.observation_keys, cfg.gamma, cfg.num_steps)
        self._is_prioritized = cfg.priority_alpha is not None
        self._due = 0.0
        self.policy.epsilon.fill_(cfg.epsilon_start)

    def train(self, collection: Collection) -> None:
        """Returns when the collection is exhausted or `target_return` is reached."""
        cfg = self._cfg
        before = 0
        for batch in collection:
            if has_reached(cfg.target_return, collection):
                return
            if batch is not None:
                self.shared_replay.extend(batch)
            self._follow(collection)
            losses = {}
            if collection.frames >= cfg.warmup_frames:
                self._due += cfg.updates_per_frame * (collection.frames - before)
                losses = self._update(int(self._due))
                self._due %= 1
            before = collection.frames
            collection.publish(self.policy)
            collection.log(epsilon=self.policy.epsilon.item(), **losses)

    def state_dict(self) -> dict:
        """Tensors and plain data only. The frames are left out: they may be many times as large as all the rest."""
        return {
            "policy": self.policy.state_dict(),
            "target": self._target.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Goes on from `state_dict()`, with an empty buffer."""
        self.policy.load_state_dict(state["policy"])
        self._target.load_state_dict(state["target"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _follow(self, collection: Collection) -> None:
        """Sets epsilon and the step size for the present frame."""
        cfg = self._cfg
        passed = min(1.0, collection.frames / cfg.epsilon_frames) if cfg.epsilon_frames else 1.0
        self.policy.epsilon.fill_(cfg.epsilon_start + passed * (cfg.epsilon_end - cfg.epsilon_start))
        if cfg.anneal and collection.total_frames > 0:
            left = max(0.0, 1.0 - collection.frames / collection.total_frames)
            self._optimizer.param_groups[0]["lr"] = cfg.learning_rate * left

    def _update(self, steps: int) -> dict[str, float]:
        """Gradient steps. Returns their mean loss and mean value, if there were any."""
        sums = torch.zeros(2, device=self._device)
        for done in range(0, steps, _STEPS_AT_ONCE):
            sums += self._learn(min(_STEPS_AT_ONCE, steps - done))
        if steps == 0:
            return {}
        loss, value = (sums / steps).tolist()
        return {"loss": loss, "value": value}

    def _learn(self, steps: int) -> torch.Tensor:
        """Gradient steps on one sample for all of them, with what its frames are worth counted once, at the start."""
        cfg, policy = self._cfg, self.policy
        sample = self._buffer.sample(steps * cfg.batch_size)
        frames = sample.to(self._device)
        observation = [frames[key].split(cfg.batch_size) for key in policy.observation_keys]
        column = policy.index(frames["action"]).unsqueeze(-1).split(cfg.batch_size)
        goal = self._goal(frames)
        errors = []
        sums = torch.zeros(2, device=self._device)
        weight = frames["priority_weight"].split(cfg.batch_size) if self._is_prioritized else None
        for i, wanted in enumerate(goal.split(cfg.batch_size)):
            value = policy([part[i] for part in observation]).gather(-1, column[i]).squeeze(-1)
            losses = F.smooth_l1_loss(value, wanted, reduction="none")
            loss = (losses if weight is None else losses * weight[i]).mean()
            self._optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self._parameters, cfg.max_grad_norm)
            self._optimizer.step()
            value = value.detach()
            errors.append((value - wanted).abs())
            sums += torch.stack((loss.detach(), value.mean()))
        if self._is_prioritized:
            self._buffer.update_priority(sample["index"], torch.cat(errors))
        with torch.no_grad():
            # As far as so many steps would have taken it, one by one.
            moved = 1 - (1 - cfg.target_rate) ** steps
            torch._foreach_lerp_([*self._target.parameters()], self._parameters, moved)
        return sums

    @torch.no_grad()
    def _goal(self, frames: TensorDict) -> torch.Tensor:
        """What each frame's action is worth, `[N]`: what it brought, and the target network's value of the action that
        the policy would take then."""
        after = [frames["next", *key] for key in self.policy.observation_keys]
        best = self.policy(after).argmax(-1, keepdim=True)
        return frames["return"] + frames["discount"] * self._target(after).gather(-1, best).squeeze(-1)
