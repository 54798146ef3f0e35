"""The methods by which a trainer or a script changes the envs of its workers, and reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, TypeVar

from collectx.collector.collector import CollectorCore
from collectx.worker.env_settings import contents_of_each

_T = TypeVar("_T")


class EnvMethods(ABC):
    """Changes and reads the envs of all workers while they run, by the names of Gymnasium's vector envs.

    A change is a *setting*: it takes effect in each worker after the parts of batches that were granted before, and
    before the next one. Each call waits for these parts, so make settings between batches and not in every one. A
    setting has a version, which frames carry as `("collector", "settings_version")` from the first setting on, and is
    an event of the run. Of each attribute and each method, the last setting is in force: replaced, late and resumed
    workers get it, and then begin new episodes. So methods should set a state ("set_level"), not change it
    ("next_level").

    Arguments and results are numbers, strings, None, tensors, NumPy arrays, and dicts, lists and tuples of these, as
    they travel over networks too.

    Raises (all methods):
        TypeError: an argument or the result is no such data.
        NotImplementedError: the workers run collectors, or their envs cannot do this.
        Exception: what an env raised; settings of other envs are not taken back, but no worker gets this one later.
    """

    @abstractmethod
    def _with_core(self, use: Callable[[CollectorCore], _T]) -> _T:
        """Calls `use` with the collector while nobody else uses it."""

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Calls a method of every env, or of one of its wrappers. Returns the results in the order of the envs; None
        for a result that is no data, and for the envs of a worker that is lost meanwhile."""
        results = self._with_core(lambda core: core.change("call", name, [(args, kwargs)]))
        return tuple(chain.from_iterable(results.values()))

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every env, or of the wrapper that has it.

        Args:
            values: a list or tuple with a value for each env of the run; or one value for all.

        Raises:
            AttributeError: an env lacks the attribute.
            ValueError: the list has another length.
        """

        def set_values(core: CollectorCore) -> None:
            each = [(False, values)]
            if isinstance(values, list | tuple):
                if len(values) != core.num_envs:
                    raise ValueError(f"set_attr({name!r}): got {len(values)} values for {core.num_envs} envs")
                each = contents_of_each(values, core.rows_per_worker)
            core.change("set_attr", name, each)

        self._with_core(set_values)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns an attribute of every env, or of the wrapper that has it, in the order of the envs."""
        replies = self._with_core(lambda core: core.get_attr(name))
        return tuple(chain.from_iterable(replies[worker] for worker in sorted(replies)))

    def set_reset_options(self, options: Mapping[str, Any] | None) -> None:
        """Sets `options` of all later resets (`env.reset_options`); None: resets without options. To begin new
        episodes with them at once, reset the collector.

        Raises:
            NotImplementedError: the envs take no options, or reset themselves.
        """
        content = None if options is None else dict(options)
        self._with_core(lambda core: core.change("reset_options", "", [content]))
