"""Problems with options, and their messages to users of YAML and of Python."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar

from collectx.config.schema.fields import ABSENT, Unset

# More names than these are not listed in a message.
_MAX_LISTED = 12


@dataclass(frozen=True)
class Language:
    """How a language, YAML or Python, writes values.

    Attributes:
        types: names of types, as in "must be an integer".
        show: returns a value as the user wrote it.
        reads_text: whether a text may stand for a number, as an environment variable gives it.
    """

    types: Mapping[type, str]
    show: Callable[[Any], str]
    reads_text: bool


# As in 1e+30 or 1e-05, which users type as 1e30 and 1e-5.
_EXPONENT = re.compile(r"e\+?(-?)0*")


def _yaml_value(value: Any) -> str:
    text = _typed(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _typed(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_typed, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_typed(each)}' for key, each in value.items())}}}"
    if isinstance(value, float):
        return _EXPONENT.sub(r"e\1", str(value).removesuffix(".0"))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


YAML = Language(
    {int: "an integer", float: "a number", bool: "true or false", str: "a string", dict: "a mapping"},
    _yaml_value,
    reads_text=True,
)
PYTHON = Language(
    {int: "an int", float: "a number", bool: "True or False", str: "a string", dict: "a dict"},
    repr,
    reads_text=False,
)


def described(text: str, language: Language = YAML) -> str:
    """Returns the text of an option, in which `null`, `true` and `false` stand between backticks."""
    for word, value in {"null": None, "true": True, "false": False}.items():
        text = text.replace(f"`{word}`", language.show(value))
    return text


@dataclass(frozen=True)
class Names:
    """How the users of a Python class write options.

    Attributes:
        words: a keyword for an option, and the words for an option with a value, such as "Collector" for
            `collector=single`. Other options lose their group.
        values: what the user passed, by option.
    """

    words: Mapping[str, str]
    values: Mapping[str, Any] = field(default_factory=dict)


_names: ContextVar[Names | None] = ContextVar("collectx_names", default=None)


@contextmanager
def naming(names: Names | None) -> Iterator[None]:
    """Makes messages of the block name options as `names` says, in this thread; None: as on the command line."""
    before = _names.get()
    _names.set(names)
    try:
        yield
    finally:
        _names.set(before)


def current_names() -> dict[str, str] | None:
    """Returns the words of the current `naming`, for another process."""
    names = _names.get()
    return None if names is None else dict(names.words)


def adopt_names(words: Mapping[str, str] | None) -> None:
    """Makes the messages of this process name options like those of the process whose `current_names` these are."""
    _names.set(None if words is None else Names(words))


def opt(word: str) -> str:
    """Returns an option (`collector.overlap`), or one with a value (`collector.overlap=0`), as the reader of a message
    writes it: so on the command line, by its keyword in Python."""
    if (names := _names.get()) is None:
        return f"'{word}'" if " " in word else word
    path = word.partition("=")[0]
    return _keyword(word, names.words) or _keyword(word, {path: path.rpartition(".")[2]}) or word


def use(*words: str, how: str = "use") -> str:
    """Returns the advice to use one of these options, most with a value; in Python, without those that have no keyword.
    `how` is the verb."""
    names = _names.get()
    known = [opt(word) for word in words if names is None or _keyword(word, names.words)]
    if not known:
        return "leave it out."
    *others, last = known
    return f"{how} {', '.join(others)}{', or ' if others else ''}{last}."


def _keyword(word: str, words: Mapping[str, str]) -> str | None:
    """Returns the keyword of an option, with its value if it has one; None if the class has no such keyword."""
    path, has_value, value = word.partition("=")
    group, _, last = path.rpartition(".")
    name = words.get(path) or (f"{words[group]}.{last}" if "." in group and group in words else None)
    return words.get(word) or (name and f"{name}{has_value}{has_value and _python_value(value)}")


def _python_value(text: str) -> str:
    """Returns a value that is written in YAML as Python writes it; a word, such as VALUE, stays."""
    import yaml

    with suppress(yaml.YAMLError):
        value = yaml.safe_load(text)
        return text if isinstance(value, str) else repr(value)
    return text


@dataclass(frozen=True)
class Problem:
    """One problem of a configuration.

    Attributes:
        path: the option, such as "collector.num_slots"; "collector" if the choice in the group is wrong.
        rule: a predicate of the option, with the arithmetic, such as "must be at least 1".
        value: what the option was set to; ABSENT: the message names the option alone.
        advice: what to do, a sentence that begins with a verb. Ends with a full stop, as does a rule without advice.
    """

    path: str
    rule: str
    value: Any = ABSENT
    advice: str = ""
    _link: ClassVar[str] = ""

    def __str__(self) -> str:
        """The message to the user: what is wrong, then what to do."""
        names = _names.get()
        if self.value is ABSENT:
            subject = opt(self.path)
        elif names is None:
            subject = f"{self.path}={YAML.show(self.value)}"
        else:
            subject = f"{opt(self.path)}={names.values.get(self.path, self.value)!r}"
        text = f"{subject} {self._link}{self.rule}"
        return text if not self.advice else f"{text.removesuffix('.')}. {self.advice[0].upper()}{self.advice[1:]}"


class Conflict(Problem):
    """An option that does not fit another one, or its surroundings. `rule` is a clause that says why."""

    _link = "cannot be used: "


@dataclass(frozen=True)
class Missing(Problem):
    """An option without a value."""

    rule: str = "is missing"


class Unknown(Problem):
    """An option that does not exist."""


def check_all(rules: Iterable[Callable[..., Iterable[Any]]], *arguments: Any) -> Iterator[Any]:
    """Yields what the rules yield. A rule that reads an option which failed its own check is skipped."""
    for rule in rules:
        with suppress(Unset):
            yield from rule(*arguments)


def did_you_mean(name: str, names: Iterable[str], prefix: str = "", more: str = "", cutoff: float = 0.6) -> str:
    """Returns the end of a sentence about a name that does not exist: `. Did you mean X? Valid names: X, Y.`, without
    the parts that do not apply. `prefix` stands before the name that is proposed. `more` is a sentence that says how to
    list all names, if they are many. `cutoff` is that of `nearest`."""
    candidates = list(names)
    begun = (each for each in candidates if len(name) > 2 and each.startswith(name))
    near = nearest(name, candidates, cutoff) or next(begun, None) or (candidates[0] if len(candidates) == 1 else None)
    equal = [each for each in candidates if near and (each == near or _is_as_near(str(each), near, name, cutoff))]
    if len(equal) > 3:  # such as worker-0 to worker-7
        near = None
    question = f"Did you mean {either(f'{prefix}{each}' for each in equal)}?" if near else ""
    is_short = len(candidates) <= (_MAX_LISTED // 2 if near else _MAX_LISTED)
    if is_short or not (near or more):
        num_more = len(candidates) - _MAX_LISTED
        shown = ", ".join(candidates[:_MAX_LISTED]) + (f" and {num_more} more" if num_more > 0 else "")
        more = f"Valid names: {shown}." if set(candidates) - {*equal} or not near else ""
    return f". {' '.join(filter(None, [question, more]))}".rstrip()


# What others call values of options.
_CALLED = {
    **dict.fromkeys(("return", "reward", "score", "episode_reward", "episodic_return", "ep_rew_mean"), "mean_return"),
    **dict.fromkeys(("fps", "sps", "speed"), "frames_per_s"),
    "time": "wall_s",
    **dict.fromkeys(("latest", "last", "final", "current"), "newest"),
}


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Returns the name that means the same as `name`, or is the most similar to it; None if no similarity is at least
    `cutoff`, from 0 to 1. A short name is similar to names with the same first letter only: a2c does not mean sac."""
    names = [*names]
    if (same := _CALLED.get(str(name).lower())) in names:
        return same
    if len(name) < 5:
        names = [each for each in names if str(each)[:1].lower() == name[:1].lower()]
    equal = (each for each in names if str(each).lower() == name.lower())
    return next(equal, None) or next(iter(difflib.get_close_matches(name, names, n=1, cutoff=cutoff)), None)


def _is_as_near(other: str, near: str, name: str, cutoff: float) -> bool:
    """Whether a name as long as `near` resembles `name` as much, as worker-1 and worker-0 resemble wroker."""
    ratios = [difflib.SequenceMatcher(None, each, name).ratio() for each in (other, near)]
    return len(other) == len(near) and ratios[0] == ratios[1] >= cutoff


def either(names: Iterable[str]) -> str:
    """Returns names as in "a, b or c"."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def page(name: str) -> str:
    """Returns the command that prints a page of the documentation, by its name in the list of `collectx docs`, such as
    "envs"."""
    return f"collectx docs {name}"


def counted(number: int, one: str, several: str = "") -> str:
    """Returns a number with its noun, such as "1 worker"; `several` is the plural without a mere "s"."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
