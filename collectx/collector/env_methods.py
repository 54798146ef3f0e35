"""The methods by which a trainer or a script changes and reads the envs in its workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from collectx.collector.collector import CollectorCore
from collectx.config.problem import counted
from collectx.worker.env_settings import contents_of_each

_T = TypeVar("_T")


class EnvMethods(ABC):
    """Changes and reads the envs of all workers while they run. The methods have the names of Gymnasium's vector envs.

    A change is a *setting*. It takes effect in each worker between two batches. A call blocks until the workers have
    completed the batches that they had begun, so do not change a setting for every batch. It also waits until as many
    workers are ready as the next batch needs (`min_workers`). Each setting has a version: from the first setting on,
    every frame contains it as `("collector", "settings_version")`. The last setting of each attribute and method stays
    in force: workers that start, restart or resume later get it, and then begin new episodes. So a method should set a
    state ("set_level"), not change it ("next_level").

    Arguments and results must be data that can be sent over a network: numbers, strings, None, tensors, NumPy arrays,
    and dicts, lists and tuples of these.

    Raises:
        TypeError: an argument or a result is not such data.
        NotImplementedError: the workers run collectors, or their envs do not support the call.
        Exception: an env raised this. Other envs keep the setting; workers that start later do not get it.

    Examples:
        >>> make_env = lambda: gymnasium.make("Pendulum-v1")
        >>> with MultiSyncCollector(
        ...     [make_env] * 2, frames_per_batch=64, total_frames=64
        ... ) as collector:
        ...     collector.set_attr("g", 1.62)
        ...     collector.get_attr("g")
        (1.62, 1.62)
    """

    @abstractmethod
    def _with_core(self, use: Callable[[CollectorCore], _T]) -> _T:
        """Calls `use` with the collector, while no other thread uses it."""

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every env, or of one of its wrappers. Returns the results in the order of the envs; None
        for a result that is not data, and for the envs of a worker that is lost meanwhile."""
        results = self._with_core(lambda core: core.change("call", name, [(args, kwargs)]))
        return tuple(chain.from_iterable(results.values()))

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every env, or of the wrapper that defines it.

        Args:
            values: one value for all envs, or a list or tuple with one value per env. It may cover the envs of all
                workers, including those that are starting or lost. Or it covers only the envs that `get_attr` reads;
                then a worker that starts later takes the values of one of their workers.

        Raises:
            AttributeError: an env lacks the attribute.
            ValueError: the list has another length.
        """

        def set_values(core: CollectorCore) -> None:
            is_each = isinstance(values, list | tuple)
            core.change("set_attr", name, _by_worker(core, name, values) if is_each else [(False, values)])

        self._with_core(set_values)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns an attribute of every env, or of the wrapper that defines it, in the order of the envs."""
        replies = self._with_core(lambda core: core.get_attr(name))
        return tuple(chain.from_iterable(replies[worker] for worker in sorted(replies)))

    def set_reset_options(self, options: Mapping[str, Any] | None) -> None:
        """Sets `options` of all later resets (`env.reset_options`); None: no options. To begin new episodes at once,
        also reset the collector.

        Raises:
            NotImplementedError: the envs take no options, or a library resets them without any.
            TypeError: `options` is neither a mapping nor None.
        """
        if not isinstance(options, Mapping | None):
            raise TypeError(f"set_reset_options() needs a dict, such as {{'level': 3}}, or None, but got {options!r}")
        content = None if options is None else dict(options)
        self._with_core(lambda core: core.change("reset_options", "", [content]))


def _by_worker(core: CollectorCore, name: str, values: Sequence[Any]) -> list[tuple[bool, list[Any]]]:
    """Returns the content for each started worker of a setting that gives every env its own value."""
    ready, rows, num_envs = core.worker_indices, core.envs_per_worker, core.num_envs
    contents = contents_of_each(values, rows)
    if len(values) == num_envs:
        return contents
    if not ready or len(values) != len(ready) * rows:
        raise ValueError(
            f"set_attr({name!r}) got {counted(len(values), 'value')} for {counted(num_envs, 'env')}. Pass one value "
            f"per env. If the list itself is the value, pass [values] * {num_envs}."
        )
    others = [contents[worker % len(ready)] for worker in range(num_envs // rows)]
    return [dict(zip(ready, contents, strict=True)).get(worker, other) for worker, other in enumerate(others)]
