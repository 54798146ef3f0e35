"""Parses the overrides of a command line one by one, so that every wrong one is reported and not only the first. Values
are checked after the composition.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType
from hydra.errors import HydraException

from collectx.config import other_names
from collectx.config.check import known_paths, unknown_option
from collectx.config.problem import did_you_mean, either, page
from collectx.config.registry import GROUPS
from collectx.errors import ConfigError
from collectx.run.preflight import known_env_id


@dataclass(frozen=True)
class Checked:
    """The overrides of a command line, after `check_overrides`.

    Attributes:
        overrides: those that Hydra can compose, in the form that accepts any key.
        problems: a message for each other override.
        broken: the groups with a wrong choice, whose keys cannot be checked.
        notes: a message for each choice or value that a later one of the same group or option replaces.
    """

    overrides: tuple[str, ...]
    problems: tuple[str, ...]
    broken: frozenset[str]
    notes: tuple[str, ...] = ()


_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")
# What says where a command runs, and what happens to a run there.
_OF_FOLDERS = (*_FOLDERS, "run.overwrite", "run.resume", "resume")
# What a primary file of the user needs, so that it changes options of collectx's own.
BASED = "defaults: [config, _self_]"
# What Hydra computes in a value.
_FUNCTIONS = ("choice", "range", "interval", "glob", "shuffle", "sort", "tag", "int", "float", "bool", "str")
# Per group, the choice that takes a user's class or function, and its option.
_CLASS_OPTIONS = {
    "env": ("gym", "entry_point"),
    "policy": ("custom", "target"),
    "trainer": ("custom", "target"),
    "logger": ("custom", "custom.target"),
}


def quoted(value: object) -> str:
    """Returns `value` in quotes, for an override: without them, Hydra would read `a=1,b=2`, the folder of a point, as
    two values."""
    # A backslash is itself, except before a quote.
    text = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), str(value))
    return f"'{text}'"


def key_of(override: str) -> str:
    """Returns the key or group of an override, such as `env` of `env=gym` and of `++env=gym`."""
    return override.lstrip("+").partition("=")[0]


def repeated(argv: Sequence[str], option: str, folder: str, *words: str) -> str:
    """Returns the command line `argv`, as the shell reads it, for this `folder`; `words` follow in place of those about
    an earlier run there."""
    kept = [word for word in argv if key_of(word) not in _OF_FOLDERS]
    return shlex.join([*kept, f"{option}={folder if re.fullmatch('[^=, ]+', folder) else quoted(folder)}", *words])


def with_section(words: Sequence[str], section: str, names: Collection[str]) -> list[str]:
    """Returns the words of a subcommand with its own section before its own options `names`: eval.episodes=10 for
    episodes=10. Raises `ConfigError` about unknown options that resemble one of them."""
    problems = [text for word in words if (text := _own_option(key_of(word), section))]
    if problems:
        raise ConfigError(*problems)
    return [f"{section}.{word}" if word.partition("=")[0] in names else word for word in words]


def _own_option(key: str, section: str) -> str | None:
    """Returns the message about an unknown option that resembles one of the section; None for others."""
    own = str(unknown_option(f"{section}.{key}", {}) or "")
    is_meant = "." not in key and unknown_option(key, {}) is not None and f"Did you mean {section}." in own
    return own.replace(f"{section}.", "") if is_meant else None


def unused_folder(words: Sequence[str], is_sweep: bool) -> list[str]:
    """Returns the problem of a typed folder that has no effect, because only a sweep or only a single run uses it. A
    script may pass both."""
    used, unused = reversed(_FOLDERS) if is_sweep else _FOLDERS
    typed = {key_of(word): word.lstrip("+") for word in words}
    if unused not in typed or used in typed:
        return []
    how = "in a sweep" if is_sweep else "without -m"
    return [f"{typed[unused]} has no effect {how}. Write {used}={typed[unused].partition('=')[2]}, or leave it out."]


def check_overrides(overrides: Sequence[str], groups: Mapping[str, Sequence[str]]) -> Checked:
    """Checks `overrides`; `groups` lists the choices of every group."""
    parser = OverridesParser.create()
    usable: list[str] = []
    problems: list[str] = []
    broken: set[str] = set()
    notes: list[str] = []
    chosen: dict[str, str] = {}
    for text in joined(overrides, groups):
        if "=" in text and text not in overrides:
            one = re.sub(" *= *", "=", text, count=1)
            one = one if "{" in one else re.sub(",? +", ",", one)
            problems.append(f"{text} arrives in pieces, because of its spaces. Write {shlex.quote(one)}")
            continue
        try:
            override = parser.parse_override(text)
        except HydraException:
            problems.append(_unreadable(text, groups))
            continue
        key = override.key_or_group
        if not key and text.endswith((".yaml", ".yml")):
            problems.append(of_file(text))
            continue
        if not key:
            problems.append(f"'{text}' has no key. Write key=value or group=choice, without spaces around the =.")
            continue
        pattern: object = override.value()
        if key in groups and pattern == "" and not override.is_delete():
            problems.append(f"{text} has no value. Valid names: {', '.join(groups[key])}.")
            broken.add(key)
            continue
        if key in _FOLDERS and pattern in ("", None):
            problems.append(f"{text} has no value. Write {key}=DIR, or leave the option out to use a new folder.")
            continue
        if key.startswith("hydra.sweeper.params"):
            # OmegaConf 2.3 fails with an AttributeError.
            problems.append(
                f"{text} cannot be used: hydra.sweeper.params can only be set in a file. Here, give each option its "
                "values, as in seed=0,1 or trainer.gamma=interval(0.9,0.999)."
            )
            continue
        if isinstance(pattern, Glob):
            # Hydra's expansion would include files with a leading underscore, and needs its config loader.
            names = pattern.filter([*groups.get(key, ())])
            if not names:
                problems.append(_nothing_matches(text, key, groups))
                broken.add(key)
                continue
            text = f"{key}={','.join(names)}"
            override = parser.parse_override(text)
        is_plain = override.package is None and not override.is_delete()
        if is_plain:
            if chosen.get(key, text) != text:
                notes.append(f"{chosen[key]} has no effect, because {text} comes after it.")
            chosen[key] = text
        if is_plain and key in groups:
            wrong = _wrong_choices(override, groups[key] if key in GROUPS else [*groups[key], "null"])
            if wrong:
                typed = next((text.partition("=")[2] for text in overrides if key_of(text) == "env.id"), "NAME-v5")
                game = re.sub(r"^ALE/|(NoFrameskip|Deterministic)?-v\d+$", "", typed)
                problems += [
                    no_such_choice(key, each, groups[key]).replace("ALE/NAME", f"ALE/{game}") for each in wrong
                ]
                broken.add(key)
            elif override.value() is None:
                # Hydra spells an optional group without a choice `~group`.
                usable.append(f"~{key}")
            else:
                usable.append(text.lstrip("+"))
        else:
            usable.append(_forced(override, text))
    return Checked(tuple(usable), tuple(problems), frozenset(broken), tuple(notes))


def no_such_choice(key: str, choice: str, options: Sequence[str]) -> str:
    """Returns the message about a choice that the group `key`, with the choices `options`, does not have."""
    # As the user wrote it; Hydra prints a bool as Python does.
    choice = choice.lower() if choice in ("True", "False") else choice.replace("\\:", ":")
    if choice.startswith("{"):
        names = ", ".join(options[:3])
        return f"{key}={choice} is not a name, such as {names}. Write its options one by one: {key}.NAME=VALUE"
    if key == "env" and choice.lower() not in options and (env_id := known_env_id(choice.removeprefix("gym:"))):
        base = "pong" if env_id.startswith("ALE/") else "gym"
        return f"env={choice} is unknown. To make the Gymnasium env with this name: env={base} env.id={env_id}"
    if not (":" in choice or choice.endswith(".py")) or key not in _CLASS_OPTIONS:
        more = f"To list all: collectx list {key}" if "/" not in key else ""
        stem = re.sub(r"\.ya?ml$", "", choice)
        if stem != choice and stem in options:
            return f"{key}={choice} is unknown. Did you mean {key}={stem}?"
        if stem != choice:
            return f"{key}={choice} is unknown, because collectx takes names. {_of_choice(key, choice, stem)}"
        if os.path.isfile(file := f"conf/{key}/{stem}.yaml") and choice[:1] != "_":
            return f"{key}={choice} is unknown, but {file} exists. Add --config-dir conf"
        if choice.lower() in ("none", "off", "false") and key in ("logger", "experiment", "debug"):
            return f"{key}={choice} is unknown. Did you mean {key}=null?"
        # What is meant by the choice of a group: options, choices and presets, not commands.
        meant = other_names.meant(f"{key}={choice}") or other_names.meant(choice)
        if meant := [each for each in meant if each.startswith(key) or each[0].isupper() or "=" in each]:
            names = f"Valid names: {', '.join(options)}. " if meant[0][0].isupper() else ""
            return f"{key}={choice} is unknown. {names}{other_names.hint(meant)}"
        if other := next(Path().glob(f"*/{key}/{glob.escape(choice)}.yml"), None):
            return f"{key}={choice} is unknown, because {other} has another ending. Rename it to {choice}.yaml."
        advice = did_you_mean(choice, options, f"{key}=", more)
        if key == "env" and "Did you mean" not in advice:
            advice += f" For an env of another package, set env.id. For examples: {page('ecosystem')}"
        return f"{key}={choice} is unknown{advice}"
    # A class or function as MODULE:NAME, or its file.
    return f"{key}={choice} is unknown. To use your own: {_of_user(choice, key)}"


def _nothing_matches(text: str, key: str, groups: Mapping[str, Sequence[str]]) -> str:
    if key not in groups:
        return (
            f"{text} cannot be used: glob() selects choices of a group, but there is no group '{key}'. To list all "
            "groups: collectx list"
        )
    return f"{text} matches no choice. Valid names: {', '.join(groups[key])}."


def _wrong_choices(override: Override, options: Sequence[str]) -> list[str]:
    """Returns the chosen names that do not exist. An override may choose several, such as `logger=[csv,wandb]`."""
    if override.is_sweep_override():
        names = list(override.sweep_string_iterator()) if override.is_discrete_sweep() else []
    else:
        names = [override.get_value_element_as_str()]
    single = [each for name in names for each in (name[1:-1].split(",") if name.startswith("[") else [name]) if each]
    return [name for name in single if name not in options]


def _forced(override: Override, text: str) -> str:
    """Returns `++key=value` for a key outside of Hydra's part, so that Hydra accepts new keys: sections without fixed
    keys need that (`env.kwargs.x=1`), and typos are reported after the composition, with all other problems."""
    key = override.key_or_group
    ours = "/" not in key and "@" not in key and not key.startswith("hydra.") and override.package is None
    if ours and override.type in (OverrideType.CHANGE, OverrideType.ADD):
        return "++" + text.lstrip("+")
    return text


def of_file(text: str, what: str = "is a file, and collectx takes names") -> str:
    """Returns how to use a file of the user. `what` is wrong: by default, it stands where an override is expected."""
    folder, name = os.path.split(os.path.splitext(text)[0])
    root, group = os.path.split(folder)
    is_choice = group in (*GROUPS, "experiment", "debug", "logger")
    words = f"--config-dir {root or '.'} {group}={name}" if is_choice else f"--config-dir {folder or '.'} -cn {name}"
    if not os.path.isfile(text):
        return f"there is no file {text}. To use a file of yours, write its folder and name: --config-dir DIR -cn NAME"
    steps = ["rename it, as collectx has its own config.yaml"] * (not is_choice and name == "config")
    words = words.replace("-cn config", "-cn NAME")
    if not is_choice and not re.search(r"^defaults:", Path(text).read_text(errors="replace"), re.MULTILINE):
        steps.append(f"add the line '{BASED}' to it")
    how = ", ".join([*steps, f"{'and ' if steps else ''}write {words}"])
    return f"{text} {what}. {how[0].upper()}{how[1:]}"


def _of_choice(group: str, file: str, stem: str) -> str:
    """Returns how to choose a file of the user, which need not exist, in a group. `stem` is its path without its
    ending."""
    folder, name = os.path.split(stem)
    inside = f"conf/{group}/{name}.yaml"
    above, _, last = folder.rpartition("/")
    if os.path.isfile(file) and last != group:
        return f"Move the file to {inside}, and write --config-dir conf {group}={name}"
    if not os.path.isfile(file) and os.path.isfile(inside):
        above = "conf"
    elif not os.path.isfile(file):
        return f"For a file DIR/{group}/{name}.yaml of yours, write --config-dir DIR {group}={name}"
    return f"Write --config-dir {above or '.'} {group}={name}"


def joined(overrides: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns words of a command line, with the words of `seed 3`, `seed = 3`, `seed=0, 1` or
    `policy.hidden_sizes=[64, 64]` as one."""
    words: list[str] = []
    for i, text in enumerate(overrides):
        last = words[-1] if words else ""
        # As in seed=0, 1 and seed=0 1; but a folder may be named by a number.
        is_cut = "=" in last and (last.endswith(",") or (f"{last[-1]}{text}".isdecimal() and not os.path.isdir(text)))
        is_cut = is_cut or (_is_open(last) and not _is_open(" ".join((last, *overrides[i:]))))
        key = last.rstrip(" =")
        is_cut = is_cut or ((key in groups or key in known_paths()) and last[-1] == "=")
        is_whole = last in groups or last in known_paths()
        is_value = text[:1] == "=" and (text != "=" or "=" not in "".join(overrides[i + 1 : i + 2] or "="))
        if last and text and ((is_whole and is_value) or ((is_cut or is_whole) and "=" not in text)):
            words[-1] += f" {text}"
        else:
            words.append(text)
    return words


def _is_open(text: str) -> bool:
    """Whether a bracket of a list or a mapping is not closed."""
    return any(text.count(start) > text.count(end) for start, end in ("[]", "{}"))


def _of_user(name: str, *groups: str) -> str:
    """Returns how to choose a class or function `MODULE:NAME` of the user, or one in a file, in one of these groups."""
    target = f"{name[:-3].replace('/', '.')}:NAME" if name.endswith(".py") else name
    named = ((group, *_CLASS_OPTIONS[group]) for group in groups)
    return either(f"{group}={kind} {group}.{option}={target}" for group, kind, option in named)


def _unreadable(text: str, groups: Mapping[str, Sequence[str]]) -> str:
    """Returns what is wrong with an override that Hydra cannot parse."""
    if not text:
        return "an argument is empty (''). Leave it out, or write key=value."
    if text.endswith((".yaml", ".yml")):
        return of_file(text)
    if "=" not in text:
        if os.path.isdir(text) and any(os.path.isdir(os.path.join(text, group)) for group in groups):
            return f"'{text}' is a folder. To take choices from it: --config-dir {text}"
        if os.path.isdir(text) and text not in groups:
            return f"'{text}' is a folder. To continue, repeat or evaluate its run: collectx resume, reproduce or eval"
        key, value = (*re.split(r":\s*|\s+", text, maxsplit=1), "")[:2]
        if value and (key in groups or key in known_paths()):
            return f"'{text}' lacks the =. Write {key}={value}"
        if meant := [f"{group}={text}" for group in (*GROUPS, "experiment", "debug") if text in groups.get(group, ())]:
            return f"'{text}' is not an override. Did you mean {either(meant)}?"
        if re.fullmatch(r"[\w.]+:[\w.]+", text) or text.endswith(".py"):
            return f"'{text}' is not an override. To use a class of yours: {_of_user(text, 'env', 'policy', 'trainer')}"
        if text == "help":
            return "'help' is not an override. To read the help, write the flag --help."
        if text in groups:
            return f"'{text}' has no value. Write {text}=NAME. Valid names: {', '.join(groups[text])}."
        return f"'{text}' has no value. Write key=value or group=choice, without spaces around the =."
    if interval := re.fullmatch(r"(.*)interval\((.*?),\s*log\s*=\s*true\)", text, re.IGNORECASE):
        return f"{text} cannot be read. A logarithmic interval is {interval[1]}tag(log,interval({interval[2]}))"
    if equals := re.fullmatch(r"([\w.]+)(?: +=|=(?== | *=| ))[= ]*([\w.-]+)", text):
        return f"'{text}' cannot be read. Write {equals[1]}={equals[2]}"
    if text.endswith(",") and not _is_open(text):
        return f"{text} cannot be read. Leave out the comma at its end: {text.rstrip(',')}"
    if listed := re.fullmatch(r"([\w.]+=)\(([^()]*)\)", text):
        return f"{text} cannot be read. Write a list in square brackets: {listed[1]}[{listed[2]}]"
    if (called := re.fullmatch(r"[\w.]+=([a-z]\w*)\(.*\)", text)) and called[1] not in _FUNCTIONS:
        return f"{text} cannot be read: {called[1]}() is unknown. Valid names: {', '.join(_FUNCTIONS)}."
    return f"{text} cannot be read. Close all brackets, and put quotes around special characters: \"key='a b'\""
