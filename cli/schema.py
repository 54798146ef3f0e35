"""`collectx schema [GROUP]`: a JSON schema of the configuration, for editors."""

from __future__ import annotations

import json
from collections.abc import Sequence

from collectx.cli.arguments import Arguments, one_group, run_subcommand
from collectx.config.json_schema import group_schema, run_schema
from collectx.config.registry import GROUPS

_USAGE = """\
collectx schema [GROUP]: a JSON schema of files that are whole runs, or of the choices of one group, for editors that
complete and check YAML."""


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""
    return run_subcommand(argv, _USAGE, _print_schema)


def _print_schema(arguments: Arguments) -> int:
    group = one_group(arguments.words, "schema", GROUPS)
    print(json.dumps(run_schema() if group is None else group_schema(group), indent=2))
    return 0
