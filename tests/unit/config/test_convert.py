"""Values of every type, in both languages, converted or refused; and limits, at their bounds."""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from collectx.config.check import convert, describe, out_of_range, wrong_type
from collectx.config.problem import PYTHON, YAML

HINTS = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "int | None": int | None,
    "float | str": float | str,
    "list[int]": list[int],
    "Sequence[float]": Sequence[float],
    "list[str | dict]": list[str | dict[str, Any]],
    "list[Any] | None": list[Any] | None,
    "dict": dict[str, Any],
    "Mapping | None": Mapping[str, Any] | None,
    "int | str | None": int | str | None,
    "tuple | int": tuple[int, ...] | int,
}
VALUES = [
    *(None, True, False, 0, 1, 2, -1, 2.0, 2.5, 1e6, float("nan"), float("inf"), "", "8", "2.5", "true", "a"),
    *([], [1], [1, 2.0], ["1", "a"], [True, 0], (1, 2), [None], {}, {"a": 1}, [{"a": 1}, "b"]),
    *(np.int64(3), np.float32(0.5), np.bool_(True), np.array(4), np.array([1, 2]), np.str_("n"), object),
]


def shown(value):
    return f"{type(value).__name__}({value})" if type(value).__module__ == "numpy" else repr(value)


def test_whole_conversions(expected):
    """The table shows the accepted values of each type; all other values are refused."""
    text = []
    for (name, hint), language in itertools.product(HINTS.items(), (YAML, PYTHON)):
        text.append(f"{name} in {'YAML' if language is YAML else 'Python'}: {describe(hint, language)}")
        text.append(f"  another value {wrong_type(hint, language)}")
        unchanged, changed = [], []
        for value in VALUES:
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                converted = convert(value, hint, language)
                is_same = type(converted) is type(value) and repr(converted) == repr(value)
                if is_same:
                    unchanged.append(shown(value))
                else:
                    changed.append(f"{shown(value)} -> {shown(converted)}")
        text += [f"  as it is: {', '.join(unchanged)}", f"  changed: {', '.join(changed)}"]
    expected("conversions", "\n".join(text))


LIMITS = [
    {"minimum": 1},
    {"minimum": 0, "maximum": 1},
    {"maximum": 3},
    {"above": 0},
    {"above": 0, "finite": True},
    {"minimum": 1, "also": (-1,)},
    {"minimum": 1, "also": (-1, -2)},
    {"minimum": 0, "bits": 31},
    {"choices": ("mode", "mean", "random")},
    {"choices": ("padded",)},
    {"choices": ("a", "b"), "also": ("c",)},
    {},
]
NUMBERS = [
    *(None, -2, -1, -0.5, 0, 0.0, 1e-9, 0.5, 1, 1.5, 3, 4, 2**31 - 1, 2**31, 2**63 - 1, 2**63, float("inf")),
    *([], [1], [1, 0], [2**63], ["mode"], ["mode", "b"]),
    *("mode", "mod", "padded", "pad", "a", "c", "zzz"),
]


@pytest.mark.parametrize("language", [YAML, PYTHON], ids=["YAML", "Python"])
def test_whole_ranges(language, expected, request):
    text = []
    for limits in LIMITS:
        text.append(f"{limits}")
        found = {}
        for value in NUMBERS:
            is_text = isinstance(value, str) or (isinstance(value, list) and isinstance([*value, 0][0], str))
            if value not in (None, []) and is_text is not ("choices" in limits):
                continue
            found.setdefault(out_of_range(value, limits, language) or "right", []).append(repr(value))
        text += [f"  {rule}: {', '.join(values)}" for rule, values in found.items()]
    expected(f"ranges in {request.node.callspec.id}", "\n".join(text))
