"""`collectx schema [GROUP]`: a JSON schema of the configuration, for editors."""

from __future__ import annotations

import json
from collections.abc import Sequence

from collectx.cli import output
from collectx.cli.arguments import split
from collectx.config.json_schema import group_schema, run_schema
from collectx.config.registry import GROUPS
from collectx.config.suggest import did_you_mean
from collectx.errors import ConfigError

_HELP = """\
collectx schema [GROUP]: a JSON schema of files that are whole runs, or of the choices of one group, for editors that
complete and check YAML."""


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""
    try:
        arguments = split(argv)
    except ConfigError as error:
        return output.usage_error(" ".join(error.problems))
    if "help" in arguments.flags:
        print(_HELP)
        return 0
    unknown = [name for name in arguments.words if name not in GROUPS]
    if unknown or len(arguments.words) > 1:
        name = unknown[0] if unknown else arguments.words[1]
        return output.usage_error(f"schema: {name}: no such group{did_you_mean(name, GROUPS)}")
    schema = group_schema(arguments.words[0]) if arguments.words else run_schema()
    print(json.dumps(schema, indent=2))
    return 0
