"""How a keyword of a constructor is declared, documented and named: a field of a dataclass of keywords.

    option    sets an option of the configuration, and takes text, limits and default from it
    fixed     is TorchRL's, and must have one value here
    ignored   is TorchRL's, and has no effect

`documented` adds their texts to a docstring; `names_of` gives the names of options to messages.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable
from dataclasses import field, fields, replace
from typing import Any

from collectx.config.problem import PYTHON, Language
from collectx.config.registry import field_of
from collectx.config.schema.fields import ABSENT, default_of

# Classes that stand for choices of a group, where the class of a collector is not named like its kind.
_CLASSES = {
    "collector": {"single": "Collector", "rpc": "RPCCollector"},
    "inference": {"server": "AsyncBatchedCollector", "local": "MultiAsyncCollector"},
}


def option(path: str, default: Any = ..., convert: Any = None, note: str | None = None, **limits: Any) -> Any:
    """A keyword that sets an option of the configuration.

    Args:
        path: path of the option, such as `collector.num_slots`. Messages about the option name the keyword.
        default: ...: the option's default.
        convert: a function or dict from the keyword's value to the option's. None: the same value, or the option's
            default for a None that the option does not take.
        note: what Python adds to the option's text, "" for nothing. None: the docstring contains a text for Python.
        limits: limits instead of the option's; see `collectx.config.schema.fields`.
    """
    option = field_of(path)
    packaged = default_of(option)
    if convert is None and default is None and packaged not in (None, ABSENT):
        convert = functools.partial(_given, packaged)
    metadata = {**(limits or option.metadata), "text": option.metadata.get("text")}
    metadata |= {"path": path, "convert": convert, "note": note}
    return field(default=packaged if default is ... else default, metadata=metadata)


def _given(default: Any, value: Any) -> Any:
    return default if value is None else value


def only(advice: str, *allowed: Any) -> Callable[[Any], Any]:
    """Returns a check that takes these values alone; `advice` says why, or what to use instead."""

    def convert(value: Any) -> Any:
        if not any(value is each or (type(value) is type(each) and value == each) for each in allowed):
            raise ValueError(f"{advice}.".replace("`", ""))
        return value

    return convert


def fixed(default: Any, advice: str, *others: Any) -> Any:
    """A keyword of TorchRL that must have its default, or one of `others`; `advice` is in its text and its message."""
    allowed = (default, *others)
    text = f"must be {' or '.join(map(repr, allowed))}; {advice}."
    return field(default=default, metadata={"convert": only(advice, *allowed), "text": text})


def ignored(default: Any, reason: str = "") -> Any:
    """A keyword of TorchRL that has no effect."""
    return field(default=default, metadata={"text": f"ignored (accepted for TorchRL compatibility){reason}."})


def documented(cls: Any) -> Any:
    """Adds the texts of options, and of keywords that have no effect here, to the docstring of a dataclass."""
    language = names_of(cls)
    head, _, own = cls.__doc__.partition("\n    Args:\n")
    lines = [own.rstrip()] if own else []
    for name in cls.__annotations__:
        keyword = cls.__dataclass_fields__.get(name)
        told = keyword.metadata if keyword else {}
        if told.get("text") and told.get("note", "") is not None:
            text = " ".join(f"{name}: {language.words(told['text'])} {told.get('note', '')}".split())
            lines.append(textwrap.fill(text, 120, initial_indent=" " * 8, subsequent_indent=" " * 12))
    cls.__doc__ = "\n".join([head.rstrip(), "\n    Args:", *lines, "    "])
    return cls


def names_of(keywords: Any) -> Language:
    """Returns how Python users write options, with the names of these keywords (or of their class)."""
    names = {each.name for each in fields(keywords)}
    of_paths = {each.metadata["path"]: each for each in reversed(fields(keywords)) if "path" in each.metadata}

    def name(word: str) -> str | None:
        path, has_value, value = word.partition("=")
        if path in _CLASSES and has_value:
            kinds, own = value.split(" or "), _CLASSES[path]
            return " or ".join(own.get(kind, f"{kind.title().replace('_', '')}Collector") for kind in kinds)
        if path.startswith("launcher.sbatch."):
            return path.replace("launcher.sbatch", "slurm_kwargs")
        if path not in of_paths:
            _, is_env, option = path.partition("env.")
            return option if is_env and option in names else PYTHON.name(word)
        keyword = of_paths[path]
        if not has_value:
            return keyword.name
        convert = keyword.metadata["convert"]
        values = (
            convert if isinstance(convert, dict) else {each: each for each in keyword.metadata.get("choices") or ()}
        )
        if path == "launcher":
            values = {**values, "mp": "local"}
        shown = [repr(each) for each, option in values.items() if option in value.split(" or ")]
        return f"{keyword.name}={' or '.join(shown) or PYTHON.name(value) or value}"

    return replace(PYTHON, name=name)
