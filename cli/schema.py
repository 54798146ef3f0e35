"""`collectx schema [GROUP]`: a JSON schema of the configuration, for editors."""

from __future__ import annotations

import json

from collectx.cli.arguments import Arguments, one_group, subcommand
from collectx.config.json_schema import group_schema, run_schema
from collectx.config.registry import GROUPS

_USAGE = """\
collectx schema [GROUP]: print a JSON schema of experiment files, or of the choices of one group. Editors use it to
complete and check YAML. Write it to a file, and name that in a comment at the top of each YAML file in the same
folder, below the sentence that `collectx list` shows:

  collectx schema > schema.json
  # yaml-language-server: $schema=schema.json

Exit status: 0 printed, 2 wrong usage."""


def _print_schema(arguments: Arguments) -> int:
    group = one_group(arguments.words, "schema", GROUPS)
    print(json.dumps(run_schema() if group is None else group_schema(group), indent=2))
    return 0


main = subcommand("schema", _print_schema, _USAGE)
