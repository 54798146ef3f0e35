"""Keywords are taken by specs, and specs describe a constructor."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from collectx.library.keywords.check import typed

Spec = TypeVar("Spec")


class Keywords:
    """The keyword arguments of one call, until all are taken.

    Attributes:
        problems: of those that were taken, which are of a wrong type; their specs have the defaults.
    """

    def __init__(self, name: str, keywords: dict[str, Any]):
        self._name = name
        self._left = dict(keywords)
        self._known: list[str] = []
        self.problems: list[str] = []

    def take(self, kind: type[Spec]) -> Spec:
        """The spec made of those that are its fields."""
        names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
        self._known += names
        right, problems = typed(kind, {name: self._left.pop(name) for name in names if name in self._left})
        self.problems += problems
        return kind(**right)

    def end(self) -> None:
        """
        Raises:
            TypeError: some are left that no spec has, but for those of `REFUSED` that are None or False.
        """
        told = []
        for name, value in self._left.items():
            near = difflib.get_close_matches(name, self._known, 1)
            if name not in REFUSED:
                told.append(f"{name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
            elif value is not None and value is not False:
                told.append(f"{name!r} (of TorchRL's, not taken here: {REFUSED[name]})")
        if told:
            raise TypeError(
                f"{self._name}() got an unexpected keyword argument {', '.join(told)}; "
                f"it takes {', '.join(self._known)}"
            )


_BY_THE_CLASS = "use the class of that meaning, as MultiSyncCollector or DistributedCollector"

# Keywords of TorchRL's collectors that some of ours do not take, and why or what to do instead.
REFUSED = {
    "backend": _BY_THE_CLASS,
    "backend_options": _BY_THE_CLASS,
    "num_collectors": _BY_THE_CLASS,
    "sync": _BY_THE_CLASS,
    "collector_class": "workers of this machine always are single collectors",
}


def described(*specs: type) -> Callable[[type], type]:
    """A decorator of a collector whose constructor takes the fields of these specs as keyword arguments: it is told
    which, and its signature and docstring say so."""

    def decorate(cls: type) -> type:
        fields = [field for spec in specs for field in dataclasses.fields(spec)]
        own = [
            each for each in inspect.signature(cls).parameters.values() if each.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        for field in fields:
            place = _POSITIONAL if field.name in ("create_env_fn", "policy") else inspect.Parameter.KEYWORD_ONLY
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            parameters.append(inspect.Parameter(field.name, place, default=default, annotation=field.type))
        parameters += [each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY]
        cls._specs = specs  # type: ignore[attr-defined]
        cls.__init__.__signature__ = inspect.Signature(parameters)  # type: ignore[misc]
        told = [_arguments(spec) for spec in specs]
        cls.__doc__ = "\n\n".join([inspect.cleandoc(cls.__doc__ or ""), "Args:\n" + "\n".join(filter(None, told))])
        return cls

    return decorate


def _arguments(spec: type) -> str:
    """What the docstring says about the fields, after those of the classes that it is made from."""
    texts = (inspect.cleandoc(each.__doc__ or "").partition("Args:\n")[2] for each in reversed(spec.__mro__))
    return "\n".join(text.rstrip() for text in texts if text)


_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
