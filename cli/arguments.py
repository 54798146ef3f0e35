"""Splits a command line into overrides and Hydra's flags, in any order.

Hydra's parser does not accept overrides on both sides of a flag, so it gets the overrides first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from collectx.cli import output
from collectx.config.problem import did_you_mean
from collectx.errors import ConfigError

SEARCH_PATH = "pkg://collectx.conf"
_SWITCHES = ("help", "hydra-help", "multirun", "run", "resolve", "version")
_VALUED = ("config-dir", "config-name", "cfg", "package")
_SHORT = {
    **{"-h": "--help", "-m": "--multirun", "-r": "--run", "-cd": "--config-dir", "-cn": "--config-name"},
    **{"-c": "--cfg", "-p": "--package", "-i": "--info"},
}
_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_BLOCKED = {
    "--experimental-rerun": "it reads a pickle, which executes code, and writes into the old run folder: "
    "use `collectx reproduce RUN_DIR [overrides]`.",
    "--config-path": "the packaged choices are always available; add choices with --config-dir DIR.",
    "-cp": "the packaged choices are always available; add choices with --config-dir DIR.",
}


@dataclass(frozen=True)
class Arguments:
    """A command line: its words, which do not begin with a dash, and each flag's long name without dashes, with its
    value ("" for a switch)."""

    words: tuple[str, ...]
    flags: dict[str, str]

    @property
    def config_dir(self) -> str | None:
        return self.flags.get("config-dir")

    @property
    def config_name(self) -> str:
        return self.flags.get("config-name", "config")

    def hydra_argv(self) -> list[str]:
        """The flags as Hydra reads them."""
        return [token for name, value in self.flags.items() for token in (f"--{name}", value) if token]


def split(argv: Sequence[str], switches: Sequence[str] = ()) -> Arguments:
    """Reads `argv`.

    Args:
        switches: names of the subcommand's flags without a value, in addition to Hydra's.

    Raises:
        ConfigError: an unknown flag, or one that is blocked, with the reason.
    """
    words: list[str] = []
    flags: dict[str, str] = {}
    tokens = list(argv)
    while tokens:
        token = tokens.pop(0)
        option, has_value, value = token.partition("=")
        name = _SHORT.get(option, option).removeprefix("--")
        if not token.startswith("-"):
            words.append(token)
        elif option in _BLOCKED:
            raise ConfigError([f"{option}: {_BLOCKED[option]}"])
        elif name in (*_SWITCHES, *switches) and not has_value:
            flags[name] = ""
        elif name in _VALUED:
            if not has_value and not tokens:
                raise ConfigError([f"{option} needs a value."])
            flags[name] = value if has_value else tokens.pop(0)
        elif name == "info":
            flags[name] = value if has_value else tokens.pop(0) if tokens and tokens[0] in _INFO else "all"
        else:
            raise ConfigError([f"{token}: no such flag{did_you_mean(token, names(switches))}"])
    return Arguments(tuple(words), flags)


def run_subcommand(
    argv: Sequence[str],
    usage: str,
    run: Callable[[Arguments], int],
    switches: Sequence[str] = (),
    report: Callable[[Sequence[str]], int] = output.usage_errors,
) -> int:
    """Runs a subcommand with its command line, or prints its usage for `--help`; returns the exit status.

    Args:
        usage: "": Hydra prints it.
        switches: see `split`.
        report: prints the problems of a `ConfigError`.
    """
    try:
        arguments = split(argv, switches)
        if usage and "help" in arguments.flags:
            print(usage)
            return 0
        return run(arguments)
    except ConfigError as error:
        return report(error.problems)


def one_group(arguments: Arguments, subcommand: str, groups: Iterable[str]) -> str | None:
    """The only word of a command line, the name of a group; None without words.

    Raises:
        ConfigError: another group, or several words.
    """
    unknown = [name for name in arguments.words if name not in groups] or arguments.words[1:]
    if unknown:
        raise ConfigError([f"{subcommand}: {unknown[0]}: no such group{did_you_mean(unknown[0], [*groups])}"])
    return next(iter(arguments.words), None)


def call_hydra(argv: Sequence[str], config_name: str = "config") -> None:
    """Calls Hydra with a command line in its form that prints something and runs nothing."""
    import hydra

    old_argv, sys.argv = sys.argv, list(argv)
    try:
        hydra.main(version_base="1.3", config_path=SEARCH_PATH, config_name=config_name)(lambda _: None)()
    finally:
        sys.argv = old_argv


def names(switches: Sequence[str] = ()) -> list[str]:
    """The long names of all flags, as in `--config-dir`, and of the subcommand's `switches`."""
    return [f"--{name}" for name in (*_SWITCHES, *_VALUED, "info", *switches)]
