"""`trainer.kind=dqn`: double deep Q-learning (van Hasselt et al. 2016) from a replay buffer, for any collector.

    batch --extend--> buffer --sample--> gradient steps --publish--> workers, with the current epsilon

Async workers of this machine write to the buffer themselves; the trainer then gets no batches.

Q-learning is off-policy, so sync and async collectors are equally suitable. Rewards of several steps are summed without
an off-policy correction, as in Rainbow (Hessel et al. 2018).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import TensorDict

from collectx.batch import Key, as_key
from collectx.config.schema.trainer import DqnTrainerConfig
from collectx.env.base import EnvSpec
from collectx.replay import PrioritizedSampler, ReplayBuffer, UniformSampler
from collectx.trainer.adam import Adam
from collectx.trainer.base import (
    BatchCollection,
    check_trainable,
    load_moments,
    present_keys,
    reached,
    remaining_fraction,
)
from collectx.trainer.finite import check_finite
from collectx.trainer.returns import nstep

# Maximum number of gradient steps that share a sample. More would need fewer calls, but use older targets.
_MAX_STEPS_PER_SAMPLE = 16

_LOSSES = ("loss", "value")
_ADVICE = (
    "it does not compute action values. Use policy=q_mlp or policy=q_cnn, or give your module the attributes "
    "observation_keys, epsilon, index and forward, as collectx.policy.q.QPolicy has them."
)


class DqnTrainer:
    """Q-learning with a slowly updated target network and a Huber loss."""

    def __init__(self, cfg: DqnTrainerConfig, policy: Callable | None, spec: EnvSpec, seed: int, device: torch.device):
        attributes = ("observation_keys", "epsilon", "index")
        self.policy: Any = check_trainable(cfg, policy, spec, attributes, _ADVICE).to(device)
        self._cfg = cfg
        self._device = device
        self._target = copy.deepcopy(self.policy).requires_grad_(False)
        self._parameters: list[torch.Tensor] = [*self.policy.parameters()]
        self._optimizer = Adam(self._parameters, lr=cfg.learning_rate, eps=cfg.adam_eps, fused=True)
        if cfg.priority_alpha is None:
            sampler: Any = UniformSampler(seed)
        else:
            sampler = PrioritizedSampler(cfg.priority_alpha, cfg.priority_beta, seed=seed)
        self._buffer = ReplayBuffer(cfg.buffer_frames, sampler=sampler)
        self.replay_buffers = {"replay": self._buffer}
        self.shared_replay = NstepWriter(self._buffer, self.policy.observation_keys, cfg.gamma, cfg.num_steps)
        self._is_prioritized = cfg.priority_alpha is not None
        self._due_steps = 0.0
        self.policy.epsilon.fill_(cfg.epsilon_start)
        self._update_statistics = getattr(self.policy, "update_statistics", None)

    def train(self, collection: BatchCollection) -> str | None:
        """Returns when the collection is exhausted or `target_return` is reached."""
        cfg = self._cfg
        previous_frames = collection.frames
        policy_keys = [as_key(key) for key in self.policy.observation_keys]
        for batch in collection:
            if reason := reached(cfg.target_return, collection):
                return reason
            if isinstance(batch, TensorDict):
                self.shared_replay.extend(batch)
                if self._update_statistics is not None:
                    self._update_statistics([batch[key].to(self._device) for key in policy_keys])
                    # Both networks normalise alike.
                    for buffer, newest in zip(self._target.buffers(), self.policy.buffers(), strict=True):
                        buffer.copy_(newest)
            self._anneal(collection)
            losses = {}
            if collection.frames >= cfg.warmup_frames:
                self._due_steps += cfg.updates_per_frame * (collection.frames - previous_frames)
                losses = self._update(int(self._due_steps))
                self._due_steps %= 1
            previous_frames = collection.frames
            collection.publish(self.policy)
            collection.log(epsilon=self.policy.epsilon.item(), **losses)
        return None

    def state_dict(self) -> dict:
        """Returns the state for `load_state_dict`, without the frames of the replay buffer: only tensors and plain
        data."""
        return {
            "policy": self.policy.state_dict(),
            "target": self._target.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "due_steps": self._due_steps,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restores a result of `state_dict`. The replay buffer's `loads` restores the frames."""
        self._due_steps = state["due_steps"]
        self.policy.load_state_dict(state["policy"])
        self._target.load_state_dict(state["target"])
        load_moments(self._optimizer, state["optimizer"])

    def _anneal(self, collection: BatchCollection) -> None:
        """Sets epsilon and the learning rate for the current frame."""
        cfg = self._cfg
        progress = min(1.0, collection.frames / cfg.epsilon_frames) if cfg.epsilon_frames else 1.0
        self.policy.epsilon.fill_(cfg.epsilon_start + progress * (cfg.epsilon_end - cfg.epsilon_start))
        if cfg.anneal:
            self._optimizer.param_groups[0]["lr"] = cfg.learning_rate * remaining_fraction(collection)

    def _update(self, steps: int) -> dict[str, float]:
        sums = torch.zeros(2, device=self._device)
        for done in range(0, steps, _MAX_STEPS_PER_SAMPLE):
            sums += self._learn(min(_MAX_STEPS_PER_SAMPLE, steps - done))
        return dict(zip(_LOSSES, (sums / steps).tolist(), strict=True)) if steps else {}

    def _learn(self, steps: int) -> torch.Tensor:
        """Takes `steps` gradient steps on one sample, with targets computed once. Returns the sums of the `_LOSSES`,
        `[2]`."""
        cfg, policy = self._cfg, self.policy
        sample = self._buffer.sample(steps * cfg.batch_size)
        frames = sample.to(self._device)
        observation = [frames[as_key(key)].split(cfg.batch_size) for key in policy.observation_keys]
        column = policy.index(frames["action"]).unsqueeze(-1).split(cfg.batch_size)
        target = self._td_target(frames)
        errors, rows = [], []
        weight = frames["priority_weight"].split(cfg.batch_size) if self._is_prioritized else None
        for i, expected in enumerate(target.split(cfg.batch_size)):
            value = policy([part[i] for part in observation]).gather(-1, column[i]).squeeze(-1)
            distance = F.smooth_l1_loss(value, expected, reduction="none")
            loss = (distance if weight is None else distance * weight[i]).mean()
            self._optimizer.minimize(loss, cfg.max_grad_norm)
            value = value.detach()
            errors.append((value - expected).abs())
            rows.append(torch.stack((loss.detach(), value.mean())))
        losses = torch.stack(rows)
        check_finite(cfg, _LOSSES, losses, {"policy": policy}, self._optimizer)
        if self._is_prioritized:
            self._buffer.update_priority(sample["index"], torch.cat(errors))
        with torch.no_grad():
            # Has the effect of `steps` updates by `target_rate`.
            rate = 1 - (1 - cfg.target_rate) ** steps
            torch._foreach_lerp_([*self._target.parameters()], self._parameters, rate)
        return losses.sum(0)

    @torch.no_grad()
    def _td_target(self, frames: TensorDict) -> torch.Tensor:
        """Returns the double-DQN target `[N]`: the n-step return plus the discounted value, by the target network, of
        the policy's best action in the next observation."""
        next_observation = [frames["next", *as_key(key)] for key in self.policy.observation_keys]
        best = self.policy(next_observation).argmax(-1, keepdim=True)
        return frames["return"] + frames["discount"] * self._target(next_observation).gather(-1, best).squeeze(-1)


@dataclass(frozen=True)
class NstepWriter:
    """Writes n-step transitions to `buffer`, in the trainer's process or, pickled, in the workers."""

    buffer: ReplayBuffer
    observation_keys: Sequence[Key]
    gamma: float
    num_steps: int

    def extend(self, batch: TensorDict) -> torch.Tensor:
        """Writes the n-step transitions of a batch `[..., time]`. See `ReplayBuffer.extend`."""
        return self.buffer.extend(self._transitions(batch))

    def _transitions(self, batch: TensorDict) -> TensorDict:
        """Returns transitions, `[rows, time]`: observation and action of each frame, and over the `num_steps` frames
        that begin with it, the "return", the last "next" observation, and the "discount" of the value of the latter (0
        if its frame terminated)."""
        keys = present_keys(batch, self.observation_keys)
        rows = batch.select("action", "next", *keys).reshape(-1, batch.batch_size[-1])
        reward, done, terminated = (rows["next", name].squeeze(-1) for name in ("reward", "done", "terminated"))
        total, discount, last = nstep(reward, done, self.gamma, self.num_steps)
        row = torch.arange(len(rows), device=last.device)[:, None]
        result = rows.select("action", *keys)
        result["return"] = total
        # A truncated frame is not terminated: the value of its true final observation counts.
        result["discount"] = discount * ~terminated[row, last]
        for key in keys:
            result["next", *key] = rows["next", *key][row, last]
        return result
