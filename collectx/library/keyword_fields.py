"""Declares a constructor's keyword, as a field of a dataclass of keywords, with its text, limits and conversion.

    sets      a keyword that sets an option of the configuration, and takes its text, limits and default from it
    fixed     a keyword of TorchRL that must keep its default
    ignored   a keyword of TorchRL that has no effect

`documented` adds these texts to the docstring of the dataclass. `language_of` and `language_of_errors` translate
options to keywords in messages.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import field, fields, replace
from typing import Any

from collectx.config.problem import PYTHON, Language, python_value
from collectx.config.registry import KINDS, field_of
from collectx.config.schema.fields import ABSENT, default_of

# The collector class for a choice of a group, where the class is not named like the choice.
_CLASSES = {
    "collector": {"single": "Collector", "rpc": "RPCCollector"},
    "inference": {"server": "AsyncBatchedCollector", "local": "MultiAsyncCollector"},
}
# What users of Python write in place of options of envs, which they make themselves.
_OF_ENVS = {
    "env.autoreset_mode=disabled": "autoreset_mode=AutoresetMode.DISABLED",
    "env.wrappers=[ClipAction]": "ClipAction",
}


def sets(path: str, default: Any = ..., convert: Any = None, note: str | None = None, **limits: Any) -> Any:
    """Declares a keyword that sets an option of the configuration.

    Args:
        path: path of the option, such as `collector.num_slots`. Messages about the option then name the keyword.
        default: ...: the option's default.
        convert: a function or dict from the keyword's value to the option's. Without it, the option gets the keyword's
            value; but if the keyword is None and the option does not accept that, it gets its default.
        note: text to add to the option's text in the docstring. None: the docstring does not use the option's text.
        limits: replace the option's limits; see `collectx.config.schema.fields`.
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
    """Returns a function that returns the allowed values, and raises `ValueError` with `advice` for others."""

    def convert(value: Any) -> Any:
        if not any(value is each or (type(value) is type(each) and value == each) for each in allowed):
            text = f"{advice}.".replace("`", "")
            raise ValueError(
                f"is not supported{f'. {text[0].upper()}{text[1:]}' if text.startswith('use ') else f': {text}'}"
            )
        return value

    return convert


def fixed(default: Any, advice: str, *others: Any) -> Any:
    """Declares a keyword of TorchRL that must be its default or one of `others`. Its text and its message contain
    `advice`."""
    allowed = (default, *others)
    text = f"must be {' or '.join(map(repr, allowed))}; {advice}."
    return field(default=default, metadata={"convert": only(advice, *allowed), "text": text})


def ignored(default: Any, reason: str = "") -> Any:
    """Declares a keyword of TorchRL without effect; `reason`, which begins with a colon, follows in its text."""
    return field(default=default, metadata={"text": f"ignored (accepted for TorchRL compatibility){reason}."})


def documented(cls: Any) -> Any:
    """Adds the texts of `sets`, `fixed` and `ignored` fields to the "Args" of a dataclass."""
    language = language_of(cls)
    # Python 3.13 and later remove the indentation when they compile, earlier ones do not.
    head, _, own = inspect.cleandoc(cls.__doc__).partition("\nArgs:\n")
    lines = [own.rstrip()] if own else []
    for name in cls.__annotations__:
        keyword = cls.__dataclass_fields__.get(name)
        metadata = keyword.metadata if keyword else {}
        if metadata.get("text") and metadata.get("note", "") is not None:
            text = language.words(metadata["text"])
            if not text.startswith(("True", "False", "None", "NaN")):
                text = text[0].lower() + text[1:]
            text = " ".join(f"{name}: {text} {metadata.get('note', '')}".split())
            lines.append(textwrap.fill(text, 116, initial_indent=" " * 4, subsequent_indent=" " * 8))
    cls.__doc__ = "\n".join([head.rstrip(), "\nArgs:", *lines])
    return cls


def language_of(keywords: Any) -> Language:
    """Returns the language of messages for these keywords, an object or a class: options appear as keywords."""
    names = {each.name for each in fields(keywords)}
    of_paths = {each.metadata["path"]: each for each in reversed(fields(keywords)) if "path" in each.metadata}

    def name(word: str) -> str | None:
        path, has_value, value = word.partition("=")
        if path in _CLASSES and has_value:
            return _CLASSES[path].get(value, f"{value.title().replace('_', '')}Collector")
        if path.startswith("launcher.sbatch."):
            return path.replace("launcher.sbatch", "slurm_kwargs")
        if path not in of_paths:
            _, is_env, option = path.partition("env.")
            value = has_value and f"={python_value(value)}"
            return f"{option}{value}" if is_env and option in names else PYTHON.name(word)
        keyword = of_paths[path]
        if not has_value:
            return keyword.name
        convert = keyword.metadata["convert"]
        choices = keyword.metadata.get("choices") or field_of(path).metadata.get("choices") or ()
        values = convert if isinstance(convert, dict) else {each: each for each in choices}
        if path == "launcher":
            values = {**values, "mp": "local"}
        shown = [repr(each) for each, option in values.items() if option == value]
        return f"{keyword.name}={' or '.join(shown) or python_value(value)}"

    return replace(PYTHON, name=name)


def language_of_errors(keywords: Any) -> Language:
    """Returns the language of errors of a running collector with these keywords. They may name options that its class
    does not take, which appear without their group."""
    language = language_of(keywords)

    def name(word: str) -> str | None:
        path, has_value, value = word.partition("=")
        group, _, option = path.rpartition(".")
        short = f"{option}{has_value}{python_value(value)}" if group in KINDS else None
        return language.name(word) or _OF_ENVS.get(word, short)

    return replace(language, name=name)
