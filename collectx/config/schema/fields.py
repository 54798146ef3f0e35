"""Defines options: type, default, meaning, range and marks are all in the dataclass field.

`make config` writes the commented files of `conf/` from the fields; the JSON schema, `collectx list`, the reference and
the keywords of the Python classes are made from them too.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import field, is_dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, get_args

BITS = 63
"""Integers are below 2**63, unless the option sets another limit: tensors and files hold no larger ones."""

ABSENT: Any = object()
"""Stands for the default of an option that must be given."""


class Unset(AttributeError):
    """Code read an option that had failed its check; see `incomplete`."""


class Section:
    """Base class of the configuration's dataclasses."""

    if not TYPE_CHECKING:  # mypy would take any attribute for one

        def __getattr__(self, name: str) -> Any:
            # A property that reads a missing option is missing too.
            is_option = any(each.name == name for each in dataclasses.fields(self)) or hasattr(type(self), name)
            raise (Unset if is_option else AttributeError)(f"{type(self).__name__} has no {name}")


AnySection = TypeVar("AnySection", bound=Section)


def incomplete(cls: type[AnySection], **values: Any) -> AnySection:
    """Returns a section that contains only these options: reading another one raises `Unset`."""
    section = cls.__new__(cls)
    vars(section).update(values)
    return section


def section_of(hint: Any) -> Any:
    """Returns the dataclass of an option that is a section, or that may be null instead; None for other options."""
    return next((each for each in (hint, *get_args(hint)) if is_dataclass(each)), None)


class Limits(TypedDict, total=False):
    """Range and marks of an option. The limits of numbers apply to every entry of a list.

    Attributes:
        minimum, maximum: the bounds, both included.
        above: a bound, excluded.
        finite: whether infinity is refused.
        bits: the value, an integer, is below 2**bits.
        also: values outside of the range that are accepted too, such as -1 for no limit.
        choices: the words that are accepted.
        kept: the option is fixed on resume, because the saved state was made for its value.
        movable: the option, or a text in it, may name a place. A snapshot keeps `${oc.env:NAME}` in it as written, and
            `run.moved` permits other texts on resume.
        without_effect: the option or section does not change the content of batches: a resume may change it, and
            `reproduce` still repeats all batches.
    """

    minimum: float
    maximum: float
    above: float
    finite: bool
    bits: int
    also: Sequence[float]
    choices: Sequence[str]
    kept: bool
    movable: bool
    without_effect: bool


def option(default: Any, text: str, **limits: Unpack[Limits]) -> Any:
    """Returns the dataclass field of an option. `text` says what the option means, in sentences. In it, `null`, `true`
    and `false` stand between backticks (`collectx.config.problem.described`)."""
    metadata = {"text": " ".join(text.split()), **limits}
    if default is ABSENT:
        return field(metadata=metadata)
    # `default=` would stay as a class attribute, so an option that failed its check would show its default.
    return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)


def required(text: str, **limits: Unpack[Limits]) -> Any:
    """Returns the field of an option that must be given."""
    return option(ABSENT, text, **limits)


def section(cls: type, text: str = "", **limits: Unpack[Limits]) -> Any:
    """Returns the field of a section within a section; its omitted options take their defaults."""
    return field(default_factory=cls, metadata={"text": text, **limits})


def like(cls: Any, name: str, text: str | None = None, default: Any = ...) -> Any:
    """Returns the field of the option `name` of another dataclass, with another text or default."""
    base = cls.__dataclass_fields__[name]
    metadata = {**base.metadata, "text": text or base.metadata["text"]}
    return option(default_of(base) if default is ... else default, **metadata)


def default_of(option: dataclasses.Field) -> Any:
    """Returns the default of an option; ABSENT if it must be given."""
    if option.default_factory is not dataclasses.MISSING:
        return option.default_factory()
    return ABSENT if option.default is dataclasses.MISSING else option.default
