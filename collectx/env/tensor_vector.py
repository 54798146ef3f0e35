"""The adapter of a Gymnasium VectorEnv that returns and takes torch tensors on one device, as simulators on a GPU do.
Its attribute `device` distinguishes it from other vector envs.

Where `collectx.env.base` says arrays, this adapter takes and writes tensors on that device, and never waits for the
device within a step. So it cannot know whether an episode has ended, and the env must reset itself, in autoreset mode
SAME_STEP: its step returns the first observation of the next episode, and `info` contains the final one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from collectx.env.base import Env, EnvSpec, closed_on_error
from collectx.env.observation import ObservationLeaves
from collectx.env.spaces import SpaceLeaves
from collectx.env.wrappers import refuse
from collectx.errors import CollectxError, ConfigError, DataError

# Gymnasium's key of the final observations, and the key before Gymnasium 1.0, which simulators still use.
_FINAL = ("final_obs", "final_observation")


def device_of(env: VectorEnv) -> torch.device | None:
    """Returns the device of the tensors that `env` returns, with its index; None if it returns arrays."""
    device = getattr(env, "device", None)
    return with_index(torch.device(device)) if isinstance(device, str | torch.device) else None


def with_index(device: torch.device) -> torch.device:
    """Returns `device` with its index, as tensors report it; "cuda" means the current GPU."""
    return torch.empty(0, device=device).device if device.type == "cuda" else torch.device(device.type)


class TensorsAsArrays(VectorWrapper):
    """Passes arrays to and from a vector env that takes and returns tensors on the CPU; they share memory."""

    def reset(self, **options: Any) -> Any:
        return tuple(map(_array, self.env.reset(**options)))

    def step(self, actions: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            return tuple(map(_array, self.env.step(_tensor(actions))))


def _array(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().numpy()
    if isinstance(value, Mapping):
        return {name: _array(part) for name, part in value.items()}
    return tuple(map(_array, value)) if isinstance(value, tuple) else value


def _tensor(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tensor(part) for name, part in value.items()}
    return tuple(map(_tensor, value)) if isinstance(value, tuple) else torch.as_tensor(value)


class TensorVectorEnv(Env):
    """The envs of a VectorEnv on `device`; see the module's docstring. `reset` passes one integer, `seeds[0]`. `env` is
    closed if the constructor raises. Raises `ConfigError` if the env uses another autoreset mode, or `info_keys` is not
    empty."""

    unsaved = "the env returns tensors, and its simulator may hold more state than a copy would contain"

    def __init__(
        self,
        env: VectorEnv,
        device: torch.device,
        mode: AutoresetMode,
        info_keys: Sequence[Any] = (),
        exclude_keys: Sequence[str] = (),
    ):
        self._env, self.user_envs, self._device = env, [env], device
        with closed_on_error(self):
            if mode is not AutoresetMode.SAME_STEP:
                raise ConfigError(
                    f"{env} returns tensors on {device} with autoreset mode {mode.value}, in which steps would wait "
                    'for the device. Use same_step, and put the final observations into info["final_obs"].'
                )
            if info_keys:
                raise ConfigError(
                    f"{env} returns tensors on {device}, so collectx cannot read its infos. Leave out info_keys and "
                    f"metrics ({', '.join(map(str, info_keys))}), or add the values to the observation."
                )
            self._observation = ObservationLeaves(env.single_observation_space, exclude_keys)
            self._action = SpaceLeaves(env.single_action_space, ("action",))
        self.spec = EnvSpec(
            env.num_envs,
            self._observation.leaves,
            self._action.leaves,
            self._observation.space,
            env.single_action_space,
            can_reset_early=False,
            device=device,
        )
        # The observations that the last step returned; for envs whose episode has ended, first observations.
        self._first: list[torch.Tensor] = []
        # The envs whose episode has ended in a step without final observations.
        self._lost: torch.Tensor | None = None

    def reset(self, seeds: Sequence[int] | None, out: Sequence[Any]) -> None:
        try:
            with torch.no_grad():
                observation, _ = self._env.reset(seed=None if seeds is None else int(seeds[0]))
        except Exception as error:
            refuse(error, "reset", "the vector env")
            raise
        for target, value in zip(out, self._values(observation), strict=True):
            target.copy_(value)

    def step(self, action: Sequence[Any], out: Any) -> bool:
        """See `Env.step`. Always returns True, because only the device knows whether an episode has ended."""
        try:
            # Neither a later reset nor the user could change tensors of inference mode.
            with torch.inference_mode(False), torch.no_grad():
                # Copied, because the env may keep or change its actions.
                actions = self._action.nest([value.clone() for value in action])
                observation, reward, terminated, truncated, info = self._env.step(actions)
        except Exception as error:
            refuse(error, "step", "the vector env")
            raise
        for name, target, value in (
            ("reward", out.reward, reward),
            ("terminated", out.terminated, terminated),
            ("truncated", out.truncated, truncated),
        ):
            target.copy_(self._checked(name, value, target.shape, target.dtype))
        self._first = final = self._values(observation)
        ended = torch.logical_or(terminated, truncated)
        key = next((key for key in _FINAL if key in info), None)
        if key is None:
            self._lost = ended if self._lost is None else self._lost | ended
        else:
            pairs = zip(self._values(info[key]), self._first, strict=True)
            final = [torch.where(ended.view(-1, *[1] * (last.ndim - 1)), last, first) for last, first in pairs]
        for target, value in zip(out.observation, final, strict=True):
            target.copy_(value)
        return True

    def reset_some(self, ended: Any, out: Sequence[Any]) -> None:
        """Writes the observations that the last step returned. If no episode has ended, `out` contains them already."""
        for target, first in zip(out, self._first, strict=True):
            target.copy_(first)

    def check_final(self) -> None:
        """See `Env.check_final`. Waits for the device if steps lacked final observations."""
        lost, self._lost = self._lost, None
        if lost is not None and lost.any():
            raise CollectxError(
                f"env {int(lost.nonzero()[0])} of {self._env} ended an episode, but the infos contain no final "
                'observation. With autoreset mode SameStep, put the final observations into info["final_obs"].'
            )

    def close(self) -> None:
        self._env.close()

    def _values(self, observation: Any) -> list[torch.Tensor]:
        """Returns one `[E, *shape]` tensor per leaf."""
        leaves = self._observation.leaves
        values = zip(leaves, self._observation.flatten(observation), strict=True)
        return [
            self._checked(".".join(leaf.key), value, (self.spec.num_envs, *leaf.shape), leaf.dtype)
            for leaf, value in values
        ]

    def _checked(self, name: str, value: Any, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns `value`; raises `DataError` unless it fits shape, device and `dtype`."""
        if not isinstance(value, torch.Tensor):
            raise DataError(
                f"the vector env returned {name} as {type(value).__name__}, but it has an attribute 'device', so it "
                f"must return tensors on {self._device}. If it always returns arrays, rename the attribute."
            )
        if value.shape != shape or value.device != self._device or not torch.can_cast(value.dtype, dtype):
            raise DataError(
                f"the vector env returned {name} with shape {[*value.shape]}, {value.dtype}, on {value.device}, but it "
                f"must have shape {[*shape]}, {dtype}, on {self._device}"
            )
        return value
