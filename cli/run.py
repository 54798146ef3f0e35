"""`collectx run [overrides] [-m] [flags]`: composes and checks the configuration, then runs it in this
process or submits it as a job.

Everything is composed and checked before the run folder is made: a wrong configuration leaves neither a folder nor a
process.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress

from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from collectx.cli import foreign_code, output, submitit_slurm, sweep, sweeper
from collectx.cli import list as listing
from collectx.cli.arguments import Arguments, call_hydra, run_subcommand
from collectx.cli.compose import Composed, Composer, overrides_of, parsed
from collectx.cli.overrides import Checked, notes
from collectx.cli.session import Session
from collectx.config.derived import ELSEWHERE
from collectx.config.registry import GROUPS
from collectx.config.schema.run import RunConfig
from collectx.config.warnings import warnings_of
from collectx.errors import CollectxError, ConfigError
from collectx.jobs import status as run_status
from collectx.jobs.status import Outcome
from collectx.run import RunFolder, Status, preflight, resumed
from collectx.run.folder import locked
from collectx.run.result import Result

# Flags with which Hydra prints information instead of running; the configuration may be incomplete.
_INFORMATIVE_FLAGS = ("help", "hydra-help", "cfg", "info", "version")


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""

    def run(arguments: Arguments) -> int:
        if "help" in arguments.flags and len(arguments.words) == 1 and arguments.words[0] in GROUPS:
            return listing.main([*arguments.words, "--verbose"])
        composer = Composer(arguments.config_dir, arguments.config_name)
        return launch(composer, arguments, ["run", *argv])

    return run_subcommand(argv, "", run, report=output.config_errors)


def launch(
    composer: Composer,
    arguments: Arguments,
    argv: Sequence[str],
    results: list[Outcome] | None = None,
    trusted: bool = False,
) -> int:
    """Checks the configuration of every run, then runs them.

    Args:
        composer: composes from the packaged choices, or from a snapshot.
        arguments: the command line.
        argv: the command line as typed, for the snapshot.
        results: receives the `Outcome` of every run.
        trusted: whether a run in another user's folder may be resumed.

    Raises:
        ConfigError: with every problem of every point.
    """
    checked = composer.check(_translate(arguments.words))
    if any(flag in arguments.flags for flag in _INFORMATIVE_FLAGS):
        return _inform(composer, checked, arguments)
    prepared = _prepare(composer, checked, "multirun" in arguments.flags)
    for text in notes(checked.overrides):
        output.note(text)
    session = Session(argv)
    is_complete = _run(composer, prepared, session, trusted)
    if session.problems:
        raise ConfigError(list(dict.fromkeys(session.problems)))
    if results is not None:
        results += session.results
    return exit_status([*(run.status for run in session.results), *([] if is_complete else [Status.FAILED])])


def _translate(words: Sequence[str]) -> list[str]:
    words = [f"run.{word}" if word.startswith("resume=") else word for word in words]
    translated, problems = submitit_slurm.translated(words)
    if problems:
        raise ConfigError(problems)
    if translated != list(words):
        text = " ".join(word for word in translated if word not in words)
        output.note(f"hydra/launcher=submitit_slurm: as {text}.")
    return translated


def _inform(composer: Composer, checked: Checked, arguments: Arguments) -> int:
    """Calls Hydra with the command line in its form, to print what a flag asks for."""
    if checked.problems:
        raise ConfigError(checked.problems)
    # For errors as exceptions; Hydra would print them and exit.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    # Hydra exits after `--help`.
    with _config_errors(), suppress(SystemExit), redirect_stdout(io.StringIO()) as printed:
        call_hydra(["collectx run", *checked.overrides, *arguments.hydra_argv()], composer.config_name)
    text = printed.getvalue()
    # Files with a leading underscore are bases of others, not choices.
    print(re.sub(r"(?m)^(\w+: .*?)\b_\w+, ", r"\1", text) if "help" in arguments.flags else text, end="")
    return 0


def _prepare(composer: Composer, checked: Checked, is_multirun: bool) -> Composed | sweep.Sweep:
    """Composes and checks one run, or every point of a sweep."""
    if not is_multirun and not any(each.is_sweep_override() for each in parsed(checked.overrides)):
        run = composer.examine(checked.overrides, checked.broken)
        problems = [*checked.problems, *run.problems]
        # The chosen launcher may turn every run into a sweep of one point.
        if problems or "MULTIRUN" not in str(run.node.hydra.mode):
            if run.note and not problems:
                output.note(run.note)
            if problems := problems or _machine_problems(run.cfg):
                raise ConfigError(problems)
            return run
    return sweep.prepare(composer, checked, is_multirun, _machine_problems)


def _run(composer: Composer, prepared: Composed | sweep.Sweep, session: Session, trusted: bool) -> bool:
    """Blocks until all runs have ended, and prints the table of a sweep; returns whether a sweep is complete."""
    try:
        with _config_errors():
            if isinstance(prepared, sweep.Sweep):
                return prepared.run(session)
            _run_one(composer, prepared.node, prepared.cfg, session, trusted)
    except sweeper.Stopped:
        pass  # the results say so
    finally:
        if isinstance(prepared, sweep.Sweep) and prepared.folders and not session.is_detached:
            statuses = {run.folder: run.status for run in session.results}
            output.print_sweep(prepared.folder, prepared.folders, statuses)
    return True


@contextmanager
def _config_errors() -> Iterator[None]:
    """Raises errors of the block, which come before a run has started, as `ConfigError`: those of a run are in its
    result."""
    try:
        yield
    except (BrokenPipeError, ConfigError):
        raise
    except (OSError, OmegaConfBaseException) as error:
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        where = "hydra.run.dir or hydra.sweep.dir"
        raise ConfigError([f"the run folder cannot be made: {why}: choose another with {where}."]) from error
    except (HydraException, CollectxError) as error:
        raise ConfigError([str(error).strip()]) from error


def _run_one(composer: Composer, node: DictConfig, cfg: RunConfig, session: Session, trusted: bool) -> None:
    if any(text.lstrip("+").startswith("hydra.run.dir=") for text in overrides_of(node, "hydra")):
        files = RunFolder(node.hydra.run.dir)
        if cfg.run.resume == "auto" and (done := _check_resume(files, cfg, trusted)) is not None:
            from collectx.run import display

            display.print_completed(done)
            session.results.append(Outcome(done.status, done.folder))
            return
        _check_folder(files, cfg)
    context = composer.context(node)
    node.hydra.mode = RunMode.RUN
    context.callbacks.on_run_start(config=node, config_name=composer.config_name)
    job = session.run(context, node, cfg)
    context.callbacks.on_run_end(config=node, config_name=composer.config_name, job_return=job)
    _ = job.return_value  # raises the error of a failed job
    session.submit()


def exit_status(statuses: Sequence[Status]) -> int:
    """One exit status for all runs: 130 if one was interrupted, otherwise 1 if one failed, otherwise 0."""
    if Status.INTERRUPTED in statuses:
        return 130
    return 1 if any(status != Status.COMPLETED for status in statuses) else 0


def _check_resume(files: RunFolder, cfg: RunConfig, trusted: bool) -> Result | None:
    """Checks whether the run in a folder, if there is one, can be continued with `cfg`. Returns its result if it is
    completed.

    Raises:
        ConfigError: it cannot, or it belongs to another user and `trusted` is false.
    """
    if not files.has_run:
        return None
    if not trusted:
        foreign_code.check_checkpoints(files)
    if (done := resumed.completed(files, cfg)) is None and (problems := resumed.problems(files, cfg)):
        raise ConfigError(problems)
    return done


def _check_folder(files: RunFolder, cfg: RunConfig) -> None:
    """Checks the folder of a run on this machine before Hydra writes to it. Folders of jobs and sweeps are checked
    later.

    Raises:
        ConfigError: see `locked`; or a job that writes to the folder has not ended, which holds no lock in the queue.
    """
    if cfg.launcher.kind in ELSEWHERE or not files.path.is_dir():
        return
    if (job := run_status.read_job(files)) is not None:
        status = run_status.status_of_job(files, job, run_status.query_slurm([job]))
        if not status.has_ended:
            known = f", as far as is known ({status.detail})" if status.status is Status.UNKNOWN else ""
            advice = f"cancel it with scancel {job}, or choose another folder."
            raise ConfigError([f"{files.path}: job {job} has not ended{known}: {advice}"])
    with locked(files, cfg.run.overwrite or cfg.run.resume == "auto"):
        pass


def _machine_problems(cfg: RunConfig, shows_warnings: bool = True) -> list[str]:
    """Checks a valid configuration against this machine; prints warnings."""
    problems = preflight.launcher_problems(cfg)
    if cfg.launcher.kind not in ELSEWHERE:
        problems += preflight.device_problems(cfg) + preflight.backend_problems(cfg)
    if not problems and shows_warnings:
        for text in warnings_of(cfg):
            output.note(text)
    return problems
