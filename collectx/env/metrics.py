"""Means of `info` entries (`env.metrics`), which batches do not contain. A worker adds up the entries of each step, and
reports the sums with each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from collectx.config.problem import setting
from collectx.errors import ShapeError


class InfoMetrics:
    """Sums and counts of `info` entries over the frames of an env group.

    A frame counts if its `info` contains the entry as a finite number, or as an array, of which the mean counts. Infos
    of `reset` do not count. `names` are keys of `info`; `episode.l` is `info["episode"]["l"]`."""

    def __init__(self, names: Sequence[str]):
        self._paths = [(name, tuple(name.split("."))) for name in names]
        self._totals = np.zeros((2, len(names)))

    def step(self, step: Callable[[Any], tuple[Any, ...]], action: Any) -> tuple[Any, ...]:
        """Calls the `step` of a single env, adds its info, and returns its result."""
        result = step(action)
        self.add(result[-1])
        return result

    def add(self, info: Mapping[str, Any]) -> None:
        """Adds the info of a frame of one env."""
        for i, (name, path) in enumerate(self._paths):
            value: Any = info
            for part in path:
                if not isinstance(value, Mapping) or part not in value:
                    break
                value = value[part]
            else:
                self._add(i, name, value)

    def add_vector(self, info: Mapping[str, Any], frames: np.ndarray) -> None:
        """Adds the info of a step of a vector env. `frames`, `[E]` bool, are the envs for which the step was a
        frame."""
        for i, (name, path) in enumerate(self._paths):
            value, mask = _entry(info, path, frames)
            if mask.any():
                self._add(i, name, np.asarray(value)[mask].tolist(), per_env=True)

    def add_same_step(self, info: Mapping[str, Any], ended: np.ndarray, frames: np.ndarray) -> None:
        """Adds the info of a step of a vector env in SAME_STEP mode in which envs have ended, `[E]` bool. The entry of
        an ended env is in its final info; or in `info`, if a wrapper of the vector env has added it
        (`InfoKeys.first_and_final_values`). `frames` as for `add_vector`."""
        final = info.get("final_info", {})
        self.add_vector(final, ended & frames)
        for i, (name, path) in enumerate(self._paths):
            value, mask = _entry(info, path, frames)
            mask &= ~_entry(final, path, ended)[1]
            if mask.any():
                self._add(i, name, np.asarray(value)[mask].tolist(), per_env=True)

    def take(self) -> np.ndarray:
        """Returns the sums and counts since the last call, `[2, metrics]` float64. The caller owns them."""
        totals, self._totals = self._totals, np.zeros_like(self._totals)
        return totals

    def means(self) -> dict[str, float]:
        """Returns the mean of each entry that occurred since the last `take`, by name."""
        sums, counts = self._totals.tolist()
        names = (name for name, _ in self._paths)
        return {name: total / count for name, total, count in zip(names, sums, counts, strict=True) if count}

    def _add(self, i: int, name: str, value: Any, per_env: bool = False) -> None:
        try:
            numbers = np.asarray(value, float) if not isinstance(value, str) else None
        except (TypeError, ValueError):
            numbers = None
        if numbers is None:
            raise ShapeError(
                f"{setting('env.metrics')} cannot average {name!r}, because its value {value!r:.100} is neither a "
                f"number nor an array. Remove it from {setting('env.metrics')}."
            )
        if numbers.size:
            values = numbers.reshape(len(numbers) if per_env else 1, -1).mean(1)
            values = values[np.isfinite(values)]
            self._totals[:, i] += values.sum(), len(values)


class CountedEpisodes(gymnasium.Wrapper):
    """Adds the infos of the first `episodes` episodes of an env to `metrics`, which several envs may share."""

    def __init__(self, env: gymnasium.Env, metrics: InfoMetrics, episodes: int):
        super().__init__(env)
        self._metrics, self._left = metrics, episodes + 1

    def reset(self, **kwargs: Any) -> Any:
        self._left -= 1
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        return self._metrics.step(self.env.step, action) if self._left > 0 else self.env.step(action)


class CountedVector(VectorWrapper):
    """`CountedEpisodes` for a vector env. `episodes` says how many episodes of each env count, `[E]`."""

    def __init__(self, env: VectorEnv, metrics: InfoMetrics, episodes: np.ndarray):
        super().__init__(env)
        self._metrics, self._left = metrics, episodes + 1
        # Whose episode has ended, so that it needs a reset.
        self._ended = np.zeros(len(episodes), bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        chosen = (options or {}).get("reset_mask", np.ones_like(self._ended))
        self._left -= chosen & ~self._ended
        self._ended = self._ended & ~chosen
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        result = self.env.step(actions)
        info, ended = result[-1], np.logical_or(result[2], result[3])
        if "final_obs" in info:  # in SAME_STEP mode, the ended envs have begun their next episodes
            self._metrics.add_same_step(info, ended, self._left > 0)
        else:  # in NEXT_STEP mode, the step of an ended env is its reset
            self._metrics.add_vector(info, (self._left > 0) & ~self._ended)
            self._ended = ended
        self._left -= ended
        return result


def _entry(info: Mapping[str, Any], path: Sequence[str], envs: np.ndarray) -> tuple[Any, np.ndarray]:
    """Returns the part of a vector env's info at `path`, and which of `envs` have it, `[E]` bool."""
    value: Any = info
    mask = envs.copy()
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return None, np.zeros_like(mask)
        mask &= np.asarray(value.get(f"_{part}", True), bool)
        value = value[part]
    return value, mask
