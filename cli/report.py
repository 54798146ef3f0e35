"""`collectx report DIR...`: writes a page with tables and figures of runs, and these as files for a paper."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from collectx.cli.arguments import Arguments, ask_which, refuse_empty, subcommand, unknown_key
from collectx.cli.sweep import not_started
from collectx.config.problem import did_you_mean
from collectx.config.schema.run import OBJECTIVES, OF_EVALUATION
from collectx.errors import ConfigError
from collectx.run import RunFolder
from collectx.run.folder.saved_config import check_not_within, objective_of
from collectx.run.terminal import printing

_USAGE = f"""\
collectx report DIR... [out=DIR] [objective=NAME]: write an HTML page about the runs in and below the folders, which
opens offline, its tables as CSV and LaTeX, and its figures as PDF and PNG: returns, evaluations, env.metrics, losses,
throughput, lag, worker timelines, failures, configurations, scaling with workers. Print its table. Runs that differ
only in their seeds are averaged, with a confidence interval.

  out=DIR          output folder; default: report in DIR, or in the current folder if you name several
  objective=NAME   metric that ranks the runs: {", ".join(OBJECTIVES)},
                   an entry of env.metrics, or eval/NAME; default: sweep.objective of the first run

Exit status: 0 written, 2 wrong usage or no run found."""
_OPTIONS = ("out", "objective")
# How many folders the title of a page names.
_MAX_TITLE = 3


def _report(arguments: Arguments) -> int:
    words = [word.partition("=") for word in arguments.words]
    # The folder of a point may be called seed=1.
    options = {key: value for key, _, value in words if key in _OPTIONS}
    folders = [Path("".join(word)) for word in words if word[0] not in _OPTIONS]
    refuse_empty(options)
    if unknown := [each for each in folders if re.match(r"\w+=", str(each)) and not each.exists()]:
        name, _, value = str(unknown[0]).partition("=")
        raise ConfigError(unknown_key(name, value, _OPTIONS, {"objective": OBJECTIVES}))
    if not folders or not all(arguments.words):
        raise ConfigError(ask_which(_USAGE, "runs"))
    try:
        from collectx.report import page, read
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed. Install it: pip install 'collectx[report]'") from error
    try:
        runs = read.read_runs(folders)
    except ConfigError:
        for folder in folders:
            check_not_within(RunFolder(folder))
        raise
    objective = options.get("objective") or objective_of(runs[0].run_folder)
    metrics = dict.fromkeys(name for run in runs for name in run.options.get("env.metrics") or ())
    evaluated = dict.fromkeys(f"{OF_EVALUATION}{name}" for run in runs for name in run.evaluations)
    known = (*OBJECTIVES, *metrics, *evaluated)
    if objective not in known:
        raise ConfigError(f"objective={objective} is unknown{did_you_mean(objective, known)}")
    name = RunFolder(folders[0]).report.name
    out = Path(options.get("out") or (folders[0] / name if len(folders) == 1 else name))
    missing = [f"{folder}/{name}" if folders[1:] else name for folder in folders for name in not_started(folder)]
    names = [folder.resolve().name for folder in folders]
    # The name of many folders is that of the one that contains them.
    title = ", ".join(dict.fromkeys(names)) if 1 < len(folders) <= _MAX_TITLE else ""
    made = page.Report(runs, objective, missing, title)
    written = made.write(out)
    for table in made.tables:
        printing.say(f"\n{table.title}" if table.title else "")
        shown = replace(table, columns=[column for column in table.columns if not column.is_hidden])
        printing.print_table(shown.rows, shown.head)
    for note in made.notes:
        printing.say(note)
    if len(runs) > 1 and "objective" not in options and f"{OF_EVALUATION}{objective}" in evaluated:
        printing.note_evaluations(objective, arguments.words)
    printing.say(f"written to {written}. Open it in a browser.")
    return 0


main = subcommand("report", _report, _USAGE)
