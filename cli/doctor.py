"""`collectx doctor [--json]`: checks this machine and its cluster."""

from __future__ import annotations

import json

from collectx.cli.arguments import Arguments, subcommand, synopsis
from collectx.errors import ConfigError
from collectx.run.terminal import printing

_USAGE = """\
collectx doctor [--json]: check this machine and its cluster: versions, backends, cores, memory, open files, network,
SLURM, Ray, GPUs, folders, clock. It starts no worker and no job.

  ok       works
  absent   an optional part that is not here
  warning  works with a limitation; the next line says what to do
  problem  runs will fail; the next line says what to do

  --json   as JSON: a list of check, level, text, advice

Exit status: 0 success, 1 there is a problem, 2 wrong usage."""


def _doctor(arguments: Arguments) -> int:
    if arguments.words:
        raise ConfigError(f"doctor takes no arguments, but got '{arguments.words[0]}'. {synopsis(_USAGE)}")
    from collectx.doctor import PROBLEM, examine

    findings = []
    for check, finding in examine():
        findings.append({"check": check, **finding._asdict()})
        if "json" not in arguments.flags:
            printing.say(f"{finding.level:7}  {check:13}  {finding.text}")
            if finding.advice:
                printing.say(f"{'':24}-> {finding.advice}")
    if "json" in arguments.flags:
        print(json.dumps(findings, indent=2))
    return int(any(finding["level"] == PROBLEM for finding in findings))


main = subcommand("doctor", _doctor, _USAGE)
