"""Steps the Gymnasium env below a TorchRL env directly, where TorchRL adds nothing but conversions and well-known
transforms. `Recipe.of` recognises such an env; `GymMember` produces what the env's own `_step` would, bit by bit.
torchrl itself is not imported.

    recognised   `GymEnv` or `GymWrapper`, exactly, of one env: Box observations or a dict of them; Discrete, Box, and
                 MultiDiscrete actions (the last categorical)
    transforms   StepCounter, RewardSum, InitTracker, DoubleToFloat, in any order, nested or not, with default keys
                 apart from the names of those that they write
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from collectx.batch import REWARD, Leaf
from collectx.env.base import EnvSpec, StepArrays
from collectx.env.spaces import numpy_dtype

_TRANSFORMS = ("StepCounter", "RewardSum", "InitTracker", "DoubleToFloat")


class Unrecognised(Exception):
    """An env is more than a Gymnasium env with well-known transforms; the message says by what."""


@dataclass(frozen=True)
class Recipe:
    """How to produce the frames of a TorchRL env from the Gymnasium env below it.

    Attributes:
        env: the Gymnasium env.
        reads: Gymnasium's key of each base observation by its leaf's name; None: the observation itself.
        max_steps: frames of an episode after which it is truncated; None: no limit.
        step_count, episode_reward, is_init: the names of these leaves; None: absent.
        to_action: converts an action of the batch, `[*shape]`, to Gymnasium's.
    """

    env: gymnasium.Env
    reads: dict[str, str | None]
    max_steps: int | None
    step_count: str | None
    episode_reward: str | None
    is_init: str | None
    to_action: Callable[[np.ndarray], Any]

    @classmethod
    def of(cls, env: Any, spec: EnvSpec, outer: Sequence[Any] = ()) -> Recipe:
        """Recognises an unbatched env.

        Args:
            spec: its leaves; with `outer`, those of the batched env.
            outer: transforms of the batched env that `env` is part of.

        Raises:
            Unrecognised: the env has to be stepped by its `_step`.
        """
        base, transforms = peel(env)
        _check_base(base)
        by_name = _by_name([*transforms, *outer])
        recipe = cls(
            base._env,
            _reads(base),
            by_name["StepCounter"].max_steps if "StepCounter" in by_name else None,
            by_name["StepCounter"].step_count_key if "StepCounter" in by_name else None,
            by_name["RewardSum"].out_keys[0] if "RewardSum" in by_name else None,
            by_name["InitTracker"].init_key if "InitTracker" in by_name else None,
            _to_action(base, spec.action),
        )
        recipe._check(spec)
        return recipe

    def _check(self, spec: EnvSpec) -> None:
        """Checks that the spec has no leaf of another origin."""
        written = {name for name in (self.step_count, self.episode_reward, self.is_init) if name is not None}
        if spec.rewards != (REWARD,):
            raise Unrecognised(f"its rewards are {[leaf.key for leaf in spec.rewards]}")
        for leaf in spec.observation:
            if len(leaf.key) != 1 or leaf.key[0] not in {*self.reads, *written}:
                raise Unrecognised(f"the origin of {'.'.join(leaf.key)} is not known")


def peel(env: Any) -> tuple[Any, list[Any]]:
    """The env below all `TransformedEnv`, and their transforms."""
    transforms: list[Any] = []
    while _is_torchrls(env, "TransformedEnv"):
        _check_methods(env)
        transforms += _flat(env.transform)
        env = env.base_env
    _check_methods(env)
    return env, transforms


def _check_methods(env: Any) -> None:
    """TorchRL itself replaces methods of an object, by the version of Gymnasium for example; others do more."""
    for name, value in vars(env).items():
        if callable(value) and hasattr(type(env), name) and not _is_torchrls_module(getattr(value, "__module__", None)):
            raise Unrecognised(f"its {name} was replaced")


def _check_base(env: Any) -> None:
    """Raises `Unrecognised` unless it is a `GymEnv` or `GymWrapper` of one env that adds nothing but conversions."""
    if not _is_torchrls(env, "GymEnv", "GymWrapper"):
        raise Unrecognised(f"{type(env).__module__}.{type(env).__name__} is no GymEnv of TorchRL")
    if not isinstance(env._env, gymnasium.Env):
        raise Unrecognised(f"{type(env._env).__name__} is no gymnasium.Env")
    for reason, applies in {
        "it reads infos": bool(env.info_dict_reader),
        "it skips frames": env.wrapper_frame_skip != 1,
        "it observes pixels": bool(env.from_pixels),
        f"its device is {env.device}": env.device is not None and env.device.type != "cpu",
        "it passes tensors to its env": not env._convert_actions_to_numpy,
    }.items():
        if applies:
            raise Unrecognised(reason)


def _flat(transform: Any) -> Iterator[Any]:
    """The transforms of a `Compose`, nested or not, in order; or the transform itself."""
    if _is_torchrls(transform, "Compose"):
        for each in transform.transforms:
            yield from _flat(each)
    else:
        yield transform


def _by_name(transforms: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for transform in transforms:
        name = type(transform).__name__
        if not _is_torchrls(transform, *_TRANSFORMS):
            raise Unrecognised(f"the transform {name} is not one of {', '.join(_TRANSFORMS)}")
        if name in found and name != "DoubleToFloat":
            raise Unrecognised(f"it has two {name}")
        found[name] = transform
    counter, total = found.get("StepCounter"), found.get("RewardSum")
    if counter is not None and (counter.truncated_key != "truncated" or not counter.update_done):
        raise Unrecognised("its StepCounter writes truncated or done otherwise than by default")
    if total is not None and ([*total.in_keys] != ["reward"] or not isinstance(total.out_keys[0], str)):
        raise Unrecognised(f"its RewardSum adds {total.in_keys} to {total.out_keys}")
    return found


def _reads(base: Any) -> dict[str, str | None]:
    space = base._env.observation_space
    if isinstance(space, spaces.Box):
        names = list(base.observation_spec.keys(True, True))
        if len(names) == 1 and isinstance(names[0], str):
            return {names[0]: None}
    is_boxes = isinstance(space, spaces.Dict) and all(isinstance(part, spaces.Box) for part in space.values())
    # TorchRL renames a "state" without an "observation".
    if is_boxes and ("state" not in space.spaces or "observation" in space.spaces):
        return {name: name for name in space}
    raise Unrecognised(f"its observations are of {space}")


def _to_action(base: Any, leaves: Sequence[Leaf]) -> Callable[[np.ndarray], Any]:
    space, (leaf, *others) = base._env.action_space, leaves
    if others or leaf.key != ("action",):
        raise Unrecognised(f"its actions are {[each.key for each in leaves]}")
    is_integer = numpy_dtype(leaf).kind in "iu"
    if isinstance(space, spaces.Discrete) and space.start == 0:
        if leaf.shape == () and is_integer:
            return int
        if leaf.shape == (space.n,):
            return lambda action: int(action.argmax())
    same_shape = leaf.shape == space.shape
    if same_shape and (isinstance(space, spaces.Box) or (isinstance(space, spaces.MultiDiscrete) and is_integer)):
        dtype = _base_dtype(base)
        # A copy: the env may keep its action.
        return lambda action: action.astype(dtype)
    raise Unrecognised(f"its actions are of {space}, with {leaf.dtype} {list(leaf.shape)}")


def _base_dtype(base: Any) -> np.dtype:
    return numpy_dtype(Leaf(("action",), (), base.action_spec.dtype))


def _is_torchrls(value: Any, *names: str) -> bool:
    """Whether the class itself is one of TorchRL's with these names."""
    return type(value).__name__ in names and _is_torchrls_module(type(value).__module__)


def _is_torchrls_module(name: str | None) -> bool:
    return name is not None and name.startswith("torchrl.")


class GymMember:
    """One env of a group; the counterpart of `collectx.env.torchrl_member.TorchrlMember`.

    Args:
        env: the TorchRL env, for its seeds.
        spec: of the group.
        index: of the env in the group.
    """

    def __init__(self, env: Any, recipe: Recipe, spec: EnvSpec, index: int):
        self.envs = slice(index, index + 1)
        self._index = index
        self._env = env
        self._gym = recipe.env
        self._max_steps = recipe.max_steps
        self._to_action = recipe.to_action
        places = {leaf.key[0]: place for place, leaf in enumerate(spec.observation)}
        self._observed = [(places[name], key) for name, key in recipe.reads.items() if name in places]
        # The place of the one leaf that is the whole observation.
        self._whole = self._observed[0][0] if len(self._observed) == 1 and self._observed[0][1] is None else None
        self._count_place, self._sum_place, self._init_place = (
            places.get(name) if name is not None else None
            for name in (recipe.step_count, recipe.episode_reward, recipe.is_init)
        )
        self._steps = 0
        self._sum = np.float32(0)

    def set_seed(self, seed: int) -> int:
        """Seeds the env as TorchRL does, by a reset; returns the seed for the next env of a batched one."""
        return self._env.set_seed(seed)

    def reset(self, out: Sequence[np.ndarray]) -> None:
        observation, _ = self._gym.reset()
        self._steps, self._sum = 0, np.float32(0)
        self._write(observation, out, True)

    def restart(self, ended: np.ndarray, out: Sequence[np.ndarray]) -> None:
        self.reset(out)

    def step(self, action: Sequence[np.ndarray], out: StepArrays) -> bool:
        index = self._index
        observation, reward, terminated, truncated, _ = self._gym.step(self._to_action(action[0][index]))
        if not isinstance(reward, float | int):
            reward = np.asarray(reward).item()
        self._steps += 1
        out.reward[index] = reward
        self._sum += out.reward[index]
        self._write(observation, out.observation, False)
        if self._max_steps is not None and self._steps >= self._max_steps:
            truncated = True
        if terminated or truncated:
            out.terminated[index] = terminated
            out.truncated[index] = truncated
            return True
        return False

    def _write(self, observation: Any, out: Sequence[np.ndarray], is_first: bool) -> None:
        index = self._index
        if self._whole is not None:
            out[self._whole][index] = observation
        else:
            for place, key in self._observed:
                out[place][index] = observation if key is None else observation[key]
        if self._count_place is not None:
            out[self._count_place][index] = self._steps
        if self._sum_place is not None:
            out[self._sum_place][index] = self._sum
        if self._init_place is not None:
            out[self._init_place][index] = is_first
