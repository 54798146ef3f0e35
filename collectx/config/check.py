"""Converts plain data to the schema, and checks it: types, ranges, missing values and unknown keys. Reports all
problems at once. A single value may also come from Python.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from collectx.config import other_names
from collectx.config.problem import (
    ABSENT,
    PYTHON,
    YAML,
    Conflict,
    Language,
    Missing,
    Problem,
    Unknown,
    did_you_mean,
    either,
    nearest,
)
from collectx.config.registry import DEFAULTS, GROUPS, KINDS, field_of, schemas
from collectx.config.schema.fields import BITS, default_of, incomplete, section_of
from collectx.config.schema.run import (
    COMMAND_SECTIONS,
    OBJECTIVES,
    OF_EVALUATION,
    SECTIONS,
    RunConfig,
)

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
    """Returns `value` converted to the type `hint`. Types other than numbers, bools, texts, lists, mappings and
    callables are not checked.

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
    if origin is Callable:
        if not callable(value):
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
        return language.show(None)
    if origin in _LISTS:
        (item,) = typing.get_args(hint)
        if item is Any:
            return "a list"
        # "an integer" becomes "integers".
        kinds = (each for each in members(item) if each is not type(None))
        items = " or ".join(f"{_describe(each, language).split(' ', 1)[-1]}s" for each in kinds)
        examples = [example for kind, example in ((int, [1, 2]), (str, ["a", "b"])) if kind in members(item)]
        return f"a list of {items}" + "".join(f", such as {language.show(example)}" for example in examples[:1])
    if origin is Callable:
        return "a callable"
    return language.types.get(dict if origin in _MAPPINGS else origin, str(hint))


def wrong_type(hint: Any, language: Language = YAML) -> str:
    """Returns the predicate of a value of another type, such as "must be an integer, or null."."""
    names = dict.fromkeys(_describe(member, language) for member in members(hint) if member is not type(None))
    or_null = f", or {language.show(None)}" if type(None) in members(hint) else ""
    if or_null and [*names] == [language.types[bool]]:
        return f"must be {language.types[bool].replace(' or ', ', ')} or {language.show(None)}."
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
            return _not_a_choice(value, wrong, choices, language)
    for number in value if isinstance(value, list) else [value]:
        if type(number) is int and number >= 2**BITS:
            limits = {"bits": BITS} | dict(limits)
        is_right = all(holds(number, limits[name]) for name, holds in _LIMITS.items() if name in limits)
        if not is_right:
            has = f"has the entry {language.show(number)}, but every entry " if isinstance(value, list) else ""
            return f"{has}{_range(limits, type(number) is int)}"
    return None


def _not_a_choice(value: Any, wrong: Sequence[Any], choices: Sequence[Any], language: Language) -> str:
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
    return hint is type(None) or (typing.get_origin(hint) or hint) in (*_SCALARS, *_LISTS, *_MAPPINGS, Callable)


# The value in a YAML file where the user has to choose.
UNSET = "???"
# Numbers such as 100k and ranges such as 0..3, which YAML reads as texts.
_STEPS = re.compile(r"(\d+)(?:\.\.|[:-])(\d+)")
_COUNT = re.compile(r"(\d+)([km])", re.IGNORECASE)
_ZEROS = {"k": "_000", "m": "_000_000"}
# Times such as 1h and 30min, and the seconds in each unit.
_TIME = re.compile(r"(\d+(?:\.\d+)?) ?([smhd])[a-z]*")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# What `collectx tune` searches on every machine.
_TUNED = ("collector.num_workers", "env.num_envs")
# What to do about a mapping that is another value, or a number out of its range.
_ADVICE = {
    "collector.num_workers": "for no workers, use collector=single.",
    "eval.env": "set its keys, as in eval.env.id=CartPole-v1.",
}
# Example values for messages about missing options, by the last part of their names.
_EXAMPLES = {
    "target": "MODULE:NAME",
    "id": "CartPole-v1",
    "dir": "DIR",
    "seed": "0",
    "keep_best": "mean_return",
    "resume": "auto",
}


@dataclasses.dataclass(frozen=True)
class Unresolved:
    """Stands for a value whose interpolation cannot be resolved, for this reason."""

    reason: str


def check_config(
    values: Mapping[str, Any], ignore: Collection[str] = (), choices: Mapping[str, Any] = types.MappingProxyType({})
) -> tuple[RunConfig, list[Problem]]:
    """Checks a complete configuration. Returns (configuration, problems). An option with a problem is absent from the
    configuration: reading it raises `Unset`.

    Args:
        values: the groups and `seed`; optionally the `SECTIONS` and the `COMMAND_SECTIONS`.
        ignore: groups whose choice is known to be wrong: they stay empty, and no problem is reported for them.
        choices: the user's choices by group, which problems name; without one, its `kind`.
    """
    problems: list[Problem] = []
    sections: dict[str, Any] = {}
    for group in GROUPS:
        if group in ignore:
            sections[group] = incomplete(_hints(RunConfig)[group])
        else:
            default = {"kind": DEFAULTS[group]} if group in DEFAULTS else None
            sections[group] = check_group(group, values.get(group, default), problems, choice=choices.get(group))
    seed = check_option("seed", values.get("seed", ABSENT), int, field_of("seed").metadata)
    if isinstance(seed, Problem):
        problems.append(seed)
    else:
        sections["seed"] = seed
    for name, cls in SECTIONS.items():
        sections[name] = _part(name, cls, values.get(name, {}), problems)
    for name, cls in COMMAND_SECTIONS.items():
        if name in values:
            section = _part(name, cls, values[name], problems)
            if name == "sweep":
                problems += _unknown_objectives(section, sections["env"], sections["eval"])
    kinds = {group: section.get("kind") for group in GROUPS if isinstance(section := values.get(group), Mapping)}
    for name in values:
        if name not in (*GROUPS, *SECTIONS, *COMMAND_SECTIONS, "seed"):
            problems += [
                _unknown(path, kinds, values[name]) for path in _leaves(name, values[name]) if path not in ignore
            ]
    return incomplete(RunConfig, **sections, written=[]), problems


def _unknown_objectives(sweep: Any, env: Any, evaluation: Any) -> Iterator[Problem]:
    """`sweep.objective` names entries of `result.json`; `env.metrics` and results of evaluations are such entries."""
    objective, metrics = vars(sweep).get("objective"), vars(env).get("metrics") or ()
    evaluated = ("mean_return", *metrics) if vars(evaluation).get("every_batches") else ()
    choices = (*OBJECTIVES, *metrics, *(f"{OF_EVALUATION}{name}" for name in evaluated))
    names = objective if isinstance(objective, list) else [str(objective)]
    if not evaluated and any(name.startswith(OF_EVALUATION) for name in names):
        rule = "no run is evaluated while it trains"
        yield Conflict("sweep.objective", rule, objective, "add, for example, eval.every_batches=10.")
    elif objective is not None and (violated := out_of_range(objective, {"choices": choices})):
        yield Problem("sweep.objective", violated, objective)


def check_section(name: str, values: Mapping[str, Any]) -> Any:
    """Returns one of the `COMMAND_SECTIONS` as its dataclass, from values that `check_config` accepts."""
    return _part(name, COMMAND_SECTIONS[name], values, [])


# Keys and groups that an override may name.
_TOP_LEVEL = (*GROUPS, *SECTIONS, *COMMAND_SECTIONS, "seed", "experiment", "debug")


def known_paths() -> list[str]:
    """Returns the path of every option, such as `collector.num_workers`, of every choice in every group."""
    paths = dict.fromkeys(["seed"])
    for name, section in {**SECTIONS, **COMMAND_SECTIONS}.items():
        paths |= dict.fromkeys(_paths(name, section))
    for group in GROUPS:
        for cls in dict.fromkeys(schemas(group).values()):
            paths |= dict.fromkeys(_paths(group, cls))
    return list(paths)


def _paths(name: str, cls: Any) -> Iterator[str]:
    for field in dataclasses.fields(cls):
        path, section = f"{name}.{field.name}", section_of(_hints(cls)[field.name])
        yield from [path] if section is None else _paths(path, section)


def check_group(group: str, section: Any, problems: list[Problem], path: str = "", choice: str | None = None) -> Any:
    """Returns one group as its dataclass, and adds its problems to `problems`. Omitted options take their defaults.
    `path` is the name of the section, if that is not `group`; `choice` the one that the user made, if known."""
    path = path or group
    cls = _class_of(group, section, path)
    if isinstance(cls, Problem):
        problems.append(cls)
        return incomplete(_hints(RunConfig)[group])
    kind = section.get("kind")
    names = [field.name for field in dataclasses.fields(cls) if field.name != "kind"]
    for key in section:
        if key not in names and key != "kind":
            of = f"{group}={choice or kind}" if KINDS[group] else group
            problems += [_not_of(group, path, each, of, names) for each in _leaves(str(key), section[key])]
    return incomplete(cls, **_options(f"{path}.", cls, section, problems))


def _class_of(group: str, section: Any, path: str) -> Any:
    """Returns the dataclass of a group, chosen by its `kind`, or the `Problem` with the choice."""
    if isinstance(section, Unresolved):
        return Problem(group, section.reason)
    if not isinstance(section, Mapping):
        advice = f"add {group}=NAME. To list the names: collectx list {group}"
        if isinstance(section, str) and section != UNSET:
            return Conflict(path, f"{path} is a section", section, advice)
        return Missing(group, advice=advice)
    if not KINDS[group]:
        return schemas(group)["cpu"]
    path, kind = f"{path}.kind", section.get("kind", UNSET)
    if isinstance(kind, Unresolved):
        return Problem(path, kind.reason)
    if kind is None or kind == UNSET:
        return Missing(path, advice=f"choose {either(KINDS[group])}.")
    if not isinstance(kind, str) or kind not in KINDS[group]:
        if isinstance(kind, list | Mapping):
            return Problem(path, f"must be one name: {either(KINDS[group])}.", kind)
        return Problem(path, f"is unknown{did_you_mean(str(kind), KINDS[group])}", kind)
    return KINDS[group][kind].schema


def _part(path: str, cls: Any, value: Any, problems: list[Problem]) -> Any:
    """Returns a section, such as `launcher.trainer`, as its dataclass, and adds its problems to `problems`. Omitted
    options take their defaults."""
    names = [field.name for field in dataclasses.fields(cls)]
    if not isinstance(value, Mapping):
        is_resolved = not isinstance(value, Unresolved)
        advice = f"set one of its options, as in {path}.{_example(cls)}."
        if value is True and path.startswith("logger."):
            advice = f"write {path.replace('.', '=')}."
        wrong = Conflict(path, f"{path} is a section", value, advice) if is_resolved else None
        problems.append(wrong or Problem(path, value.reason))
        return incomplete(cls)
    for key in value:
        if key not in names:
            problems.append(_unknown_in(path, str(key), names))
    return incomplete(cls, **_options(f"{path}.", cls, value, problems))


def _example(cls: Any) -> str:
    """Returns an option of a section, with a value: null for one that is on by default."""
    fields = dataclasses.fields(cls)
    for field in fields:
        if type(None) in members(_hints(cls)[field.name]) and default_of(field) not in (None, ABSENT):
            return f"{field.name}=null"
    return f"{fields[0].name}=VALUE"


def _options(prefix: str, cls: Any, values: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Returns the options of a section that are right; adds the problems of the others to `problems`."""
    right = {}
    names = [field.name for field in dataclasses.fields(cls)]
    misspelt = {nearest(str(key), names) for key in values if key not in names}
    for field in dataclasses.fields(cls):
        hint = _hints(cls)[field.name]
        if (section := section_of(hint)) is not None and (section is hint or values.get(field.name) is not None):
            value = values.get(field.name, {})
            right[field.name] = _part(f"{prefix}{field.name}", section, value, problems)
            continue
        value = values[field.name] if field.name in values else default_of(field)
        converted = check_option(f"{prefix}{field.name}", value, hint, field.metadata)
        is_meant = field.name in misspelt
        if isinstance(converted, Problem):
            problems += [converted] * (not is_meant or not isinstance(converted, Missing))
        elif not is_meant or converted is not None:  # else absent, so that no rule misses what the misspelt key sets
            right[field.name] = converted
    return right


def check_option(path: str, value: Any, hint: Any, limits: Mapping[str, Any], language: Language = YAML) -> Any:
    """Returns the value of one option, converted to its type, or the `Problem` with it."""
    if isinstance(value, Unresolved):
        return Problem(path, value.reason)
    if value is ABSENT or (isinstance(value, str) and value == UNSET):
        what = "add your class, which has a method train(collection):" if path == "trainer.target" else "add it, as in"
        return Missing(path, advice=f"{what} {path}={_EXAMPLES.get(path.rpartition('.')[2], 'VALUE')}.")
    try:
        converted = convert(value, hint, language)
    except (TypeError, ValueError, OverflowError):
        if value == "":
            return Problem(path, f"has no value, but it {wrong_type(hint, language)}")
        rule = out_of_range(str(value), limits, language) if "choices" in limits else None
        has_keys = language is YAML and describe(hint, language) == language.types[dict]
        rule = rule or wrong_type(hint, language)
        how = _ADVICE.get(path, f"set its keys, as in {path}.NAME=VALUE.")
        advice = how if has_keys else _spelt(path, value, hint, language)
        return Problem(path, rule, value, advice)
    if violated := out_of_range(converted, limits, language):
        may_be_null = "choices" not in limits and type(None) in members(hint)
        rule = f"{violated[:-1]}, or {language.show(None)}." if may_be_null else violated
        return Problem(path, rule, value, _ADVICE.get(path, "") if language is YAML else "")
    return converted


def _spelt(path: str, value: Any, hint: Any, language: Language) -> str:
    """Returns how to write a value that YAML reads as another type: 100k, or one entry of a list."""
    if language is not YAML or isinstance(value, Mapping):
        return ""
    is_list = any(typing.get_origin(each) is list for each in members(hint))
    if isinstance(value, str) and value[:1] == "[" and is_list:
        return f"leave out the quotes, with which it is a text: {path}={value}."
    if (isinstance(value, list | tuple) or (isinstance(value, str) and value[:1] == "[")) and not is_list:
        entries = str(value).strip("[()]").replace(" ", "").replace("'", "")
        return f"to sweep over its entries: collectx run -m {path}={entries}." if "," in entries else ""
    example = _EXAMPLES.get(path.rpartition(".")[2])
    if example is not None and value is True and str in members(hint):
        return f"write {path}={example}."
    if path.endswith(("_s", "_min", "minutes")) and (time := _TIME.fullmatch(str(value))):
        return f"write {path}={float(time[1]) * _SECONDS[time[2]] / (1 if path.endswith('_s') else 60):g}."
    if (number := _COUNT.fullmatch(str(value))) and {int, float} & {*members(hint)}:
        return f"write {path}={number[1]}{_ZEROS[number[2].lower()]}."
    if (ends := _STEPS.fullmatch(str(value))) and int in members(hint):
        return f"to sweep over them: collectx run -m '{path}=range({ends[1]},{int(ends[2]) + 1})'."
    if value == "auto" and path in _TUNED:
        return "to find the fastest: collectx tune."
    lists = [each for each in members(hint) if typing.get_origin(each) is list]
    with suppress(TypeError, ValueError, OverflowError):
        listed = value.split(",") if isinstance(value, str) else [value]
        if lists and convert(listed, lists[0]):
            return f"write {path}={language.show(listed)}."
    return ""


def _not_of(group: str, path: str, key: str, choice: str, names: Collection[str]) -> Problem:
    """Returns the problem that the section `path` of a group lacks the key `key`. `choice` is what lacks the key, such
    as "trainer=ppo"; `names` are the keys that it has."""
    meant = other_names.meant(f"{group}.{key}")
    own = [each for each in meant if each.startswith(f"{group}.")]
    fitting = [f"{path}{each.removeprefix(group)}" for each in own if re.split("[.=]", each)[1] in names]
    is_of_user = {"kwargs", "target"} <= {*names}
    if fitting := fitting or [each for each in meant if each not in own and not is_of_user]:
        return Unknown(f"{path}.{key}", f"is not an option. {other_names.hint(fitting)}")
    others = [kind for kind, cls in schemas(group).items() if key in cls.__dataclass_fields__]
    if others and nearest(key, names, 0.8) is None:
        which = "" if len(others) == 1 else "one of them, such as "
        can_add = path == group and (len(others) == 1 or "kwargs" not in names)
        remedies = [f"add {which}{group}={others[0]}"] * can_add
        if "kwargs" in names:
            remedies.append(f"write {path}.kwargs.{key}=VALUE for an argument of your own class")
        advice = f"{', '.join([*remedies, 'or leave it out' if remedies else 'leave it out'])}."
        return Unknown(f"{path}.{key}", f"is an option of {group}={either(others)}, not of {choice}", advice=advice)
    if is_of_user and (meant or nearest(key, names) is None):
        rule = f"is not an option of {choice}. Did you mean {path}.kwargs.{key}, an argument of your own class?"
        return Unknown(f"{path}.{key}", rule)
    if "sbatch" in names and nearest(key, names) is None:
        rule = f"is not an option of {choice}. Did you mean {path}.sbatch.{key}, an option of sbatch?"
        return Unknown(f"{path}.{key}", rule)
    return _unknown_in(path, key, names, f" of {choice}")


def _of_kinds(options: list[str], kinds: Mapping[str, Any]) -> list[str]:
    """Returns those of the options that the chosen kinds of their groups have; if there are none, all of them, with the
    choices that have them."""
    having = {}
    for option in options:
        group, _, rest = option.partition(".")
        key, known = re.split("[.=]", rest)[0], schemas(group) if group in KINDS else {}
        others = [kind for kind, cls in known.items() if key in cls.__dataclass_fields__]
        is_lacked = key and kinds.get(group) in known and kinds[group] not in others
        having[option] = others if is_lacked else []
    fitting = [option for option in options if not having[option]]
    return fitting or [f"{each} of {each.partition('.')[0]}={either(having[each])}" for each in options]


def _unknown(path: str, kinds: Mapping[str, Any], value: object = None) -> Problem:
    """Returns the problem that there is no group or section with the key `path`. `kinds` are those of the groups, and
    `value` is that of the key, as far as they are known."""
    # As in wandb.project, without its section.
    within = [known for known in known_paths() if "." in path and known.endswith(f".{path}")]
    if meant := _of_kinds(within or other_names.meant(path, value), kinds):
        return Unknown(path, f"is not an option. {other_names.hint(meant)}")
    # The same key in a group is the likeliest meaning, then the nearest group, then a similar key in a group.
    same = _with_key(path.rpartition(".")[2].replace("-", "_"))
    if "." not in path:
        same[:0] = [f"{group}=NAME" for group in GROUPS if group == nearest(path, GROUPS, 0.9)]
        # As in "environment".
        same = same or [f"{group}=NAME" for group in GROUPS if path.startswith(group)]
        leaves = {known.rpartition(".")[2] for known in known_paths()}
        similar = None if same or nearest(path, _TOP_LEVEL, 0.85) else nearest(path, leaves, 0.85)
        same += _with_key(similar)
    same = _of_kinds(same, kinds)
    if len(same) == 1 or (same and "." not in path):
        return Unknown(path, f"is not an option. Did you mean {either(same[:3])}?")
    groups = did_you_mean(path.partition(".")[0], _TOP_LEVEL, more="To list all groups: collectx list")
    return Unknown(path, f"is not an option{groups}")


def _with_key(key: str | None) -> list[str]:
    """Returns the options of all groups and sections that have this last part."""
    same = [known for known in known_paths() if known.rpartition(".")[2] == key]
    # The parts of a run come before its sections: with trainer=record, `dir` is the trainer's.
    return sorted(same, key=lambda known: known.partition(".")[0] not in GROUPS)


def unknown_option(path: str, kinds: Mapping[str, Any]) -> Problem | None:
    """Returns the problem that no choice of any group has the option, section or group `path`; None if one has, or if
    the path is Hydra's. `kinds` are those of the groups, as far as they are known."""
    group, _, key = path.partition(".")
    if group == "hydra" or {"/", "@"} & {*path}:
        return None
    if group not in _TOP_LEVEL:
        return _unknown(path, kinds)
    known = [each.partition(".")[2] for each in known_paths() if each.startswith(f"{group}.")]
    # A mapping, such as env.kwargs, has keys of its own.
    if not key or not known or any(f"{key}.".startswith(f"{each}.") or each.startswith(f"{key}.") for each in known):
        return None
    return _unknown_in(group, key, known)


def _unknown_in(path: str, key: str, names: Collection[str], of: str = "") -> Problem:
    """Returns the problem that the section `path`, which has the keys `names`, lacks the key `key`."""
    how_to_list = f"To list all: collectx list {path.removeprefix('eval.').partition('.')[0]} -v"
    near = did_you_mean(key, names, f"{path}.", how_to_list)
    meant = other_names.meant(f"{path}.{key}")
    own = [each for each in meant if each.startswith(f"{path}.") and re.split("[.=]", each)[1] in names]
    # Of logger.wandb.foo, the part wandb is known too.
    others = [
        each for each in meant if not each.startswith(f"{path}.") and path not in ("eval", each.replace("=", "."))
    ]
    # The same key in a part of the group, as in logger.dir, or elsewhere, as in collector.wrappers; of many, none is
    # likely.
    same = [each for each in _with_key(key) if each != f"{path}.{key}"]
    same = [each for each in same if each.startswith(f"{path}.")] or same
    if (meant := own or others or same * (len(same) < 3)) and nearest(key, names, 0.8) is None:
        near = f". {other_names.hint(meant)}"
    return Unknown(f"{path}.{key}", f"is not an option{of}{near}")


def _leaves(path: str, value: Any) -> Iterator[str]:
    """Yields the paths of all values below an unknown key, as the user typed them."""
    if isinstance(value, Mapping) and value:
        for key in value:
            yield from _leaves(f"{path}.{key}", value[key])
    else:
        yield path


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)
