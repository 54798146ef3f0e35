"""Checks the type and the range of one value, from YAML or from Python."""

from __future__ import annotations

import math
import operator
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from collectx.config.problem import PYTHON, YAML, Language, either, nearest
from collectx.config.schema.fields import BITS

_SCALARS = (bool, int, float, str)
_LISTS = (list, Sequence)
_MAPPINGS = (dict, Mapping)
_LIMITS = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "above": operator.gt,
    "finite": lambda number, _: number < math.inf,
    "bits": lambda number, bits: number < 2**bits,
}
_WORDS = {
    "above": "greater than {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "finite": "finite",
    "bits": "below 2**{}",
}


def convert(value: Any, hint: Any, language: Language = YAML) -> Any:
    """Returns `value` converted to the type `hint`. Types other than numbers, bools, texts, lists and mappings are not
    checked.

    1e6 is an integer, 2.5 is not. In YAML "8" is accepted as a number and 3 as a text, as environment variables and
    unquoted names give them. In Python, numbers and bools may be numpy's, and 0, 1 and None are accepted as bools.
    Raises `ValueError`, `TypeError` or `OverflowError` if `value` is of another type."""
    if language is PYTHON and type(value).__module__ == "numpy" and hasattr(value, "item") and not value.shape:
        value = value.item()
    kinds = members(hint)
    if not all(_is_checked(kind) for kind in kinds):
        return value
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        try:
            return _convert(value, kind, language)
        except (TypeError, ValueError):
            continue
    raise TypeError


def _convert(value: Any, hint: Any, language: Language) -> Any:
    origin = typing.get_origin(hint) or hint
    if origin in _LISTS:
        if not isinstance(value, list | tuple):
            raise TypeError
        return [convert(item, typing.get_args(hint)[0], language) for item in value]
    if origin in _MAPPINGS:
        if not isinstance(value, Mapping):
            raise TypeError
        return value
    if hint is bool:
        if language is PYTHON and (value is None or (isinstance(value, int) and value in (0, 1))):
            return bool(value)
        if not isinstance(value, bool):
            raise TypeError
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or hint not in _SCALARS:
        raise TypeError
    if not language.reads_text and isinstance(value, str) is not (hint is str):
        raise TypeError
    if hint is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    number = hint(value)
    if number != number:  # NaN
        raise ValueError
    return number


def describe(hint: Any, language: Language = YAML) -> str:
    """Returns a type in words, such as "an integer or null"."""
    names = dict.fromkeys(_describe(member, language) for member in members(hint))
    return " or ".join(names)


def _describe(hint: Any, language: Language) -> str:
    origin = typing.get_origin(hint) or hint
    if hint is type(None):
        return language.null
    if origin in _LISTS:
        (item,) = typing.get_args(hint)
        if item is Any:
            return "a list"
        # "an integer" becomes "integers".
        items = " or ".join(f"{_describe(each, language).split(' ', 1)[-1]}s" for each in members(item))
        examples = [example for kind, example in ((int, [1, 2]), (str, ["a", "b"])) if kind in members(item)]
        return f"a list of {items}" + "".join(f", such as {language.show(example)}" for example in examples[:1])
    return language.types.get(dict if origin in _MAPPINGS else origin, str(hint))


def wrong_type(hint: Any, language: Language = YAML) -> str:
    """Returns the predicate of a value of another type, such as "must be an integer, or null."."""
    names = dict.fromkeys(_describe(member, language) for member in members(hint) if member is not type(None))
    or_null = f", or {language.null}" if type(None) in members(hint) else ""
    if or_null and [*names] == [language.types[bool]]:
        return f"must be {language.types[bool].replace(' or ', ', ')} or {language.null}."
    return f"must be {either(names)}{or_null}."


def out_of_range(value: Any, limits: Mapping[str, Any], language: Language = YAML) -> str | None:
    """Returns the predicate of a value outside of its limits, such as "must be at least 1."; None for other values.
    `limits` is the field's metadata, see `collectx.config.schema.fields.Limits`."""
    if value is None or value in limits.get("also", ()):
        return None
    choices = limits.get("choices")
    if choices is not None:
        wrong = [each for each in (value if isinstance(value, list) else [value]) if each not in choices]
        if wrong or value == []:
            return _unknown(value, wrong, choices, language)
    for number in value if isinstance(value, list) else [value]:
        if type(number) is int and number >= 2**BITS:
            limits = {"bits": BITS} | dict(limits)
        is_right = all(holds(number, limits[name]) for name, holds in _LIMITS.items() if name in limits)
        if not is_right:
            has = "has an entry out of range: every entry " if isinstance(value, list) else ""
            return f"{has}{_range(limits, type(number) is int)}"
    return None


def _unknown(value: Any, wrong: Sequence[Any], choices: Sequence[Any], language: Language) -> str:
    if not wrong:
        return f"must be {either(map(language.show, choices))}."
    has = (
        f"has the unknown entry {language.show(wrong[0])}"
        if isinstance(value, list) and len(value) > 1
        else "is unknown"
    )
    near = nearest(str(wrong[0]), choices)
    question = f"Did you mean {language.show(near)}? " if near else ""
    return f"{has}. {question}Valid values: {', '.join(map(language.show, choices))}."


def _range(limits: Mapping[str, Any], is_integer: bool) -> str:
    implied = "finite" if "bits" in limits else None
    text = " and ".join(
        each.format(limits[name]) for name, each in _WORDS.items() if name in limits and name != implied
    )
    if {"minimum", "maximum"} <= limits.keys():
        low, high = limits["minimum"], limits["maximum"]
        text = f"{low} or {high}" if is_integer and high == low + 1 else f"from {low} to {high}"
    also = (f", or {other}{' for no limit' if other == -1 else ''}" for other in limits.get("also", ()))
    return f"must be {text}{''.join(also)}."


def members(hint: Any) -> tuple[Any, ...]:
    """Returns the types of a union, or the type alone."""
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else (hint,)


def _is_checked(hint: Any) -> bool:
    return hint is type(None) or (typing.get_origin(hint) or hint) in (*_SCALARS, *_LISTS, *_MAPPINGS)
