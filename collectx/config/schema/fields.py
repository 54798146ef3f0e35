"""Base class of all sections of a configuration, and the range or the choices of an option as metadata of its field.

The documentation of options, and their defaults except for empty lists and mappings, are in the YAML files of
`collectx.conf`.
"""

from __future__ import annotations

import math
from dataclasses import field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_args

BITS = 63
"""Every integer is below 2**63, unless its option has another limit: tensors and files have no larger ones."""


class Unset(AttributeError):
    """An option was read that failed its check; see `incomplete`."""


class Section:
    """Base class of the configuration's dataclasses."""

    if not TYPE_CHECKING:  # mypy would take any attribute for one

        def __getattr__(self, name: str) -> Any:
            # A property is not there either where it needs an option that is not.
            is_option = any(each.name == name for each in fields(self)) or hasattr(type(self), name)
            raise (Unset if is_option else AttributeError)(f"{type(self).__name__} has no {name}")


AnySection = TypeVar("AnySection", bound=Section)


def incomplete(cls: type[AnySection], **values: Any) -> AnySection:
    """A section with these options alone: reading another one raises `Unset`."""
    section = cls.__new__(cls)
    vars(section).update(values)
    return section


def section_of(hint: Any) -> Any:
    """The dataclass of an option that is a section, also of one that may be null; None if it is no section."""
    return next((each for each in (hint, *get_args(hint)) if is_dataclass(each)), None)


def at_least(minimum: float, finite: bool = False) -> Any:
    """A number, or a list of numbers, none below `minimum`; with `finite`, not infinity."""
    return field(metadata={"minimum": minimum} | ({"below": math.inf} if finite else {}))


def above(bound: float, finite: bool = False) -> Any:
    """A number greater than `bound`; with `finite`, not infinity."""
    return field(metadata={"above": bound} | ({"below": math.inf} if finite else {}))


def within(minimum: float, maximum: float) -> Any:
    """A number from `minimum` to `maximum`, both included."""
    return field(metadata={"minimum": minimum, "maximum": maximum})


def count_or_endless() -> Any:
    """A positive count, or -1 for no end."""
    return field(metadata={"minimum": 1, "also": (-1,)})


def unsigned(bits: int) -> Any:
    """An integer from 0, below 2**bits."""
    return field(metadata={"minimum": 0, "bits": bits})


def one_of(*names: str) -> Any:
    """One of these words."""
    return field(metadata={"choices": names})


def kept(option: Any = None) -> Any:
    """An option that a resume may not change: the saved state was made for its value."""
    return _marked(option, "is_kept")


def without_effect(option: Any = None) -> Any:
    """An option or a section that does not change the content of batches: a resume may change it, and `reproduce` still
    repeats all batches."""
    return _marked(option, "is_without_effect")


def _marked(option: Any, mark: str) -> Any:
    option = field() if option is None else option
    defaults = {"default": option.default, "default_factory": option.default_factory}
    return field(**defaults, metadata={**option.metadata, mark: True})
