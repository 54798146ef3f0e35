"""Recognises TorchRL envs that add nothing but conversions and well-known transforms to a Gymnasium env, so that
`GymStepper` (`collectx/env/torchrl/gym_stepper.py`) can step the Gymnasium env.

    recognised   `GymEnv` or `GymWrapper`, exactly, of one env: observations of Box, Discrete, MultiBinary, and
                 categorical MultiDiscrete spaces, or nested dicts of them; Discrete, Box, and categorical MultiDiscrete
                 actions
    transforms   StepCounter, RewardSum, InitTracker, DoubleToFloat, in any order, nested or not, with default keys
                 apart from the names of the leaves that they write
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from collectx.batch import REWARD, Key, Leaf, as_key, is_integer
from collectx.env.base import EnvSpec
from collectx.env.spaces import numpy_dtype
from collectx.env.torchrl import torchrl_envs

_LIGHT = ("gymnasium.envs.classic_control.", "gymnasium.envs.toy_text.")
# The values of these spaces are stored unchanged, unless TorchRL makes them one-hot.
_STORED = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
_TRANSFORMS = ("StepCounter", "RewardSum", "InitTracker", "DoubleToFloat")


class Unrecognised(Exception):
    """A TorchRL env does more than convert the frames of a Gymnasium env; the message says what."""


@dataclass(frozen=True, eq=False)
class Read:
    """How to compute one leaf from Gymnasium's observation.

    Attributes:
        path: keys of nested dicts; (): the observation itself.
        codes: the one-hot code of each value, `[n, n]`; None: the value is stored unchanged.
    """

    path: tuple[str, ...]
    codes: np.ndarray | None

    @property
    def is_observation(self) -> bool:
        """Whether the leaf equals the observation."""
        return not self.path and self.codes is None


@dataclass(frozen=True)
class Conversion:
    """How to produce the frames of a TorchRL env from the Gymnasium env below it.

    Attributes:
        env: the Gymnasium env; None in a conversion that is sent to several processes.
        reads: how to compute each leaf of the base env's observation, by key.
        frame_skip: number of steps of the Gymnasium env per frame; fewer if the episode ends.
        max_steps: number of frames after which an episode is truncated; None: no limit.
        step_count, episode_reward, is_init: the names of the leaves with these values; None: no such leaf.
        to_action: converts an action of the batch, `[*shape]`, to Gymnasium's.
    """

    env: Any
    reads: dict[Key, Read]
    frame_skip: int
    max_steps: int | None
    step_count: str | None
    episode_reward: str | None
    is_init: str | None
    to_action: Callable[[np.ndarray], Any]

    @classmethod
    def of(cls, env: Any, spec: EnvSpec, outer: Sequence[Any] = ()) -> Conversion:
        """Recognises an unbatched env. Raises `Unrecognised` if the env must be stepped by its `_step`.

        Args:
            spec: the spec of the env; with `outer`, that of the batched env.
            outer: transforms of the batched env that `env` is part of.
        """
        base, transforms = split_transforms(env)
        _check_base(base)
        by_name = _by_name([*transforms, *outer])
        conversion = cls(
            base._env,
            dict(_reads(base)),
            base.wrapper_frame_skip,
            by_name["StepCounter"].max_steps if "StepCounter" in by_name else None,
            by_name["StepCounter"].step_count_key if "StepCounter" in by_name else None,
            by_name["RewardSum"].out_keys[0] if "RewardSum" in by_name else None,
            by_name["InitTracker"].init_key if "InitTracker" in by_name else None,
            _to_action(base, spec.action),
        )
        conversion._check(spec)
        return conversion

    @property
    def is_light(self) -> bool:
        """Whether a step is known to take less time than a message to another process: for Gymnasium's own envs without
        physics or images, and without a user's wrappers."""
        env = self.env
        while isinstance(env, gymnasium.Wrapper) and type(env).__module__.startswith("gymnasium.wrappers."):
            env = env.env
        return type(env).__module__.startswith(_LIGHT) and env.render_mode is None

    def _check(self, spec: EnvSpec) -> None:
        """Raises `Unrecognised` unless the origin of every leaf is known."""
        written = {(name,) for name in (self.step_count, self.episode_reward, self.is_init) if name is not None}
        if spec.rewards != (REWARD,):
            raise Unrecognised(f"its reward keys are {['.'.join(leaf.key) for leaf in spec.rewards]}")
        for leaf in spec.observation:
            if leaf.key not in {*self.reads, *written}:
                raise Unrecognised(f"it is unknown where {'.'.join(leaf.key)!r} comes from")


def split_transforms(env: Any) -> tuple[Any, list[Any]]:
    """Returns the env below all `TransformedEnv`, and their transforms."""
    transforms: list[Any] = []
    while type(env) is torchrl_envs().TransformedEnv:
        _check_methods(env)
        transforms += _flat(env.transform)
        env = env.base_env
    _check_methods(env)
    return env, transforms


def _check_methods(env: Any) -> None:
    """Raises `Unrecognised` if code outside of TorchRL has replaced a method of the env. (TorchRL itself replaces
    methods, for example by the version of Gymnasium.)"""
    for name, value in vars(env).items():
        if (
            callable(value)
            and hasattr(type(env), name)
            and not (getattr(value, "__module__", None) or "").startswith("torchrl.")
        ):
            raise Unrecognised(f"its method {name} was replaced")


def _check_base(env: Any) -> None:
    """Raises `Unrecognised` unless it is a `GymEnv` or `GymWrapper` of one env that adds nothing but conversions."""
    if type(env) not in (torchrl_envs().GymEnv, torchrl_envs().GymWrapper):
        raise Unrecognised(f"{type(env).__module__}.{type(env).__name__} is not a TorchRL GymEnv")
    if not isinstance(env._env, gymnasium.Env):
        raise Unrecognised(f"{type(env._env).__name__} is not a gymnasium.Env")
    for reason, applies in {
        "it reads infos": bool(env.info_dict_reader),
        "it observes pixels": bool(env.from_pixels),
        "it passes tensors to its env": not env._convert_actions_to_numpy,
    }.items():
        if applies:
            raise Unrecognised(reason)


def _flat(transform: Any) -> Iterator[Any]:
    """Yields the transforms of a `Compose`, nested or not, in order; or the transform itself."""
    if type(transform) is torchrl_envs().Compose:
        for each in transform.transforms:
            yield from _flat(each)
    else:
        yield transform


def _by_name(transforms: Sequence[Any]) -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    for transform in transforms:
        name = type(transform).__name__
        if type(transform) is not getattr(torchrl_envs(), name, None) or name not in _TRANSFORMS:
            raise Unrecognised(f"the transform {name} is not one of {', '.join(_TRANSFORMS)}")
        if name in by_name and name != "DoubleToFloat":
            raise Unrecognised(f"it has two {name} transforms")
        by_name[name] = transform
    counter, total = by_name.get("StepCounter"), by_name.get("RewardSum")
    if counter is not None and (counter.truncated_key != "truncated" or not counter.update_done):
        raise Unrecognised("its StepCounter has another truncated_key or update_done than by default")
    if total is not None and ([*total.in_keys] != ["reward"] or not isinstance(total.out_keys[0], str)):
        raise Unrecognised(f"its RewardSum sums {total.in_keys} into {total.out_keys}")
    return by_name


def _reads(base: Any) -> Iterator[tuple[Key, Read]]:
    space = base._env.observation_space
    specs = {as_key(key): spec for key, spec in base.observation_spec.items(True, True)}
    is_dict = isinstance(space, spaces.Dict)
    # TorchRL renames a "state" without an "observation".
    if is_dict and "state" in space.spaces and "observation" not in space.spaces:
        raise Unrecognised(f"its observation space is {space}")
    for key, spec in specs.items():
        part, path = space, key if is_dict else ()
        for name in path:
            part = part[name]
        shape = tuple(spec.shape)
        if isinstance(part, spaces.Discrete) and shape == (part.n,) and part.start == 0:
            yield key, Read(path, np.eye(int(part.n), dtype=np.int64))
        elif isinstance(part, _STORED) and shape in (part.shape, part.shape or (1,)):
            yield key, Read(path, None)
        else:
            raise Unrecognised(f"its observation space is {space}")


def _to_action(base: Any, leaves: Sequence[Leaf]) -> Callable[[np.ndarray], Any]:
    space, (leaf, *others) = base._env.action_space, leaves
    if others or leaf.key != ("action",):
        raise Unrecognised(f"its action keys are {['.'.join(each.key) for each in leaves]}")
    is_discrete = is_integer(numpy_dtype(leaf))
    if isinstance(space, spaces.Discrete) and space.start == 0:
        if leaf.shape == () and is_discrete:
            return int
        if leaf.shape == (space.n,):
            return lambda action: int(action.argmax())
    same_shape = leaf.shape == space.shape
    if same_shape and (isinstance(space, spaces.Box) or (isinstance(space, spaces.MultiDiscrete) and is_discrete)):
        dtype = numpy_dtype(Leaf(("action",), (), base.action_spec.dtype))
        # A copy: the env may keep its action.
        return lambda action: action.astype(dtype)
    raise Unrecognised(f"its action space is {space}, with a spec of {leaf.dtype} {list(leaf.shape)}")
