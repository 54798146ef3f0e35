"""Whether keyword arguments are of the types that the specs' fields say. Used where the specs are made, so that their
own checks, of values, see nothing else."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def _is_int(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_bool(value: Any) -> bool:
    return value is None or isinstance(value, bool | np.bool_)


# By the words of a field's annotation: what is let in, and how it is told. A field with another word is not looked at.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_is_int, "an int"),
    "float": (lambda value: isinstance(value, numbers.Real) and not isinstance(value, bool), "a number"),
    "bool": (_is_bool, "True or False"),
    "str": (lambda value: isinstance(value, str), "a string"),
    "Sequence[int]": (lambda value: isinstance(value, list | tuple) and all(map(_is_int, value)), "a list of ints"),
    "Sequence[str]": (
        lambda value: isinstance(value, list | tuple) and all(isinstance(one, str) for one in value),
        "a list of strings",
    ),
    "Mapping[str, Any]": (lambda value: isinstance(value, Mapping), "a dict"),
    "None": (lambda value: value is None, "None"),
}


def typed(kind: type, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Those that are of their fields' types, and what is wrong with the others. A whole number that came as a float
    (1e6) is an int, and so are numpy's; 0 or 1 is a bool.

    Args:
        kind: a spec, whose annotations are strings.
    """
    right, problems = {}, []
    for field in dataclasses.fields(kind):
        if field.name not in given:
            continue
        value = given[field.name]
        kinds = [_KINDS.get(word) for word in str(field.type).split(" | ")]
        known = [each for each in kinds if each is not None]
        if len(known) == len(kinds) and not any(is_one(value) for is_one, _ in known):
            if known[0][0] is _is_int and isinstance(value, float) and value.is_integer():
                value = int(value)
            elif known[0][0] is _is_bool and _is_int(value) and value in (0, 1):
                value = bool(value)
            else:
                told = " or ".join(name for _, name in known)
                problems.append(f"{field.name}={value!r}: must be {told}.")
                continue
        right[field.name] = value.item() if isinstance(value, np.bool_ | np.number) else value
    return right, problems
