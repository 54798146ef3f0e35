"""Evaluates a policy: complete episodes in separate envs, with separate seeds. Used by `collectx eval`, and by
the process that evaluates during a run (`collectx.run.evaluator`).

The first episodes of each env count, not the episodes that end first: those would be the short ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Space
from torch import nn

from collectx import collector as collectors
from collectx import env as envs
from collectx.config.interpolation import as_written
from collectx.config.problem import YAML
from collectx.config.registry import group_from_dict
from collectx.config.schema.env import EnvConfig, GymEnvConfig, GymnasiumConfig, GymVectorEnvConfig
from collectx.config.schema.run import RunConfig
from collectx.env.base import Env, EnvSpec
from collectx.env.env_indices import SPACES, of_evaluation
from collectx.env.metrics import CountedEpisodes, CountedVector, InfoMetrics
from collectx.env.mujoco_warnings import advice_on_display
from collectx.env.wrappers import with_statistics
from collectx.errors import ConfigError, EpisodeTooLongError, summary_of
from collectx.policy import is_user_policy
from collectx.policy.exploration import ExplorationType
from collectx.random_state import single_threaded
from collectx.rules.evaluation_env import evaluated
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.saved_config import run_config
from collectx.run.preflight import env_limit
from collectx.run.statistics import FEW, bootstrap_interval
from collectx.user_objects import UserPolicyConfig
from collectx.worker.spec import Placement

# Seconds between two progress messages.
_SAY_S = 10.0
# Steps of every env between two checks for ended episodes.
STEPS = 64
# The number of resamples for the bootstrap interval.
_RESAMPLES = 10_000


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        returns, lengths: the undiscounted return of each episode, and its frames, in the order of the episode numbers.
        metrics: the means of `env.metrics` over all episodes.
    """

    returns: list[float]
    lengths: list[int]
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% confidence interval of the mean return, by the percentile bootstrap; None for fewer than four
        episodes, which allow none."""
        if len(self.returns) < FEW:
            return None
        low, high = bootstrap_interval(np.array(self.returns), np.mean, _RESAMPLES)
        return float(low), float(high)

    def as_json(self) -> dict[str, Any]:
        """Returns the results, as `evaluations.jsonl` contains them."""
        facts: dict[str, Any] = {
            "mean_return": self.mean_return,
            "interval": self.interval,
            "mean_length": float(np.mean(self.lengths)),
        }
        facts |= {"metrics": self.metrics} if self.metrics else {}
        return {**facts, "returns": self.returns, "lengths": self.lengths}


def evaluate(
    cfg: RunConfig, policy: Callable | None, spec: EnvSpec, say: Callable[[str], object] = lambda text: None
) -> Evaluation:
    """Evaluates a policy with the options `cfg.eval`, in this process; blocks until the episodes have ended. Raises
    `EpisodeTooLongError` if an episode has more frames than `cfg.eval.max_frames_per_episode`.

    Args:
        policy: acts on the CPU, without being copied; None: random actions. A module that acts deterministically stays
            in evaluation mode (`nn.Module.eval`).
        say: called with a progress message every 10 s.
    """
    episodes, kind = cfg.eval.episodes, ExplorationType(cfg.eval.exploration_type)
    env = cfg.env
    if isinstance(env, GymEnvConfig):  # other groups may have a fixed number
        env = dataclasses.replace(env, num_envs=min(env.num_envs, episodes))
    if isinstance(policy, nn.Module) and kind is not ExplorationType.RANDOM:
        policy.eval()
    counted = InfoMetrics(getattr(env, "metrics", ()))
    env = _with_metrics(env, counted, episodes)
    options = {
        "frames_per_batch": STEPS * env.num_envs,
        "total_frames": -1,
        "exploration_type": kind.value,
        "max_frames_per_traj": cfg.collector.max_frames_per_traj,
        "compact_obs": True,
        "check_finite": cfg.collector.check_finite,
    }
    kinds = {"inference": "local", "backend": "auto", "launcher": "local", "trainer": "meter"}
    cfg = dataclasses.replace(
        cfg,
        env=env,
        policy=cfg.policy if policy is None else UserPolicyConfig(kind="python", policy=policy),
        collector=group_from_dict("collector", {"kind": "single"} | options),
        seed=cfg.eval.seed,
        devices=group_from_dict("devices", {}),
        **{group: group_from_dict(group, {"kind": kind}) for group, kind in kinds.items()},
    )
    first = {key: value[: env.num_envs] for key, value in spec.example_observation.items()}
    spec = dataclasses.replace(spec, num_envs=env.num_envs, example_observation=first)
    returns: dict[int, float] = defaultdict(float)
    lengths: dict[int, int] = defaultdict(int)
    ended: set[int] = set()
    next_s = time.monotonic() + _SAY_S
    # On busy cores, several threads would wait for one another after each operation.
    outer = Placement(worker=0, run_index=0, num_workers=1, **vars(of_evaluation(env.num_envs)))
    with single_threaded(), collectors.start_collector(cfg, policy, spec, outer=outer) as collector:
        while not ended.issuperset(range(episodes)):
            batch = next(collector)
            ids = batch["collector", "traj_ids"].reshape(-1)
            rewards = sum(batch["next", *leaf.key].double().reshape(len(ids), -1).sum(1) for leaf in spec.rewards)
            dones = batch["next", "done"].reshape(-1)
            # Trajectory n of env e has the id e + n * num_envs.
            for each, reward, done in zip(ids.tolist(), rewards.tolist(), dones.tolist(), strict=True):
                returns[each] += reward
                lengths[each] += 1
                if done:
                    ended.add(each)
            if max(lengths[each] for each in range(episodes)) > (cfg.eval.max_frames_per_episode or math.inf):
                raise EpisodeTooLongError(_too_long(cfg, ended, lengths))
            longest = max((lengths[each] for each in range(episodes) if each not in ended), default=0)
            if time.monotonic() > next_s:
                next_s += _SAY_S
                say(f"{_count(ended, episodes)}{f'; the longest of the others has {longest:,} frames' * bool(longest)}")
    returned, counts = [returns[each] for each in range(episodes)], [lengths[each] for each in range(episodes)]
    return Evaluation(returned, counts, counted.means())


def in_envs(
    cfg: RunConfig, spec: EnvSpec, limit: AbstractContextManager[None] | None = None
) -> tuple[RunConfig, EnvSpec]:
    """Returns the configuration for `evaluate`, whose `env` has the changes of `eval.env`, and the spec of its envs. If
    there are changes, makes and closes an env. Raises `ConfigError` if its spaces are not those of `spec`, for which
    the policy was built.

    Args:
        limit: limits the time in which the env is made; None: no limit.
    """
    changed = evaluated(cfg)
    if changed is cfg:
        return cfg, spec
    with limit or nullcontext():
        found = envs.read_spec(changed.env, is_user_policy(cfg.policy))
    _check_spaces(f"eval.env={shown_changes(cfg)}", spec, found)
    return changed, found


def check_of_spaces(run_folder: RunFolder, words: str) -> Callable[[Env], None]:
    """Returns a function that raises `ConfigError` if the spaces of an env are not those of a run's, which the
    overrides `words` replace. Makes and closes an env of the run; checks nothing if that fails, which may be why
    another one is used, or if there are no `words`."""
    if words:
        with suppress(Exception), env_limit(run := run_config(run_folder)):
            spec = envs.read_spec(run.env)
            return lambda group: _check_spaces(words, spec, group.spec, only_shapes=True)
    return lambda group: None


def _check_spaces(words: str, trained: EnvSpec, found: EnvSpec, only_shapes: bool = False) -> None:
    for name, ours, theirs in (
        ("observations", trained.observation_space, found.observation_space),
        ("actions", trained.action_space, found.action_space),
    ):
        if not _is_same(ours, theirs, only_shapes):
            old, new = (_short(ours), _short(theirs)) if _short(ours) != _short(theirs) else (ours, theirs)
            raise ConfigError(
                f"{words} cannot be used, because the policy was made for other {name}: "
                f"{old} in training, {new} in evaluations. Keep the env and the wrappers that define the space."
            )


def _short(space: Space) -> str:
    """Returns a space as text, a `Box` without its bounds: they are long, and its shape is at their end."""
    if isinstance(space, Box):
        return f"Box({space.shape}, {space.dtype})"
    if isinstance(space, Dict):
        return f"Dict({', '.join(f'{key}: {_short(each)}' for key, each in space.items())})"
    return str(space)


def shown_changes(cfg: RunConfig) -> str:
    """Returns the value of `eval.env`, with `${oc.env:NAME}` as written."""
    return YAML.show(as_written(cfg, is_escaped=False)["eval"]["env"])


def _is_same(ours: Space, theirs: Space, only_shapes: bool = False) -> bool:
    """Whether two spaces are equal; with `only_shapes`, whatever the bounds and dtypes of Box spaces are, and
    whatever further parts a Dict has, because a policy may ignore these. For one-hot leaves of TorchRL, a bare `Space`
    has the shape and dtype alone."""
    if only_shapes and isinstance(ours, Box) and isinstance(theirs, Box):
        return ours.shape == theirs.shape
    if type(ours) is type(theirs) is Space:
        return (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    if isinstance(ours, Dict) and isinstance(theirs, Dict):
        has_same = ours.keys() <= theirs.keys() if only_shapes else ours.keys() == theirs.keys()
        return has_same and all(_is_same(ours[key], theirs[key], only_shapes) for key in ours)
    return ours == theirs


def with_normalizers(cfg: RunConfig, statistics: Sequence[dict[str, Any]]) -> RunConfig:
    """Returns the configuration whose envs' wrappers have these statistics, and keep them; see
    `collectx.env.wrappers.statistics_of`. The envs are Gymnasium's."""
    assert isinstance(cfg.env, GymnasiumConfig)
    wrappers = [*cfg.env.wrappers, partial(with_statistics, statistics=statistics)]
    return dataclasses.replace(cfg, env=dataclasses.replace(cfg.env, wrappers=wrappers))


def _with_metrics(env: EnvConfig, metrics: InfoMetrics, episodes: int) -> EnvConfig:
    """Returns the configuration whose envs, in this process, add the infos of the evaluated episodes to `metrics`."""
    if not isinstance(env, GymnasiumConfig) or not env.metrics:
        return env
    # Episode n of env e has the number e + n * num_envs.
    of_each = -((np.arange(env.num_envs) - episodes) // env.num_envs)
    if isinstance(env, GymVectorEnvConfig):
        if env.is_batched:
            wrappers = [*env.wrappers, lambda made: CountedVector(made, metrics, of_each)]
            return dataclasses.replace(env, wrappers=wrappers, metrics=[])
        env = dataclasses.replace(env, vectorization_mode="sync")
    index = itertools.count()

    def counted(one: Any) -> Any:
        return CountedEpisodes(one, metrics, int(of_each[next(index)]))

    return dataclasses.replace(env, wrappers=[*env.wrappers, counted], metrics=[])


def _count(ended: set[int], episodes: int) -> str:
    return f"{len(ended.intersection(range(episodes)))} of {episodes} episodes have ended"


def _too_long(cfg: RunConfig, ended: set[int], lengths: Mapping[int, int]) -> str:
    limit = f"eval.max_frames_per_episode={cfg.eval.max_frames_per_episode}"
    longest = max(range(cfg.eval.episodes), key=lambda each: lengths[each])
    frames = f"{lengths[longest]:,} frames" + " without an end" * (longest not in ended)
    return (
        f"{_count(ended, cfg.eval.episodes)}, and one has {frames} ({limit}). End episodes after N frames with "
        "collector.max_frames_per_traj=N, or raise the limit."
    )


def with_video(cfg: RunConfig, folder: Path) -> RunConfig:
    """Returns the configuration whose envs write each episode to a video in `folder`. Raises
    `ConfigError` if the env cannot render, or the package moviepy is missing."""
    from gymnasium.wrappers import RecordVideo

    from collectx.env.gym_factory import env_factory

    env, episodes = cfg.env, cfg.eval.episodes
    if not isinstance(env, GymnasiumConfig) or (not isinstance(env, GymEnvConfig) and env.id is None):
        raise ConfigError(
            f"eval.video=true cannot be used with env={env.kind}, because only single Gymnasium envs render frames. "
            "Leave it out."
        )
    if find_spec("moviepy") is None:
        raise ConfigError("eval.video=true needs moviepy. Install it: pip install 'collectx[video]'")
    values = {field.name: getattr(env, field.name) for field in dataclasses.fields(GymEnvConfig)}
    values |= {"kind": "gym", "num_envs": 1, "kwargs": {**env.kwargs, "render_mode": "rgb_array"}}
    made = GymEnvConfig(**values)
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame prints an error of each other one
    with env_limit(cfg):
        _check_rendering(partial(env_factory(made), SPACES))

    def record(one: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*Overwriting existing videos")
            return RecordVideo(one, str(folder), episode_trigger=lambda episode: episode < episodes, name_prefix="eval")

    return dataclasses.replace(cfg, env=dataclasses.replace(made, wrappers=[*made.wrappers, record]))


def _check_rendering(make: Callable[[], Any]) -> None:
    try:
        env = make()
        try:
            env.reset(seed=0)
            frame = env.render()
        finally:
            env.close()
    except Exception as error:
        why, advice = summary_of(error).rstrip("."), advice_on_display(error)
        if isinstance(error, TypeError) and "'render_mode'" in str(error):
            advice = "give your env's constructor a parameter render_mode=None"
        if isinstance(error, NotImplementedError) and not str(error):
            advice = (
                "write one that returns an RGB array [H, W, 3], and add metadata = {'render_modes': ['rgb_array']} to "
                "the class"
            )
            why = f"{type(env.unwrapped).__name__} has no render()"
        raise ConfigError(
            f"eval.video=true cannot be used, because the env cannot render: {why}."
            + (f" {advice[0].upper()}{advice[1:]}." if advice else "")
        ) from error
    if np.ndim(frame) != 3:
        modes = env.metadata.get("render_modes")
        raise ConfigError(
            "eval.video=true cannot be used, because the env renders no image with render_mode=rgb_array. (Its render "
            f"modes are {modes}.) Leave it out, or let render() return an image [H, W, 3]."
        )
