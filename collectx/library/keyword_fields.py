"""Declares a constructor's keyword, as a field of a dataclass of keywords, with its text, limits and conversion.

    sets      a keyword that sets an option of the configuration, and takes its text, limits and default from it
    fixed     a keyword of TorchRL that must keep its default
    ignored   a keyword of TorchRL that has no effect

`documented` adds these texts to the docstring of the dataclass. `names_of` says how messages name options.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any

from collectx.config.problem import PYTHON, Names, described
from collectx.config.registry import KINDS, field_of
from collectx.config.schema.fields import ABSENT, default_of

# What users of Python write in place of choices of groups, and of options of envs, which they make themselves.
_CHOICES = {
    **{f"collector={kind}": f"{kind.title().replace('_', '')}Collector" for kind in KINDS["collector"]},
    "collector=single": "Collector",
    "collector=rpc": "RPCCollector",
    "inference=server": "AsyncBatchedCollector",
    "inference=local": "MultiAsyncCollector",
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
            raise ValueError(f"is not supported: {advice}.".replace("`", ""))
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
    # Python 3.13 and later remove the indentation when they compile, earlier ones do not.
    head, _, own = inspect.cleandoc(cls.__doc__).partition("\nArgs:\n")
    lines = [own.rstrip()] if own else []
    for name in cls.__annotations__:
        keyword = cls.__dataclass_fields__.get(name)
        metadata = keyword.metadata if keyword else {}
        if metadata.get("text") and metadata.get("note", "") is not None:
            text = described(metadata["text"], PYTHON)
            if not text.startswith(("True", "False", "None", "NaN")):
                text = text[0].lower() + text[1:]
            text = " ".join(f"{name}: {text} {metadata.get('note', '')}".split())
            lines.append(textwrap.fill(text, 116, initial_indent=" " * 4, subsequent_indent=" " * 8))
    cls.__doc__ = "\n".join([head.rstrip(), "\nArgs:", *lines])
    return cls


def names_of(keywords: Any) -> Names:
    """Returns how messages name options for these keywords, an object or a class: as keywords."""
    of_paths = {each.metadata["path"]: each for each in reversed(fields(keywords)) if "path" in each.metadata}
    words = {
        **{f"env.{each.name}": each.name for each in fields(keywords)},
        **{path: each.name for path, each in of_paths.items()},
        **_CHOICES,
        "launcher.sbatch": "slurm_kwargs",
    }
    for path, keyword in of_paths.items():
        convert = keyword.metadata["convert"]
        choices = keyword.metadata.get("choices") or field_of(path).metadata.get("choices") or ()
        values = convert if isinstance(convert, dict) else {each: each for each in choices}
        if path == "launcher":
            values = {**values, "mp": "local"}
        for option in dict.fromkeys(values.values()):
            shown = [repr(each) for each, chosen in values.items() if chosen == option]
            words[f"{path}={option}"] = f"{keyword.name}={' or '.join(shown)}"
    passed = (
        {} if isinstance(keywords, type) else {path: getattr(keywords, each.name) for path, each in of_paths.items()}
    )
    return Names(words, passed)
