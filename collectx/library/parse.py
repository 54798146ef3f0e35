"""Parses the arguments of a constructor, and puts its keywords into its signature and docstring."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

from collectx.config.check import check_option
from collectx.config.convert import out_of_range
from collectx.config.problem import PYTHON, Problem, either, nearest

Parameters = ParamSpec("Parameters")
Dataclass = TypeVar("Dataclass")
# A message about a keyword of other classes names this many of them.
_MAX_OWNERS = 3
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def takes_keywords(
    keywords: Callable[Parameters, Any],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, Parameters], None]]:
    """Decorates a method whose arguments are the fields of the dataclass `keywords`: adds the fields to its signature,
    for type checkers, editors and `help`, and their texts to its docstring, before a section "Raises"."""

    def decorate(method: Any) -> Any:
        parameters = inspect.signature(keywords).parameters.values()
        receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        method.__signature__ = inspect.Signature([receiver, *parameters])
        documented = (inspect.getdoc(each) or "" for each in reversed(inspect.getmro(keywords)))  # type: ignore[arg-type]
        arguments = [text.partition("Args:\n")[2].partition("\n\n")[0].rstrip() for text in documented]
        text, *raises = inspect.cleandoc(method.__doc__ or "").partition("\n\nRaises:\n")
        method.__doc__ = "\n".join([text, "", "Args:", *filter(None, arguments)]) + "".join(raises)
        return method

    return decorate


def parse(
    name: str,
    keywords_class: type[Dataclass],
    arguments: tuple,
    keywords: dict[str, Any],
    by_class: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Dataclass, list[str]]:
    """Returns an object of `keywords_class` with these arguments, and messages about values of a wrong type or out of
    range, which defaults replace. Raises `TypeError`, which calls the function `name`, if an argument is missing or
    passed twice; or if one is unknown, with the messages about the others. `by_class` are the keywords of each class,
    to say which ones have the unknown one."""
    fields = {field.name: field for field in dataclasses.fields(keywords_class)}  # type: ignore[arg-type]
    unknown = _unknown(name, [*fields], [key for key in keywords if key not in fields], by_class)
    signature = inspect.signature(keywords_class)
    positional = [each.name for each in signature.parameters.values() if each.kind is not each.KEYWORD_ONLY]
    if len(arguments) > len(positional):
        raise TypeError(
            f"{name}() takes only {' and '.join(positional)} by position, but got {len(arguments)}. Pass the "
            "others by keyword."
        )
    # An unknown keyword may be a misspelled one, which is then not missing.
    bind = signature.bind_partial if unknown else signature.bind
    try:
        passed = bind(*arguments, **{key: keywords[key] for key in keywords if key in fields}).arguments
    except TypeError as error:
        raise TypeError(f"{name}(): {error}") from None
    values, problems = {}, []
    for key, value in passed.items():
        converted = check_option(key, value, _hints(keywords_class)[key], {}, PYTHON)
        if isinstance(converted, Problem):
            problems.append(converted.text(PYTHON))
        elif (rule := _violated(fields[key], converted)) is not None:
            problems.append(Problem(key, rule, value).text(PYTHON))
        else:
            values[key] = converted
    if unknown:
        raise TypeError("\n".join([unknown, *problems]))
    return keywords_class(**values), problems


def option_value(field: dataclasses.Field, value: Any) -> Any:
    """Returns the option's value for a keyword's value. Raises `ValueError` with the reason if the keyword's value is
    wrong."""
    convert = field.metadata.get("convert")
    return value if convert is None else convert[value] if isinstance(convert, dict) else convert(value)


def _violated(field: dataclasses.Field, value: Any) -> str | None:
    """Returns the rule that a keyword's value violates; None for a correct value."""
    try:
        return out_of_range(option_value(field, value), field.metadata, PYTHON)
    except ValueError as error:
        return str(error)


def _unknown(name: str, known: list[str], others: list[str], by_class: Mapping[str, Any]) -> str:
    """Returns a message about the keywords `others`; an empty text if there are none."""
    if not others:
        return ""
    unknown = [f"{key!r}{_hint(key, known, by_class)}" for key in others]
    arguments = "an unexpected keyword argument" if len(unknown) == 1 else "unexpected keyword arguments"
    listed = f"valid keywords: {', '.join(known)}" if len(known) <= 12 else f"to list all: help({name})"
    return f"{name}() got {arguments} {', '.join(unknown)}; {listed}"


def _hint(key: str, known: list[str], by_class: Mapping[str, Any]) -> str:
    """Returns what an unknown keyword may be: one of other classes, or a misspelled one."""
    owners = [owner for owner, keywords in by_class.items() if key in keywords.__dataclass_fields__]
    if owners and nearest(key, known, 0.8) is None:
        more = ["others"] if len(owners) > _MAX_OWNERS else []
        return f" (a keyword of {either(owners[:_MAX_OWNERS] + more)})"
    near = nearest(key, known)
    return f" (did you mean {near!r}?)" if near else ""
