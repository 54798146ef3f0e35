"""A group of TorchRL envs, stepped one after the other.

Steps a TorchRL env that resets itself within a step, by its `step_and_maybe_reset`: an env with native auto-reset,
such as `IsaacLabWrapper(env, native_autoreset=True)`, or one whose class overrides that method.

    data --step_and_maybe_reset--> "next" of this frame, and the data of the next frame

With native auto-reset, TorchRL gives no final observation: in the last frame of an episode, it is NaN, or zero for
integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from collectx.config.schema.env import TorchrlEnvConfig
from collectx.env.base import Env, EnvSpec, StepArrays, closed_on_error
from collectx.env.env_indices import EnvNumbers
from collectx.env.mujoco_warnings import show_once
from collectx.env.torchrl import is_torchrl_env, torchrl_envs
from collectx.env.torchrl.conversion import Conversion, Unrecognised, split_transforms
from collectx.env.torchrl.gym_stepper import GymStepper, ProcessStepper
from collectx.env.torchrl.specs import RandomActions, gym_wrapper, read_spec, with_inputs
from collectx.env.torchrl.stepper import EnvStepper
from collectx.errors import ConfigError, SpaceError
from collectx.user_objects import call, resolve


def resets_itself(env: Any) -> bool:
    """Whether `env` resets its envs within a step."""
    if vars(env).get("_torchrl_native_autoreset", False):
        return True
    return type(env).step_and_maybe_reset.__module__ not in ("torchrl.envs.common", "torchrl.envs.batched_envs")


class SelfResetStepper(EnvStepper):
    """Steps an env that resets itself; see the module's docstring, and `EnvStepper` for the arguments."""

    def __init__(self, env: Any, spec: EnvSpec, envs: slice, wrapper: Any = None):
        super().__init__(env, spec, envs, wrapper)
        self._step = self._step_and_reset
        # The data of the next frame.
        self._following: Any = None

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        any_ended = super().step(action, out)
        self._data = self._following
        return any_ended

    def _step_and_reset(self, data: Any) -> Any:
        data, self._following = self._env.step_and_maybe_reset(data)
        return data.get("next")

    def _reset_ended(self, ended: np.ndarray) -> Any:
        return self._data


def build(cfg: TorchrlEnvConfig, first_index: int, incarnation: int, numbers: EnvNumbers) -> TorchrlEnv:
    """See `collectx.env.build`. `cfg.target` makes either one env, or all `cfg.num_envs` envs as one batched env."""
    make = resolve(cfg.target, "env.target")
    show_once()

    def make_one(e: int) -> Any:
        with numbers.of(e).explained(make, cfg.kwargs):
            return call(make, numbers.of(e).arguments(make, cfg.kwargs), "env.kwargs")

    env = make_one(0)
    if not is_torchrl_env(env):
        raise ConfigError(
            f"env.target={cfg.target} returned an object of type {type(env).__name__}, which is not a TorchRL EnvBase. "
            f"For a Gymnasium env, use env=gym env.entry_point={cfg.target}."
        )
    if env.batch_size:
        if env.batch_size.numel() != cfg.num_envs:
            raise ConfigError(
                f"env.num_envs={cfg.num_envs}, but env.target={cfg.target} makes an env with batch size "
                f"{list(env.batch_size)}. Use env.num_envs={env.batch_size.numel()}."
            )
        return TorchrlEnv(split_serial_env(env), exclude=cfg.exclude_keys)
    return TorchrlEnv([env, *map(make_one, range(1, cfg.num_envs))], exclude=cfg.exclude_keys)


class TorchrlEnv(Env):
    """A group of TorchRL envs: unbatched ones, or one batched env.

    A batch contains every leaf of the observation and state specs, at the root and below `next`. A leaf that the env
    writes only at the root is repeated below `next`; a leaf that it writes only below `next` is zero at the root of an
    episode's first frame. The same holds for the ends of agent groups. An episode ends with the root `done`. Without a
    root `done`, it ends with the first of its agents, and `reset_some` resets the agents that have ended, or all agents
    if none has. Rewards are below `next`, with any keys and shapes.

    The first reset seeds each Gymnasium env below a TorchRL env. `set_seed` seeds all other envs; a batched env gets
    `seeds[0]`, from which it derives the seeds of its envs.

    Args:
        envs: unbatched envs with the same specs, or one batched env. If it has several batch dimensions, batches keep
            them; for policy and actions, they are flattened.
        owned: whether `close` closes all envs; otherwise, it closes only those that have not started.
        exclude: keys of the observation and state specs to omit from the batch; see `read_spec`.
    """

    def __init__(self, envs: Sequence[Any], owned: bool = True, exclude: Sequence[str] = ()):
        self.user_envs: list[Any] = list(envs)
        # A batched env that has started owns processes, so it was never sent to a worker: it is the user's own object,
        # which the user closes.
        self._closed_with_group = [env for env in envs if owned or env.is_closed]
        # The envs that a batched env would make, or their processes, if these are stepped in its place.
        self._parts: list[Any] = []
        with closed_on_error(self):
            for env in envs:
                _check(env, alone=len(envs) == 1)
            specs = [read_spec(env, exclude) for env in envs]
            leaves, *others = [(spec.observation, spec.action, spec.rewards, spec.deltas) for spec in specs]
            if any(each != leaves for each in others):
                raise SpaceError(
                    "the envs of one worker must have the same specs, but these differ. Return envs with the same "
                    "specs from all calls."
                )
            action = specs[0].action
            num_envs = sum(spec.num_envs for spec in specs)
            self.spec = replace(specs[0], num_envs=num_envs, draw=lambda: RandomActions(envs, action))
            self._steppers: list[EnvStepper | GymStepper | ProcessStepper] = []
            try:
                self._steppers += self._gym_steppers()
                self.spec = replace(self.spec, path=_path(self.user_envs[0], self._steppers))
            except Unrecognised as reason:
                wrapper = gym_wrapper(self._parts[0] if self._parts else self.user_envs[0])
                self._close(self._parts)
                parts = [slice(0, num_envs)] if envs[0].batch_size else [slice(e, e + 1) for e in range(num_envs)]
                resets = resets_itself(envs[0])
                stepper = SelfResetStepper if resets else EnvStepper
                self._steppers += [
                    stepper(env, self.spec, part, wrapper) for env, part in zip(envs, parts, strict=True)
                ]
                self.spec = replace(self.spec, path=f"torchrl: {reason}", can_reset_early=not resets)

    def _gym_steppers(self) -> Sequence[GymStepper | ProcessStepper]:
        """Returns the steppers of the Gymnasium envs below the group's envs. Raises `Unrecognised` if they cannot be
        stepped directly."""
        if resets_itself(self.user_envs[0]):
            raise Unrecognised(f"{type(self.user_envs[0]).__name__} resets its envs within a step")
        env, outer = split_transforms(self.user_envs[0])
        if not env.batch_size:
            return [GymStepper(Conversion.of(each, self.spec), self.spec, e) for e, each in enumerate(self.user_envs)]
        makers = _makers(env)
        self._parts.append(makers[0]())
        self.spec = with_inputs(self.spec, self.user_envs[0], self._parts[0])
        conversion = Conversion.of(self._parts[0], self.spec, outer)
        if type(env) is torchrl_envs().ParallelEnv and not conversion.is_light:
            self._close(self._parts)
            self._parts.append(ProcessStepper(makers, conversion, self.spec, env._mp_start_method))
            return self._parts
        self._parts += [make() for make in makers[1:]]
        return [GymStepper(Conversion.of(each, self.spec, outer), self.spec, e) for e, each in enumerate(self._parts)]

    def reset(self, seeds: Sequence[int] | None, out: Sequence[np.ndarray]) -> None:
        for stepper in self._steppers:
            stepper.reset(None if seeds is None else [int(seed) for seed in seeds[stepper.envs]], out)

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        any_ended = False
        for stepper in self._steppers:
            any_ended |= stepper.step(action, out)
        return any_ended

    def reset_some(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        for stepper in self._steppers:
            if ended[stepper.envs].any():
                stepper.reset_some(ended[stepper.envs], out)

    def set_reset_options(self, options: Mapping[str, Any] | None) -> None:
        for stepper in self._steppers:
            if isinstance(stepper, EnvStepper):
                reason = self.spec.path.removeprefix("torchrl: ")
                raise NotImplementedError(
                    f"reset options cannot be used, because TorchRL resets these envs ({reason}). Use set_attr() or "
                    "call() instead."
                )
            stepper.reset_options = options or {}
        self.reset_options = options or {}

    def close(self) -> None:
        self._close(self._parts)
        self._close(self._closed_with_group)

    @staticmethod
    def _close(envs: list[Any]) -> None:
        while envs:
            env = envs.pop(0)
            if not env.is_closed:
                env.close()


def split_serial_env(env: Any) -> list[Any]:
    """Returns the envs that a `SerialEnv` would make, if it has not started: stepping them directly takes about half
    the time. Otherwise `[env]`."""
    if type(env) is not torchrl_envs().SerialEnv or len(env.batch_size) != 1 or not env.is_closed:
        return [env]
    return [make() for make in _constructors(env)]


def _makers(env: Any) -> list[partial]:
    """Returns the constructors of the envs of a `SerialEnv` or `ParallelEnv`; raises `Unrecognised`."""
    name, envs = type(env).__name__, torchrl_envs()
    if type(env) not in (envs.SerialEnv, envs.ParallelEnv) or len(env.batch_size) != 1:
        raise Unrecognised(f"{name} is a batched env")
    if not env.is_closed:
        raise Unrecognised(f"the {name} has already started. Pass a function that makes it")
    makers = _constructors(env)
    first, *others = [(make.func, make.args, make.keywords) for make in makers]
    if type(env) is envs.ParallelEnv and any(other != first for other in others):
        raise Unrecognised("its envs are made by different functions")
    return makers


def _constructors(env: Any) -> list[partial]:
    kwargs_of_each = [env.create_env_kwargs] * env.num_workers
    if not isinstance(env.create_env_kwargs, Mapping):
        kwargs_of_each = [kwargs or {} for kwargs in env.create_env_kwargs]
    return [partial(make, **kwargs) for make, kwargs in zip(env.create_env_fn, kwargs_of_each, strict=True)]


def _path(env: Any, steppers: Sequence[Any]) -> str:
    """Returns `EnvSpec.path` of a group in which `steppers` step Gymnasium envs."""
    if isinstance(steppers[0], ProcessStepper):
        return "gymnasium, in a process for each env"
    if type(split_transforms(env)[0]) is torchrl_envs().ParallelEnv:
        return "gymnasium, without processes, as a step takes less time than a message to a process"
    return "gymnasium"


def _check(env: Any, alone: bool) -> None:
    if env.batch_size and not alone:
        raise ConfigError(
            f"{type(env).__name__} has batch size {list(env.batch_size)}, so it already contains several envs. Pass it "
            "alone."
        )
