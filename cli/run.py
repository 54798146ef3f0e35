"""`collectx run [overrides] [-m] [flags]`: composes and checks the configuration, then lets Hydra call the task, which
runs it in this process or submits it as a job.

Everything is composed and checked before the run folder is made: a wrong configuration leaves neither a folder nor a
process.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import InterpolationResolutionError

from collectx.checkpoints import Checkpoints, read_manifest
from collectx.cli import halving, sweep
from collectx.cli import list as listing
from collectx.cli.arguments import Arguments, call_hydra, subcommand
from collectx.cli.compose import Composed, Composer, config_errors, folder_of, parsed
from collectx.cli.overrides import Checked, key_of, repeated, unused_folder
from collectx.cli.task import PointFailed, SweepStopped, Task
from collectx.config.problem import counted
from collectx.config.schema.run import RunConfig
from collectx.errors import CollectxError, ConfigError, DamagedFileError, summary_of, text_of
from collectx.jobs.status import Outcome, read_job, statuses
from collectx.place import place_of
from collectx.process import handling
from collectx.progress import telling_imports
from collectx.rules.warnings import warnings_of
from collectx.run import RunFolder, Status, cores, preflight
from collectx.run.after import foreign_code
from collectx.run.folder import saved_config, snapshot
from collectx.run.folder.layout import folder_errors, locked, removing_empty_folders
from collectx.run.folder.result import Result, command_start_s, exit_status
from collectx.run.terminal import printing

# Flags with which Hydra prints information instead of running; the configuration may be incomplete.
_INFORMATIVE_FLAGS = ("help", "hydra-help", "cfg", "info", "resolve")


def _run_or_show(arguments: Arguments) -> int:
    composer = Composer(arguments.config_dir, arguments.config_name)
    if "help" in arguments.flags and len(arguments.words) == 1 and "=" not in arguments.words[0]:
        return listing.show(replace(arguments, flags=arguments.flags | {"verbose": ""}))
    return launch(composer, arguments)


def launch(
    composer: Composer, arguments: Arguments, results: list[Outcome] | None = None, trusted: bool = False
) -> int:
    """Checks the configuration of every run, then runs them; blocks until they have ended. Returns the exit status.
    Raises `ConfigError` if the configuration is wrong; the error lists every problem of every point.

    Args:
        composer: composes the configuration, from the packaged choices or from a snapshot.
        results: receives the `Outcome` of every run.
        trusted: whether a run in another user's folder may be resumed.
    """
    for word in arguments.words:
        folder = word.removeprefix("resume=")
        if folder != word and os.path.isdir(folder) and RunFolder(folder).has_run:
            advice = f"To continue the run in {folder}: collectx resume {shlex.quote(folder)}"
            raise ConfigError(f"{word} must be never or auto. {advice}")
    # `resume=auto` is short for run.resume=auto.
    checked = composer.check([f"run.{word}" if word.startswith("resume=") else word for word in arguments.words])
    if any(flag in arguments.flags for flag in _INFORMATIVE_FLAGS):
        return _inform(composer, checked, arguments)
    with printing.notes_wait():
        with telling_imports():
            prepared = prepare(composer, checked, arguments.is_multirun)
        for text in (*checked.notes, *_without_effect(checked, prepared)):
            printing.note(text)
        task = Task(arguments.argv)
        if isinstance(prepared, sweep.Sweep):
            is_complete = _sweep(composer, prepared, task)
        else:
            is_complete = True
            _run(composer, prepared, task, trusted)
        if task.problems:
            raise ConfigError(*dict.fromkeys(task.problems))
    if results is not None:
        results += task.outcomes
    return exit_status(*(run.status for run in task.outcomes), *([] if is_complete else [Status.FAILED]))


def _without_effect(checked: Checked, prepared: Composed | sweep.Sweep) -> Iterator[str]:
    """Yields a note about the overrides of each section that this command does not read."""
    points = [prepared] if isinstance(prepared, Composed) else [*prepared.points.values()]
    evals = [point.cfg.eval for point in points]
    advice: dict[str, tuple[str, str]] = {}
    # With eval.video, the run has a note of its own.
    if evals and not any(each.every_batches or each.video for each in evals):
        evaluated = "Add eval.every_batches=N, or evaluate the run afterwards: collectx eval RUN_DIR"
        advice["eval"] = ("this run is not evaluated, so {} has no effect yet", evaluated)
    if isinstance(prepared, Composed):
        advice["sweep"] = ("{} has no effect on a single run", "To sweep, add -m and several values, as in seed=0,1")
    advice["tune"] = ("{} has no effect on a run", "To search for the fastest configuration: collectx tune")
    for section, (text, remedy) in advice.items():
        if words := [word.lstrip("+") for word in checked.overrides if key_of(word).startswith(f"{section}.")]:
            yield f"{text.format(' '.join(words))}. {remedy}{'.' * (section == 'sweep')}"


def _inform(composer: Composer, checked: Checked, arguments: Arguments) -> int:
    """Calls Hydra to print what a flag asks for; in a sweep, about the first point. Returns the exit status."""
    if checked.problems:
        raise ConfigError(*checked.problems)
    words = sweep.sample(parsed(checked.overrides))
    if words != list(checked.overrides):
        printing.note(f"the first point of the sweep: {' '.join(word.lstrip('+') for word in words)}")
    passed = (*_INFORMATIVE_FLAGS, "package")
    flags = [text for name, value in arguments.flags.items() if name in passed for text in (f"--{name}", value)]
    try:
        # Hydra exits after `--help`.
        with (
            config_errors(ValueError, CollectxError, overrides=words, config_name=composer.config_name),
            suppress(SystemExit),
            redirect_stdout(io.StringIO()) as printed,
        ):
            call_hydra([*words, *filter(None, flags)], config_name=composer.config_name, config_dir=composer.config_dir)
    except ConfigError as error:
        # Hydra does not name the key whose value refers to nothing.
        is_named = isinstance(error.__cause__, InterpolationResolutionError)
        named = [text for text in composer.examine(words).problems if is_named and " cannot be resolved: " in text]
        raise ConfigError(*(named or error.problems)) from error
    text = printed.getvalue()
    # Files with a leading underscore are bases of others, not choices.
    print(re.sub(r"(?m)^(\w+: .*?)\b_\w+, ", r"\1", text) if "help" in arguments.flags else text, end="")
    if "cfg" in arguments.flags:
        for problem in composer.examine(words).problems:
            printing.note(f"a run would refuse this configuration: {problem}")
    return 0


def prepare(
    composer: Composer,
    checked: Checked,
    is_multirun: bool,
    check_machine: Callable[[RunConfig, bool], list[str]] | None = None,
) -> Composed | sweep.Sweep:
    """Composes and checks one run, or every point of a sweep. `check_machine(cfg, shows_warnings)` returns
    the problems of a valid configuration on this machine; by default, `machine_problems`."""
    check_machine = check_machine or machine_problems
    if not is_multirun and not any(each.is_sweep_override() for each in parsed(checked.overrides)):
        run = composer.examine(checked.overrides, checked.broken)
        problems = [*checked.problems, *run.problems, *preflight.argument_problems(run.cfg)]
        # The configuration may turn every run into a sweep of one point.
        if problems or "MULTIRUN" not in str(run.node.hydra.mode):
            problems += unused_folder(checked.overrides, is_sweep=False)
            if problems := problems or check_machine(run.cfg, not _is_complete(run)):
                raise ConfigError(*problems)
            if run.note:
                printing.note(run.note)
            if (sweeper := run.node.hydra.runtime.choices.get("hydra/sweeper", "basic")) != "basic":
                printing.note(f"hydra/sweeper={sweeper} has no effect on a single run. To start a sweep, add -m.")
            return run
    return sweep.prepare(composer, checked, is_multirun, check_machine, halving.rungs_of)


def _is_complete(run: Composed) -> bool:
    """Whether the run is in its folder already, so that nothing will start."""
    with folder_errors(folder := folder_of(run.node, "hydra.run.dir")), config_errors(CollectxError):
        files = RunFolder(folder)
        is_resumed = run.cfg.run.resume == "auto" and files.has_run
        return is_resumed and saved_config.completed_result(files, run.cfg) is not None


def _run(composer: Composer, run: Composed, task: Task, trusted: bool) -> None:
    folder = folder_of(run.node, "hydra.run.dir")
    run_folder = RunFolder(Path(folder))
    with folder_errors(folder), config_errors(CollectxError):
        if run.cfg.run.resume == "auto" and (done := _check_resume(run_folder, run.cfg, trusted)) is not None:
            from collectx.run.terminal import display

            display.print_completed(done, saved_config.changed(run_folder, run.cfg))
            task.outcomes.append(Outcome(done.status, done.folder))
            return
        _check_folder(run_folder, run.cfg)
        task.cfg = run.cfg
        with removing_empty_folders(run_folder.path), _keeping_hydras_files(run_folder):
            composer.run(run.node, folder, task.alone)


@contextmanager
def _keeping_hydras_files(run_folder: RunFolder) -> Iterator[None]:
    """Writes the files in `.hydra` again after the block if the folder still contains the same run, because the new one
    did not begin: Hydra replaces its files before it calls the task."""
    meta = run_folder.read_meta()
    files = {path: path.read_bytes() for path in (run_folder.path / ".hydra").glob("*")} if meta else {}
    try:
        yield
    finally:
        if files and run_folder.read_meta() == meta:
            for path, content in files.items():
                path.write_bytes(content)


def _sweep(composer: Composer, prepared: sweep.Sweep, task: Task) -> bool:
    """Runs a sweep; blocks until all points have ended, and prints their table. Returns whether all have run."""
    task.checked = prepared.points
    if not prepared.is_ours:  # another launcher starts the points elsewhere
        printing.print_notes()
        task.names = dict(zip(prepared.points, sweep.names([*prepared.points]), strict=True))
        if prepared.points and not prepared.is_halving:
            print(f"sweep: {counted(len(prepared.points), 'run')}", flush=True)
    root, is_complete, is_interrupted, start_s = Path(prepared.folder), True, False, command_start_s()
    try:
        with (
            removing_empty_folders(root, "multirun.yaml"),
            handling({signal.SIGINT: task.interrupt}),
            printing.telling_once(),
        ):
            composer.run(prepared.master, prepared.folder, task)
    except KeyboardInterrupt as error:
        is_interrupted = True
        if not isinstance(error, SweepStopped):  # the outcomes say so
            raise
    except Exception as error:
        is_new = not task.outcomes and not task.problems and not isinstance(error, PointFailed)
        if is_new and (prepared.is_ours or not sweep.run_folders(root)):
            # SLURM may refuse a job of submitit, if a launcher has imported it.
            refusal = getattr(sys.modules.get("submitit.core.utils"), "UncompletedJobError", CollectxError)
            with folder_errors(root), config_errors(CollectxError, refusal):
                raise
        is_complete = False
        printing.error(
            text_of(error).strip() if isinstance(error, (HydraException, CollectxError)) else summary_of(error)
        )
    finally:
        points = task.points
        if not prepared.is_ours:
            points = sweep.run_folders(root)
            _add_outcomes(task, root, [folder for _, folder in points])
        if prepared.is_halving and root.exists():
            printing.say(f"sweep folder: {root}")
        elif points and root.exists() and not task.is_detached:
            statuses = {run.folder: run.status for run in task.outcomes}
            took_s = None if is_interrupted or task.is_interrupted else time.monotonic() - start_s
            printing.print_sweep(root, dict.fromkeys(points), statuses, prepared.objective, took_s)
        if (is_interrupted or task.is_interrupted) and root.exists():
            _say_how_to_go_on(prepared, task, root)
    return is_complete


def _say_how_to_go_on(prepared: sweep.Sweep, task: Task, root: Path) -> None:
    """Prints the command that continues an interrupted sweep, or, if the sweep would choose other points, those that
    continue the points that were stopped."""
    from collectx.run.terminal import display

    if prepared.points:
        command = repeated(task.argv, "hydra.sweep.dir", printing.typed(root))
        printing.message(f"to go on with the sweep and its stopped point: {command}")
        return
    for run in task.outcomes:
        if run.status is Status.INTERRUPTED and (text := display.to_continue(RunFolder(run.folder))):
            printing.message(text)


def _add_outcomes(task: Task, root: Path, folders: Sequence[Path]) -> None:
    """Adds the outcomes of points that other processes run, or have run; says which keep running after the command
    ends."""
    known = {run.folder for run in task.outcomes}
    others = [folder for folder in folders if folder not in known]
    outcomes = [
        Outcome(run.status, folder)
        for folder, run in zip(others, statuses([RunFolder(folder) for folder in others]), strict=True)
    ]
    task.outcomes += outcomes
    if num_alive := sum(not run.status.has_ended for run in outcomes):
        command = f"collectx cancel {shlex.quote(str(root))}"
        printing.note(f"{counted(num_alive, 'point')} may still be running after this command. To stop them: {command}")


def _check_resume(run_folder: RunFolder, cfg: RunConfig, trusted: bool) -> Result | None:
    """Checks whether the run in a folder, if there is one, can be continued with `cfg`. Returns its result if it is
    completed.
    """
    if not run_folder.has_run:
        return None
    if not (trusted or cfg.run.trust):
        foreign_code.check_checkpoints(run_folder)
    if (done := saved_config.completed_result(run_folder, cfg)) is None and (
        problems := saved_config.problems(run_folder, cfg)
    ):
        raise ConfigError(*problems)
    print_changes(run_folder, cfg)
    checkpoints = Checkpoints(run_folder.checkpoints)
    if done is None and (unreadable := _unreadable(checkpoints.all())):
        raise ConfigError(checkpoints.no_intact(unreadable))
    return done


def print_changes(run_folder: RunFolder, cfg: RunConfig, batches: int | None = None) -> None:
    """Prints a note for each of the `changes` of code and values since the run."""
    for text in snapshot.changes(run_folder, cfg, batches):
        printing.note(text)


def _unreadable(checkpoints: Sequence[Path]) -> list[str]:
    """Returns the problems of each checkpoint's manifest; empty if one of them can be read."""
    problems: list[str] = []
    for path in checkpoints:
        try:
            read_manifest(path)
        except DamagedFileError as error:
            problems += error.problems
        else:
            return []
    return problems


def _check_folder(run_folder: RunFolder, cfg: RunConfig) -> None:
    """Checks the folder of a run before Hydra writes to it. The folders of the points of a sweep are checked later."""
    if foreign := preflight.foreign_outputs(cfg, run_folder):
        raise ConfigError(*foreign)
    if not run_folder.path.is_dir():
        return
    (status,) = statuses([run_folder])
    if (job := read_job(run_folder)) is not None and not status.has_ended:
        if place_of(cfg).is_job:
            return  # the command watches this job, unless its configuration differs
        known = f", as far as this host knows ({status.detail})" if status.status is Status.UNKNOWN else ""
        advice = f"Cancel it with `scancel {job}`, or choose another folder with hydra.run.dir."
        raise ConfigError(f"job {job} in {run_folder.path} has not ended{known}. {advice}")
    to_continue = f"collectx resume {shlex.quote(printing.typed(run_folder.path))}"
    with locked(run_folder, cfg.run.overwrite or cfg.run.resume == "auto", to_continue=to_continue):
        pass


def machine_problems(cfg: RunConfig, shows_warnings: bool) -> list[str]:
    """Checks a valid configuration against this machine, and prints warnings; returns the problems."""
    problems = preflight.machine_problems(cfg)
    if not problems and shows_warnings:
        for text in filter(None, (*warnings_of(cfg), cores.note(cfg), preflight.copies()[0])):
            printing.note(text)
    return problems


main = subcommand("run", _run_or_show, lists_problems=True)
