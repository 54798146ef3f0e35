"""Keywords that are options of the configuration: their ranges, and their names in messages."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Any

from collectx.config.problem import ABSENT, PYTHON, Problem
from collectx.config.registry import limits_of

# Options whose keyword is not the last word of their path.
_NAMES = {
    "launcher.num_threads": "num_sub_threads",
    "backend.port": "tcp_port",
    "backend.tensorpipe": "tensorpipe_options",
}
# Choices and values that Python writes in another way.
_PHRASES = {
    "collector=multi_sync": "MultiSyncCollector",
    "collector=multi_async": "MultiAsyncCollector",
    "collector=distributed": "DistributedCollector",
    "collector.refresh=batch": "update_weights_between_steps=False",
    "collector.refresh=step": "update_weights_between_steps=True",
    "collector.inner=single": "collector_class='single'",
    "collector.inner=sync": "collector_class='sync'",
    "launcher=local or slurm": "launcher='mp'",
}
_WORDS = {"null": "None", "true": "True", "false": "False"}
_TERM = re.compile(r"launcher=local or slurm|\b(collector|env|backend|launcher|devices)(\.\w+)?(=[\w-]+)?|\bnull\b")


def option(path: str, default: Any) -> Any:
    """A field whose values have the range of the option `path`."""
    return field(default=default, metadata=limits_of(path))


def limited(default: Any, **limits: Any) -> Any:
    """A field of Python alone, with limits as those of `collectx.config.schema.fields`."""
    return field(default=default, metadata=limits)


def in_python(problem: Problem) -> str:
    """The message of a problem with the names that Python has for options and choices."""
    subject = _term(problem.path)
    if problem.value is not ABSENT:
        pair = f"{problem.path}={problem.value}"
        is_choice = "." not in problem.path or pair in _PHRASES
        subject = _term(pair) if is_choice else f"{subject}={problem.value!r}"
    rest = Problem("", problem.rule, advice=problem.advice).text(PYTHON)
    return subject + _TERM.sub(lambda match: _term(match.group()), rest)


def _term(text: str) -> str:
    if text in _PHRASES:
        return _PHRASES[text]
    path, equals, value = text.partition("=")
    if "." not in path and not equals:
        return _WORDS.get(text, text)
    name = _NAMES.get(path, path.rpartition(".")[2])
    if not equals:
        return name
    return f"{name}={value if value.isdigit() else _WORDS.get(value, repr(value))}"
