"""Splits a command line into words and flags, in any order, and passes it to Hydra.

Hydra's parser does not accept overrides on both sides of a flag, so it gets the overrides first.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from collectx.config.problem import did_you_mean, either, nearest
from collectx.errors import CollectxError, ConfigError, frames_of_user
from collectx.run.folder.layout import RunFolder, runs_below
from collectx.run.terminal import printing

# Subcommands that take overrides.
COMPOSING = ("run", "plan", "tune", "reproduce", "resume", "eval")
# Flags of the subcommands that take no value, in addition to Hydra's, and their short names.
_SWITCHES: dict[str, dict[str, str]] = {
    "cancel": {"now": ""},
    "doctor": {"json": ""},
    "eval": {"trust": ""},
    "export": {"trust": ""},
    "list": {"verbose": "-v"},
    "logs": {"follow": "-f"},
    "plan": {"json": ""},
    "reproduce": {"trust": ""},
    "resume": {"trust": "", "moved": ""},
}
# Subcommands whose own options, those of the section of the same name, need no section: episodes=10.
OWN_SECTIONS = ("eval", "tune")
# What users call the options of subcommands.
_CALLED = {
    "objective": ("metric", "monitor", "goal"),
    "out": ("output", "output_dir", "dir", "folder"),
    "output": ("out", "path", "file"),
    "format": ("to", "type"),
}
# Flags of the subcommands that take a value, and their short names.
_OPTIONS: dict[str, dict[str, str]] = {"tune": {"output": "-o"}}
# Hydra's flags that take no value, and those that take one, with their short names.
_HYDRA_SWITCHES = {"hydra-help": "", "multirun": "-m", "run": "-r", "resolve": ""}
_HYDRA_OPTIONS = {"config-dir": "-cd", "config-name": "-cn", "cfg": "-c", "package": "-p"}
_HYDRAS = (*_HYDRA_SWITCHES, *_HYDRA_OPTIONS, "info")
_OF_SAVED_RUNS = tuple(name for name in _HYDRAS if name not in ("run", "config-name"))
# Which of Hydra's flags a subcommand reads. Some read --multirun to say why they cannot sweep.
_READS: dict[str, tuple[str, ...]] = {
    "eval": ("multirun", "config-dir"),
    "list": ("config-dir", "config-name"),
    "plan": ("multirun", "config-dir", "config-name"),
    "reproduce": _OF_SAVED_RUNS,
    "resume": _OF_SAVED_RUNS,
    "run": _HYDRAS,
    "tune": ("multirun", "config-dir", "config-name"),
}
_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_VALUES = {"cfg": ("job", "hydra", "all")}
_BLOCKED = {
    "--experimental-rerun": "cannot be used: it executes a pickle, and writes into the old run folder. To repeat a "
    "run: collectx reproduce RUN_DIR",
    "--config-path": "cannot be used: it would replace the choices of collectx. To add your own: --config-dir DIR",
}

# What a run must have for a subcommand.
_WEIGHTS: tuple[str, Callable[[RunFolder], bool]] = (
    " with weights",
    # A run that failed before its first batch has written its first weights.
    lambda run: (
        run.has_checkpoint or (run.policy.is_file() and run.metrics.is_file() and run.metrics.stat().st_size > 0)
    ),
)
_NEEDS: dict[str, tuple[str, Callable[[RunFolder], bool]]] = {
    "collectx resume": (" with a checkpoint", lambda run: run.has_checkpoint),
    "collectx eval": _WEIGHTS,
    "collectx export": _WEIGHTS,
}


class UsageError(ConfigError):
    """The command line itself is wrong, whatever the configuration says."""


@dataclass(frozen=True)
class Arguments:
    """A command line, after the name of the subcommand.

    Attributes:
        words: the arguments that do not begin with a dash.
        flags: the value of each flag, "" for a switch, by the flag's long name without dashes.
        argv: the complete command line as typed, which the snapshot records.
    """

    words: tuple[str, ...]
    flags: dict[str, str]
    argv: tuple[str, ...] = ()

    @property
    def config_dir(self) -> str | None:
        return self.flags.get("config-dir")

    @property
    def config_name(self) -> str:
        return self.flags.get("config-name", "config")

    @property
    def is_multirun(self) -> bool:
        return "multirun" in self.flags


class _Parser(argparse.ArgumentParser):
    def __init__(self, subcommand: str):
        super().__init__(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
        self.add_argument("words", nargs="*", default=())
        switches, options = {"help": "-h"} | _SWITCHES.get(subcommand, {}), _OPTIONS.get(subcommand, {})
        if subcommand in _READS:
            # All of them: `split` refuses those that the subcommand does not read.
            switches, options = _HYDRA_SWITCHES | switches, _HYDRA_OPTIONS | options
            self.add_argument("-i", "--info", nargs="?", const="all", choices=_INFO)
            self.add_argument("--experimental-rerun", action=_Blocked)
            self.add_argument("-cp", "--config-path", action=_Blocked)
        for name, short in switches.items():
            self.add_argument(*filter(None, (short, f"--{name}")), dest=name, action="store_const", const="")
        for name, short in options.items():
            self.add_argument(short, f"--{name}", dest=name, metavar="VALUE", choices=_VALUES.get(name))

    def error(self, message: str) -> NoReturn:
        if wrong := re.fullmatch(r"argument .*--cfg: invalid choice: '(.*\.ya?ml)' .*", message):
            from collectx.cli.overrides import of_file

            raise UsageError(f"-c is --cfg of Hydra, which shows the configuration. {of_file(wrong[1])}")
        if (wrong := re.fullmatch(r"argument .*--cfg: invalid choice: '(.*)' .*", message)) and os.path.isdir(wrong[1]):
            raise UsageError(f"-c is --cfg of Hydra. To take choices from a folder: --config-dir {wrong[1]}")
        if wrong := re.fullmatch(r"argument .*(--\S+): invalid choice: '(.*)' \(choose from (.*)\)", message):
            choices = wrong[3].replace("'", "")
            raise UsageError(f"{wrong[1]} {wrong[2]} is unknown. Valid values: {choices}.")
        if wrong := re.fullmatch(r"argument .*(--\S+): ignored explicit argument '(.*)'", message):
            raise UsageError(f"{wrong[1]} takes no value, but got '{wrong[2]}'. Write the flag alone: {wrong[1]}")
        if wrong := re.fullmatch(r"argument .*(--\S+): expected one argument", message):
            values = next((f" ({either(_VALUES[name])})" for name in _VALUES if wrong[1] == f"--{name}"), "")
            raise UsageError(f"{wrong[1]} needs a value{values}. Write it after the flag: {wrong[1]} VALUE")
        raise UsageError(f"{message}.")


class _Blocked(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **keywords: Any) -> NoReturn:
        name = self.option_strings[-1]
        raise UsageError(f"{name} {_BLOCKED[name]}")


def split(argv: Sequence[str], subcommand: str = "run", usage: str = "") -> Arguments:
    """Returns the words and flags in `argv`, the command line after the name of the subcommand. For `usage`, see
    `subcommand`. Raises `UsageError` if a flag is unknown, lacks its value or is blocked; the message says why."""
    flags, unknown = _Parser(subcommand).parse_known_intermixed_args(argv)
    if unknown:
        answers: dict[str, list[str]] = {}
        # argparse adds words that come after them.
        for flag in [each for each in unknown if each.startswith("-")] or unknown:
            answers.setdefault(_instead(flag, argv, subcommand, usage), []).append(flag)
        wrong = [f"unknown flag{'s'[: len(flags) - 1]} {' and '.join(flags)}{end}" for end, flags in answers.items()]
        raise UsageError(*wrong)
    values = vars(flags)
    if foreign := [name for name in values if name in _HYDRAS and name not in _READS[subcommand]]:
        raise UsageError(f"{subcommand} has no flag --{foreign[0]}, unlike run. {synopsis(usage)}")
    return Arguments(tuple(values.pop("words")), values, ("collectx", subcommand, *argv))


def _instead(flag: str, argv: Sequence[str], subcommand: str, usage: str) -> str:
    """Returns the end of a sentence about an unknown flag, with what to type."""
    from collectx.config.check import unknown_option
    from collectx.config.other_names import meant
    from collectx.config.registry import GROUPS

    name, has_value, value = flag.partition("=")
    key = name.lstrip("-")
    if subcommand == "run" and key.replace("-", "") in ("dry", "dryrun"):
        return ". To see what a run would do, without starting it: collectx plan"
    after = next(iter([*argv, ""][argv.index(flag) + 1 :]))
    if name in ("--config", "--experiment", "--config-file"):
        chosen = re.sub(r"\.ya?ml$", "", value or (after if after[:1] != "-" else "")) or "NAME"
        folder = "conf" if os.path.isfile(f"conf/experiment/{chosen}.yaml") else "DIR"
        if os.path.isfile(f"{chosen}.yaml"):
            from collectx.cli.overrides import of_file  # imports Hydra

            return f": {of_file(f'{chosen}.yaml')}"
        return f". To use an experiment of yours: --config-dir {folder} experiment={chosen}"
    if near := nearest(name, [each for each in names(subcommand) if each != "--run"], 0.75):
        return f". Did you mean {near}?"
    # As in `[episodes=10]`.
    in_usage = re.findall(r"[ \[](\w+)=", usage)
    is_in_usage = key in in_usage
    if subcommand not in COMPOSING and (called := [each for each in in_usage if key in _CALLED.get(each, ())]):
        key, is_in_usage = called[0], True
    if not is_in_usage and (subcommand not in COMPOSING or not (has_value or len(key) > 1 or meant(key))):
        return f". {synopsis(usage)}" if usage else f". To list all flags: collectx {subcommand} --help"
    if name == "--resume":
        return f". To continue a run: collectx resume {after if after[:1] not in ('', '-') else 'RUN_DIR'}"
    kinds: dict[str, str] = dict(word.split("=", 1) for word in argv if "=" in word)
    if "experiment" not in kinds:
        kinds.setdefault("trainer", "ppo")  # collectx/conf/config.yaml
    paths = (key, f"{subcommand}.{key}")[: 1 + (subcommand in OWN_SECTIONS)]
    problems = [unknown_option(path, kinds) for path in paths]
    if not is_in_usage and problems[0] is not None and None not in problems:
        return f", and {problems[0]}"
    if not has_value:
        # The words after the flag include its value, if it has one.
        groups = (*GROUPS, "logger", "experiment", "debug")
        value = after if after[:1] not in ("", "-") else "NAME" if key in groups else "true"
    return f". Write options without dashes: {key}={value}"


def synopsis(usage: str) -> str:
    """Returns how to type a subcommand, from the text of its `--help`."""
    return "Usage: " + re.split(r":\s", usage)[0]


def unknown_key(key: str, value: str, options: Collection[str], values: Mapping[str, Collection[str]] = {}) -> str:
    """Returns the message about an option `key=value` that a subcommand with these `options` does not have. `values`
    are those of options that have few."""
    meant = [each for each in options if key in _CALLED.get(each, ()) or value in values.get(each, ())]
    if not meant:
        return f"{key} is not an option{did_you_mean(key, options)}"
    allowed = values.get(meant[0], (value,))
    valid = "" if (near := nearest(value, allowed)) else f" Valid names: {', '.join(allowed)}."
    return f"{key} is not an option. Did you mean {meant[0]}={near or 'NAME'}?{valid}"


def refuse_empty(options: Mapping[str, str]) -> None:
    """Raises `UsageError` if an option has no value."""
    if empty := [key for key, value in options.items() if not value]:
        raise UsageError(f"{empty[0]}= has no value. Write {empty[0]}=VALUE, or leave the option out.")


def ask_which(usage: str, runs: str = "run") -> str:
    """Returns the question for a run folder, with the newest one below `outputs` that the subcommand can use, and how
    to type it."""
    command = " ".join(usage.split()[:2])
    needs, can_use = _NEEDS.get(command, ("", lambda run: True))
    found = [os.path.relpath(run.path) for run in runs_below(Path("outputs")) if can_use(run)]
    newest = max(found, key=lambda folder: os.path.getmtime(os.path.join(folder, "snapshot")), default=None)
    example = "" if newest is None else f"For your newest run{needs}: {command} {shlex.quote(newest)}. "
    return f"which {runs}? {example}{synopsis(usage)}"


def names(subcommand: str) -> list[str]:
    """Returns the long names of a subcommand's flags, such as `--config-dir`."""
    flags = ("help", *_READS.get(subcommand, ()), *_SWITCHES.get(subcommand, ()), *_OPTIONS.get(subcommand, ()))
    return [f"--{name}" for name in flags]


def subcommand(
    name: str, run: Callable[[Arguments], int], usage: str = "", lists_problems: bool = False
) -> Callable[[Sequence[str]], int]:
    """Returns the `main(argv)` of a subcommand: it calls `run` and returns the exit status, or prints the usage for
    `--help`. It prints a `ConfigError` and returns 2, or another error of collectx or of the user's code and returns 1.

    Args:
        usage: the text of `--help`; "": Hydra prints its own.
        lists_problems: whether the problems of a `ConfigError` are printed as a list, because they are the
            configuration's.
    """

    def main(argv: Sequence[str]) -> int:
        try:
            arguments = split(argv, name, usage)
            if usage and "help" in arguments.flags:
                print(usage)
                return 0
            return run(arguments)
        except ConfigError as error:
            if lists_problems and not isinstance(error, UsageError):
                _print_list(error.problems)
            else:
                for text in error.problems:
                    printing.message(text if text.startswith((f"{name}: ", f"{name} ")) else f"{name}: {text}")
            return 2
        except Exception as error:
            # Of a fault of collectx itself, Python prints the traceback.
            if not (isinstance(error, CollectxError) or frames_of_user(error) or hasattr(error, "__notes__")):
                raise
            from collectx.run.terminal.display import format_error

            printing.error(format_error(error))
            return 1

    return main


def _print_list(problems: Sequence[str]) -> None:
    count = f"{len(problems)} configuration errors" if len(problems) > 1 else "Configuration error"
    printing.print_message(f"{count} (nothing was started):", "bold red")
    for problem in problems:
        first, *more = problem.splitlines()
        printing.print_message("\n".join([f"  - {first}", *(f"    {line}" for line in more)]))


def one_group(
    words: Sequence[str],
    subcommand: str,
    groups: Iterable[str],
    choices: Mapping[str, Collection[str]] | None = None,
) -> str | None:
    """Returns the only word, which names a group; None without words. Raises `UsageError` if there are several words,
    or the word does not name one of `groups`. `choices` are those of each group, for the message."""
    groups = list(groups)
    if unknown := [name for name in words if name not in groups]:
        group = unknown[0].partition(".")[0]
        if group in groups and group != unknown[0]:
            choice = unknown[0].partition(".")[2]
            what = f"{group} {choice}" if choice in (choices or {}).get(group, ()) else f"{group} -v"
            raise UsageError(f"'{unknown[0]}' is not a group. To list its options: collectx list {what}")
        if having := [group for group in groups if unknown[0] in (choices or {}).get(group, ())]:
            which = either(f"collectx {subcommand} {group} {unknown[0]}" for group in having)
            raise UsageError(f"'{unknown[0]}' is a choice, not a group. To list its keys: {which}")
        more = "To list all: collectx list" if nearest(unknown[0], groups) else f"Valid names: {', '.join(groups)}."
        raise UsageError(f"there is no group '{unknown[0]}'{did_you_mean(unknown[0], groups, more=more)}")
    if len(words) > 1:
        raise UsageError(f"name one group, not {len(words)} ({', '.join(words)}), or none for all groups.")
    return next(iter(words), None)


def call_hydra(
    words: Sequence[str],
    task: Callable[..., Any] = lambda node: None,
    config_name: str = "config",
    config_dir: str | os.PathLike[str] | None = None,
    program: str = "collectx run",
) -> None:
    """Calls `hydra.main` with a task function and a command line whose overrides come first.

    Raises:
        Exception: whatever Hydra or the task raised; by default, Hydra would print it and exit.
        SystemExit: the words contain `--help`, and Hydra has printed it.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig

    from hydra_plugins import collectx as plugins

    plugins.register(config_dir)
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    old_argv, sys.argv = sys.argv, [program, *words]
    # `--cfg` sets it, and leaves it set.
    state = HydraConfig.instance()
    old_config = state.cfg
    try:
        with _texts_as_help():
            hydra.main(config_path="pkg://collectx.conf", config_name=config_name, **plugins.VERSION_BASE)(task)()
    finally:
        sys.argv, state.cfg = old_argv, old_config


@contextmanager
def _texts_as_help() -> Iterator[None]:
    """Within the block, argparse accepts an object as the help of an argument, such as that of Hydra 1.3's
    `--shell-completion`. Python 3.14 only accepts a text."""
    parser: Any = argparse.ArgumentParser
    add = parser.add_argument

    def add_with_text(parser: Any, *names: str, help: Any = None, **options: Any) -> Any:
        text = help if help is None or isinstance(help, str) else str(help).replace("%", "%%")
        return add(parser, *names, help=text, **options)

    parser.add_argument = add_with_text
    try:
        yield
    finally:
        parser.add_argument = add
