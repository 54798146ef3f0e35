"""Problems with options, and their messages to users of YAML and of Python."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from collectx.config.schema.fields import ABSENT, Unset
from collectx.errors import OPTION, ConfigError, OptionText, shell_word

# A rule that begins with one of these is a predicate of its option.
_VERBS = ("is ", "has ", "cannot ", "must ", "needs ")
# More names than these are not listed in a message.
_MAX_LISTED = 12


@dataclass(frozen=True)
class Language:
    """How a language, YAML or Python, writes options and values.

    Attributes:
        types: names of types, as in "must be an integer".
        show: returns a value as the user wrote it.
        reads_text: whether a text may stand for a number, as an environment variable gives it.
        name: returns how users write an option (`collector.overlap`), an option with a value (`collector.overlap=0`),
            `null`, `true` or `false`; None if the language has no such option.
    """

    types: Mapping[type, str]
    null: str
    show: Callable[[Any], str]
    reads_text: bool
    name: Callable[[str], str | None] = str

    def words(self, text: str) -> str:
        """Returns `text` with the words between backticks replaced by what `name` returns for them."""
        return OPTION.sub(lambda found: self.name(found[1]) or found[1], text)


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
    "null",
    _yaml_value,
    reads_text=True,
    name=shell_word,
)
PYTHON = Language(
    {int: "an int", float: "a number", bool: "True or False", str: "a string", dict: "a dict"},
    "None",
    repr,
    reads_text=False,
    name={"null": "None", "true": "True", "false": "False"}.get,
)


def python_value(text: str) -> str:
    """Returns a value that is written in YAML as Python writes it."""
    if text[:1] in ("[", "{"):
        import yaml

        with suppress(yaml.YAMLError):
            return repr(yaml.safe_load(text))
    return PYTHON.name(text) or text


def rename_options(error: BaseException, language: Language) -> None:
    """Makes the message and the notes of an error, and of its causes, name options as in `language` in place of YAML.
    The error's type and traceback stay."""
    notes = getattr(error, "__notes__", [])
    texts = [each for each in (*error.args, *notes) if isinstance(each, OptionText)]
    if texts:
        renamed = {str(each): language.words(each.template) for each in texts}
        error.args = tuple(renamed[each] if isinstance(each, OptionText) else each for each in error.args)
        # The note with the traceback of a worker contains the message.
        for i, note in enumerate(notes):
            notes[i] = functools.reduce(lambda text, words: text.replace(*words), renamed.items(), note)
    if error.__cause__ is not None:
        rename_options(error.__cause__, language)


@dataclass(frozen=True)
class Problem:
    """One problem of a configuration.

    Attributes:
        path: the option, such as "collector.num_slots"; "collector" if the choice in the group is wrong.
        rule: a predicate of the option, with the arithmetic, which begins with one of `_VERBS`; or a clause that says
            why the option cannot be used. Options in it stand between backticks, as each `Language` names them in its
            own way.
        value: what the option was set to; ABSENT: the message names the option alone.
        advice: what to do, a sentence that begins with a verb. Ends with a full stop, as does a rule without advice.
        is_unknown: whether there is no such option.
    """

    path: str
    rule: str
    value: Any = ABSENT
    advice: str = ""
    is_unknown: bool = False

    def text(self, language: Language = YAML) -> str:
        """Returns the message to the user: what is wrong, then what to do."""
        name = language.name(self.path) or self.path
        subject = name if self.value is ABSENT else f"{name}={language.show(self.value)}"
        verb = "" if self.rule.startswith(_VERBS) else "cannot be used: "
        text = f"{subject} {verb}{language.words(self.rule)}"
        if not self.advice:
            return text
        is_known = None not in map(language.name, OPTION.findall(self.advice))
        advice = language.words(self.advice) if is_known else "leave it out."
        return f"{text.removesuffix('.')}. {advice[0].upper()}{advice[1:]}"


class Refusal(ConfigError):
    """Problems that are found only while a collector is built. The message names options as in YAML; for Python, it is
    made from `parts`."""

    def __init__(self, *parts: Problem):
        super().__init__(*(problem.text() for problem in parts))
        self.parts = parts

    def __reduce__(self) -> Any:
        return ConfigError, self.args


def check_all(rules: Iterable[Callable[..., Iterable[Any]]], *arguments: Any) -> Iterator[Any]:
    """Yields what the rules yield. A rule ends when it reads an option that failed its own check."""
    for rule in rules:
        with suppress(Unset):
            yield from rule(*arguments)


def did_you_mean(name: str, names: Iterable[str], prefix: str = "", more: str = "") -> str:
    """Returns the end of a sentence about a name that does not exist: `. Did you mean X? Valid names: X, Y.`, without
    the parts that do not apply. `prefix` stands before the name that is proposed. `more` is a sentence that says how to
    list all names, if they are many."""
    candidates = list(names)
    begun = (each for each in candidates if len(name) > 2 and each.startswith(name))
    near = nearest(name, candidates) or next(begun, None)
    question = f"Did you mean {prefix}{near}?" if near else ""
    is_short = len(candidates) <= (_MAX_LISTED // 2 if near else _MAX_LISTED)
    if is_short or not (near or more):
        num_more = len(candidates) - _MAX_LISTED
        shown = ", ".join(candidates[:_MAX_LISTED]) + (f" and {num_more} more" if num_more > 0 else "")
        more = f"Valid names: {shown}." if set(candidates) - {near} else ""
    return f". {' '.join(filter(None, [question, more]))}".rstrip()


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Returns the name that is the most similar to `name`; None if no similarity is at least `cutoff`, from 0 to 1."""
    names = [*names]
    same = (each for each in names if str(each).lower() == name.lower())
    return next(same, None) or next(iter(difflib.get_close_matches(name, names, n=1, cutoff=cutoff)), None)


def either(names: Iterable[str]) -> str:
    """Returns names as in "a, b or c"."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def counted(number: int, one: str, several: str = "") -> str:
    """Returns a number with its noun, such as "1 worker"; `several` is the plural without a mere "s"."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"
