"""`collectx run [overrides] [-m] [flags]`: composes and checks the configuration, then runs it in this
process or submits it as a job.

All points of a sweep are composed and checked before Hydra makes the run folder, so a wrong configuration leaves
neither a folder nor a process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from collectx.cli import output, run_status, submitit_slurm, sweeper
from collectx.cli.arguments import Arguments, split
from collectx.cli.compose import SEARCH_PATH, Composed, Composer, parsed, points, without_hydra
from collectx.cli.overrides import Checked
from collectx.cli.task import Task
from collectx.cli.typed import typed
from collectx.config.derived import ELSEWHERE
from collectx.config.schema.run import RunConfig
from collectx.config.warnings import warnings_of
from collectx.errors import CollectxError, ConfigError
from collectx.run import RunFolder, Status, preflight
from collectx.run.lock import locked

# Flags with which Hydra prints information instead of running; the configuration may be incomplete.
_INFORMATIVE_FLAGS = ("help", "hydra-help", "cfg", "info", "version")


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""
    try:
        arguments = split(argv)
        composer = Composer(arguments.config_dir, arguments.config_name)
        return launch(composer, arguments, ["run", *argv])
    except ConfigError as error:
        return output.config_errors(error.problems)


def launch(composer: Composer, arguments: Arguments, argv: Sequence[str], results: list[Any] | None = None) -> int:
    """Checks the configuration of every run, then runs them.

    Args:
        composer: composes from the packaged choices, or from a snapshot.
        arguments: the command line.
        argv: the command line as typed, for the snapshot.
        results: receives the `collectx.run.Result` of every run.

    Raises:
        ConfigError: with every problem of every point.
    """
    words, foreign = submitit_slurm.translated(arguments.words)
    if foreign:
        raise ConfigError(foreign)
    if words != list(arguments.words):
        text = " ".join(word for word in words if word not in arguments.words)
        output.note(f"hydra/launcher=submitit_slurm: as {text}.")
    checked = composer.check(words)
    is_informative = any(flag in arguments.flags for flag in _INFORMATIVE_FLAGS)
    run: Composed | None = None
    if is_informative:
        problems: Sequence[str] = checked.problems
    elif _is_sweep(checked, arguments):
        problems = _sweep_problems(composer, checked, arguments)
    else:
        run = composer.examine(checked)
        problems = run.problems or _machine_problems(run.cfg)
        if run.note and not run.problems:
            output.note(run.note)
    if problems:
        raise ConfigError(problems)
    task = Task(argv)
    is_failed = False
    try:
        try:
            _run_hydra(composer, checked, arguments, run, task)
        except BrokenPipeError:
            raise
        except (OSError, OmegaConfBaseException) as error:
            # Errors after the start of a run are in its result.
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            where = "hydra.run.dir or hydra.sweep.dir"
            raise ConfigError([f"the run folder cannot be made: {why}: choose another with {where}."]) from error
        except sweeper.Stopped:
            pass
        except Exception as error:
            is_expected = isinstance(error, (HydraException, CollectxError))
            if not is_expected and task.sweeper is None:
                raise
            text = str(error).strip() if is_expected else f"{task.sweeper}: {type(error).__name__}: {error}"
            if task.sweeper is None or not task.points:
                raise error if isinstance(error, ConfigError) else ConfigError([text]) from error
            is_failed = True
            output.error(text)
        if task.problems:
            raise ConfigError(list(dict.fromkeys(task.problems)))
        if task.job_runs:
            from collectx.cli import slurm

            slurm.run_jobs(task)
    finally:
        if task.sweep is not None and not task.is_detached:
            output.print_sweep(task.sweep, task.points, {run.folder: run.status for run in task.results})
    if results is not None:
        results += task.results
    return exit_status([*(run.status for run in task.results), *([Status.FAILED] if is_failed else [])])


def exit_status(statuses: Sequence[Status]) -> int:
    """One exit status for all runs: 130 if one was interrupted, otherwise 1 if one failed, otherwise 0."""
    if Status.INTERRUPTED in statuses:
        return 130
    return 1 if any(status != Status.COMPLETED for status in statuses) else 0


def _check_folder(checked: Checked, node: DictConfig) -> None:
    """Raises an error if the folder of a run on this machine contains a run, before Hydra writes to it. Folders of jobs
    and sweeps are checked later.

    Raises:
        ConfigError: see `locked`; or a job that writes to the folder has not ended.
    """
    named = any(text.lstrip("+").startswith("hydra.run.dir=") for text in checked.overrides)
    files = RunFolder(node.hydra.run.dir)
    if named and node.launcher.kind not in ELSEWHERE and files.path.is_dir():
        _check_job(files)
        with locked(files, bool(OmegaConf.select(node, "run.overwrite"))):
            pass


def _check_job(files: RunFolder) -> None:
    """Raises an error if the job of a folder has not ended: a job in the queue does not hold the lock."""
    if (job := run_status.read_job(files)) is None:
        return
    status = run_status.status_of_job(files, job, run_status.query_slurm([job]))
    if not status.has_ended:
        known = f", as far as is known ({status.detail})" if status.status is Status.UNKNOWN else ""
        raise ConfigError(
            [f"{files.path}: job {job} has not ended{known}: cancel it with scancel {job}, or choose another folder."]
        )


def _is_sweep(checked: Checked, arguments: Arguments) -> bool:
    """Whether the command line is a sweep, each point of which is composed separately."""
    return "multirun" in arguments.flags or any(each.is_sweep_override() for each in parsed(checked.overrides))


def _run_hydra(composer: Composer, checked: Checked, arguments: Arguments, run: Composed | None, task: Task) -> None:
    """Runs one composed configuration, or calls Hydra with the command line in its form for sweeps and information."""
    # The chosen launcher may turn every run into a sweep of one point.
    if run is not None and "MULTIRUN" not in str(run.node.hydra.mode):
        _check_folder(checked, run.node)
        task.cfg = run.cfg
        return composer.run(run.node, task)
    import hydra

    from collectx.cli import sweep

    sweep.register()
    # Mistakes in the configuration were reported before, so an error is a bug: Hydra must print its full traceback.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    old_argv = sys.argv
    sys.argv = ["collectx run", *checked.overrides, *arguments.hydra_argv()]
    try:
        hydra.main(version_base="1.3", config_path=SEARCH_PATH, config_name=composer.config_name)(task)()
    finally:
        sys.argv = old_argv


def _sweep_problems(composer: Composer, checked: Checked, arguments: Arguments) -> Sequence[str]:
    """Every problem of every point, each once."""
    overrides = parsed(checked.overrides)
    swept = [override for override in overrides if override.is_sweep_override()]
    is_multirun = "multirun" in arguments.flags
    try:
        sampled = sweeper.sample(overrides)
        node = composer.load(sampled)
        if not sweeper.is_basic(node):
            node, note = composer.without_unused_keys(sampled)
            if note:
                output.note(note)
    except ConfigError as error:
        return [*checked.problems, *error.problems]
    # The chosen launcher may turn every run into a sweep of one or more points.
    if not is_multirun and "MULTIRUN" not in str(node.hydra.mode):
        named = [f"{override.input_line.lstrip('+')}" for override in swept if override.input_line]
        return [*checked.problems, f"{' '.join(named)}: several values are a sweep: add -m; a list is key=[a,b]."]
    if not sweeper.is_basic(node):
        # Only the sweeper knows the points.
        cfg, problems = typed(without_hydra(node), ignore=checked.broken)
        problems = [*checked.problems, *problems]
        return problems or sweeper.problems(node, cfg) or _machine_problems(cfg)
    if continuous := [str(override.input_line).lstrip("+") for override in swept if not override.is_discrete_sweep()]:
        return [
            *checked.problems,
            f"{' '.join(continuous)}: Hydra's basic sweeper enumerates values, which an interval does not have: use "
            "choice(a,b) or range(a,b,step), or a sweeper that draws values, such as hydra/sweeper=optuna "
            "(pip install hydra-optuna-sweeper).",
        ]
    names: dict[str, list[str]] = {}
    all_points = points(overrides)
    notes: list[str] = []
    for point in all_points:
        composed = composer.examine(checked, point.overrides)
        if composed.note and not composed.problems:
            notes.append(composed.note)
        for problem in composed.problems or _machine_problems(composed.cfg, quiet=point is not all_points[0]):
            names.setdefault(problem, []).append(point.name)
    for text in dict.fromkeys(notes):
        output.note(text)
    everywhere = len(all_points)
    return [
        problem if len(where) == everywhere or problem in checked.problems else f"{problem} [{'; '.join(where)}]"
        for problem, where in names.items()
    ]


def _machine_problems(cfg: RunConfig, quiet: bool = False) -> list[str]:
    """Checks a valid configuration against this machine; prints warnings."""
    problems = preflight.launcher_problems(cfg)
    if cfg.launcher.kind not in ELSEWHERE:
        problems += preflight.device_problems(cfg) + preflight.backend_problems(cfg)
    if not problems and not quiet:
        for text in warnings_of(cfg):
            output.note(text)
    return problems
