"""Means of `info` entries (`env.metrics`), which batches do not contain. A worker adds up the entries of the last steps
of episodes, or of all steps for `step_mean/NAME`, and reports the sums with each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from collectx.errors import DataError

# The prefix of a metric that is a mean over steps, not over episodes.
STEP_MEAN = "step_mean/"
# The index of a metric, its name, and the path of its entry in `info`.
_Entry = tuple[int, str, tuple[str, ...]]


class InfoMetrics:
    """Sums and counts of `info` entries over the episodes of an env group, or over its frames.

    An episode counts if the `info` of its last frame contains the entry as a finite number, or as an array, of which
    the mean counts. An episode that is cut before its env ends it counts too, with its last frame so far. Infos of
    `reset` do not count. `names` are keys of `info`; `episode.l` is `info["episode"]["l"]`; `step_mean/speed` is the
    mean of `info["speed"]` over all frames."""

    def __init__(self, names: Sequence[str]):
        entries = [(i, name, tuple(name.removeprefix(STEP_MEAN).split("."))) for i, name in enumerate(names)]
        self._names = names
        self._of_steps = [each for each in entries if each[1].startswith(STEP_MEAN)]
        self._of_ends = [each for each in entries if not each[1].startswith(STEP_MEAN)]
        self._totals = np.zeros((2, len(names)))
        # The infos of the last steps of unfinished episodes, by the key of their env; None for a vector env.
        self._last: dict[Hashable, Mapping[str, Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Only steps and cuts of one batch use these infos, which may be large.
        return vars(self) | {"_last": {}}

    def step(self, key: Hashable, step: Callable[[Any], tuple[Any, ...]], action: Any) -> tuple[Any, ...]:
        """Calls the `step` of the single env with this key, adds its info, and returns its result."""
        result = step(action)
        info = result[-1]
        self._add_info(self._of_steps, info)
        if result[2] or result[3]:
            self._last.pop(key, None)
            self._add_info(self._of_ends, info)
        else:
            self._last[key] = info
        return result

    def cut(self, key: Hashable) -> None:
        """Counts the episode of a single env that is reset before it ends. Does nothing if it has ended."""
        if (info := self._last.pop(key, None)) is not None:
            self._add_info(self._of_ends, info)

    def add_vector(self, info: Mapping[str, Any], ended: np.ndarray, frames: np.ndarray) -> None:
        """Adds the info of a step of a vector env. `frames`, `[E]` bool, are the envs for which the step was a frame,
        and `ended` those whose episode it has ended."""
        self._last[None] = info
        self._add_masked(self._of_steps, info, frames)
        self._add_masked(self._of_ends, info, ended & frames)

    def add_same_step(self, info: Mapping[str, Any], ended: np.ndarray, frames: np.ndarray) -> None:
        """Adds the info of a step of a vector env in SAME_STEP mode in which envs have ended, `[E]` bool. The entry of
        an ended env is in its final info; or in `info`, if a wrapper of the vector env has added it
        (`InfoKeys.first_and_final_values`). `frames` as for `add_vector`."""
        self._last[None] = info
        final = info.get("final_info", {})
        for entries, envs in ((self._of_steps, frames), (self._of_ends, ended & frames)):
            self._add_masked(entries, final, ended & envs)
            for entry in entries:
                in_final = _entry(final, entry[2], ended)[1]
                self._add_masked([entry], info, envs & ~in_final)

    def cut_envs(self, envs: np.ndarray) -> None:
        """Counts the episodes of a vector env, `[E]` bool, that are reset before they end."""
        if (info := self._last.get(None)) is not None:
            self._add_masked(self._of_ends, info, envs)

    def take(self) -> np.ndarray:
        """Returns the sums and counts since the last call, `[2, metrics]` float64. The caller owns them."""
        totals, self._totals = self._totals, np.zeros_like(self._totals)
        return totals

    def means(self) -> dict[str, float]:
        """Returns the mean of each entry that occurred since the last `take`, by name."""
        sums, counts = self._totals.tolist()
        return {name: total / count for name, total, count in zip(self._names, sums, counts, strict=True) if count}

    def _add_info(self, entries: Iterable[_Entry], info: Mapping[str, Any]) -> None:
        for i, name, path in entries:
            value: Any = info
            for part in path:
                if not isinstance(value, Mapping) or part not in value:
                    break
                value = value[part]
            else:
                self._add(i, name, value)

    def _add_masked(self, entries: Iterable[_Entry], info: Mapping[str, Any], envs: np.ndarray) -> None:
        for i, name, path in entries:
            value, mask = _entry(info, path, envs)
            if mask.any():
                self._add(i, name, np.asarray(value)[mask].tolist(), per_env=True)

    def _add(self, i: int, name: str, value: Any, per_env: bool = False) -> None:
        try:
            numbers = np.asarray(value, float) if not isinstance(value, str) else None
        except (TypeError, ValueError):
            numbers = None
        if numbers is None:
            raise DataError(
                f"env.metrics cannot average {name!r}, because its value {value!r:.100} is neither a number nor an "
                "array. Remove it from env.metrics."
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
        self._metrics.cut(self)
        self._left -= 1
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        return self._metrics.step(self, self.env.step, action) if self._left > 0 else self.env.step(action)


class CountedVector(VectorWrapper):
    """`CountedEpisodes` for a vector env. `episodes` says how many episodes of each env count, `[E]`."""

    def __init__(self, env: VectorEnv, metrics: InfoMetrics, episodes: np.ndarray):
        super().__init__(env)
        self._metrics, self._left = metrics, episodes + 1
        # Whose episode has ended, so that it needs a reset.
        self._ended = np.zeros(len(episodes), bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        chosen = (options or {}).get("reset_mask", np.ones_like(self._ended))
        self._metrics.cut_envs(chosen & ~self._ended & (self._left > 0))
        self._left -= chosen & ~self._ended
        self._ended = self._ended & ~chosen
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        result = self.env.step(actions)
        info, ended = result[-1], np.logical_or(result[2], result[3])
        if "final_obs" in info:  # in SAME_STEP mode, the ended envs have begun their next episodes
            self._metrics.add_same_step(info, ended, self._left > 0)
        else:  # in NEXT_STEP mode, the step of an ended env is its reset
            self._metrics.add_vector(info, ended, (self._left > 0) & ~self._ended)
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
