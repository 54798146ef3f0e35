"""What the trainers that learn share: policy, critic, optimiser, step size, the gradient step, the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from collectx.config import ImpalaTrainerConfig, PpoTrainerConfig
from collectx.env.base import EnvSpec
from collectx.trainer.base import Collection
from collectx.trainer.critic import Critic

# Episodes that `collection.mean_return` is over once there are as many.
_RETURN_EPISODES = 100


def has_reached(target_return: float | None, collection: Collection) -> bool:
    """Whether the mean return is as high as `target_return`, by enough episodes to tell. False for None."""
    is_known = collection.num_episodes >= _RETURN_EPISODES
    return target_return is not None and is_known and collection.mean_return >= target_return


class Learner:
    """Policy and critic on `device` with one Adam for both.

    Attributes:
        policy, critic: the modules. parameters: of both, each once.
        generator: draws the order of minibatches, on the CPU.
    """

    def __init__(
        self,
        cfg: PpoTrainerConfig | ImpalaTrainerConfig,
        policy: Callable,
        spec: EnvSpec,
        seed: int,
        device: torch.device,
    ):
        self._cfg = cfg
        self.device = device
        self.policy: Any = cast(nn.Module, policy).to(device)
        self.critic = Critic(policy, spec, seed).to(device)
        self.parameters = [*dict.fromkeys([*self.policy.parameters(), *self.critic.parameters()])]
        self._optimizer = torch.optim.Adam(self.parameters, lr=cfg.learning_rate, eps=1e-5, fused=True)
        self.generator = torch.Generator().manual_seed(seed)

    def anneal(self, collection: Collection) -> None:
        """Sets the step size for the present batch: falling linearly to 0 at the end of a run that has one."""
        if self._cfg.anneal and collection.total_frames > 0:
            left = max(0.0, 1.0 - collection.frames / collection.total_frames)
            self._optimizer.param_groups[0]["lr"] = self._cfg.learning_rate * left

    def step(self, loss: torch.Tensor) -> None:
        """One gradient step."""
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self._cfg.max_grad_norm)
        self._optimizer.step()

    def reached_target(self, collection: Collection) -> bool:
        """Whether `target_return` is set and reached, by enough episodes to tell."""
        return has_reached(self._cfg.target_return, collection)

    def state_dict(self) -> dict:
        """Tensors and plain data only."""
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Goes on from `state_dict()`."""
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
