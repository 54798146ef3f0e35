"""Parses a constructor's keywords into specs, and describes the constructor by its specs."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from collectx.config.check import check_option
from collectx.config.problem import PYTHON, Problem

Spec = TypeVar("Spec")
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


class KeywordParser:
    """Parses the keyword arguments of one call, spec by spec.

    Attributes:
        problems: messages about values of a wrong type or out of range, for which the spec has the default.
    """

    def __init__(self, name: str, keywords: dict[str, Any]):
        self._name = name
        self._left = dict(keywords)
        self._known: list[str] = []
        self.problems: list[str] = []

    def parse(self, spec_class: type[Spec]) -> Spec:
        """Returns the spec with the keywords that are its fields."""
        values = {}
        for field in dataclasses.fields(spec_class):  # type: ignore[arg-type]
            self._known.append(field.name)
            if field.name not in self._left:
                continue
            value = check_option(
                field.name, self._left.pop(field.name), _hints(spec_class)[field.name], field.metadata, PYTHON
            )
            if isinstance(value, Problem):
                self.problems.append(value.text(PYTHON))
            else:
                values[field.name] = value
        return spec_class(**values)

    def finish(self) -> None:
        """Checks that every keyword was parsed.

        Raises:
            TypeError: a keyword is in no spec. Those of `REFUSED_KEYWORDS` may be None or False.
        """
        unknown = []
        for name, value in self._left.items():
            near = difflib.get_close_matches(name, self._known, 1)
            if name not in REFUSED_KEYWORDS:
                unknown.append(f"{name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
            elif value is not None and value is not False:
                unknown.append(f"{name!r} (of TorchRL's, not taken here: {REFUSED_KEYWORDS[name]})")
        if unknown:
            raise TypeError(
                f"{self._name}() got an unexpected keyword argument {', '.join(unknown)}; "
                f"it takes {', '.join(self._known)}"
            )


_BY_THE_CLASS = "use the class of that meaning, as MultiSyncCollector or DistributedCollector"

# Keywords of TorchRL's collectors that some of ours do not take, with the reason or a replacement.
REFUSED_KEYWORDS = {
    "backend": _BY_THE_CLASS,
    "backend_options": _BY_THE_CLASS,
    "num_collectors": _BY_THE_CLASS,
    "sync": _BY_THE_CLASS,
    "collector_class": "workers of this machine always are single collectors",
}


def described(*specs: type) -> Callable[[type], type]:
    """Decorates a collector class: its constructor takes the fields of `specs` as keyword arguments, and its signature
    and docstring list them."""

    def decorate(cls: type) -> type:
        keyword_only = [
            each for each in inspect.signature(cls).parameters.values() if each.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        parameters = [inspect.Parameter("self", _POSITIONAL)]
        for field in (field for spec in specs for field in dataclasses.fields(spec)):
            kind = _POSITIONAL if field.name in ("create_env_fn", "policy") else inspect.Parameter.KEYWORD_ONLY
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=field.type))
        cls._specs = specs  # type: ignore[attr-defined]
        cls.__init__.__signature__ = inspect.Signature([*parameters, *keyword_only])  # type: ignore[misc]
        arguments = "\n".join(filter(None, map(_arguments, specs)))
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\nArgs:\n{arguments}"
        return cls

    return decorate


def _arguments(spec: type) -> str:
    """The documentation of the fields, those of base classes first."""
    texts = (inspect.cleandoc(each.__doc__ or "").partition("Args:\n")[2] for each in reversed(spec.__mro__))
    return "\n".join(text.rstrip() for text in texts if text)


_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
