"""The trainer's whole life: from a configuration to a run folder with a result in it.

    folder -> snapshot -> specs -> policy -> trainer -> collector (workers start) -> train -> close -> result.json

Called by the command line, in the trainer's process. torch is imported only after the workers' own import of it has
been set going, so that both load at the same time. Must not know schedules, transports or how a policy learns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collectx.config import RunConfig, backend_of, is_async
from collectx.errors import ConfigError, LauncherError, SpaceError
from collectx.run import cores, delivery_log, display, preflight, snapshot
from collectx.run.events import EventLog
from collectx.run.files import write_atomically, write_json
from collectx.run.folder import RunFolder
from collectx.run.lock import locked
from collectx.run.result import Record, Result
from collectx.run.signals import Signals

if TYPE_CHECKING:
    from collectx.launcher.base import Launcher
    from collectx.trainer.base import Trainer


def execute(cfg: RunConfig, folder: Path, argv: list[str], place: Launcher | None = None) -> Result:
    """Runs `cfg`, blocking until the run has ended, and leaves everything about it in `folder`.

    A run that fails or is interrupted (SIGINT, SIGTERM, SIGHUP) does not raise: it says so on standard error and in the
    result, which `result.json` gets last, whatever happened.

    Args:
        argv: what the user typed, for the snapshot.
        place: where the workers come up, if not on this machine as `cfg.launcher` says; the folder was then made ready
            when the job was submitted.

    Raises:
        ConfigError: what no rule could see before (an observation space that cannot be stored, a device that is not
            there), found before any worker started; or the folder has a run in it (`run.overwrite`), or cannot be
            made.
    """
    files = RunFolder(folder)
    with locked(files, cfg.run.overwrite, force=place is not None):
        return _execute(cfg, files, argv, place)


def _execute(cfg: RunConfig, files: RunFolder, argv: list[str], place: Launcher | None) -> Result:
    files.begin(keep_logs=place is not None)
    with Signals() as signals:
        record = Record(cfg, signals)
        try:
            _run(cfg, files, argv, place, record, signals)
        except BaseException as error:
            record.end(error)
        # Nobody listens any more.
        files.rendezvous.unlink(missing_ok=True)
        files.secret.unlink(missing_ok=True)
        signals.seal()
        result = record.result(files.path)
        display.log_errors(record.errors, files.log("trainer"))
        try:
            write_json(files.result, result.as_json())
        except OSError as error:
            display.print_message(f"{files.result} could not be written: {error.strerror or error}")
        if record.config_error is None:
            display.print_result(result, record.errors, files.log("trainer"))
    if record.config_error is not None:
        raise record.config_error
    return result


def _run(
    cfg: RunConfig, files: RunFolder, argv: list[str], place: Launcher | None, record: Record, signals: Signals
) -> None:
    """From the snapshot to the closed collector. What training raises goes to `record`, the rest is raised."""
    if cfg.launcher.kind == "local" and cfg.collector.kind != "single":
        from collectx.launcher.local import warm_up

        with signals.ignored_by_children():
            warm_up()
    snapshot.write(cfg, files, argv)
    # A failure that ends the run is shown at its end.
    events = EventLog(files, hidden=("worker_failed",) if cfg.collector.on_worker_failure == "raise" else ())
    try:
        progress = display.Progress(record.statistics, start_s=record.start_s)
        events.show = progress.say

        def note(name: str, **fields: Any) -> None:
            record.add_event(name, fields)
            events(name, **fields)

        with progress, _place(cfg, files, place, events) as place:
            _collect(cfg, files, place, record, signals, note)
    finally:
        events.close()


@contextmanager
def _place(cfg: RunConfig, files: RunFolder, place: Launcher | None, events: EventLog) -> Iterator[Launcher | None]:
    """Where workers come up: as given, or as jobs that this process submits, and ends with the block."""
    if place is not None or cfg.launcher.kind != "submitit":
        yield place
        return
    from collectx.run.submitted_workers import submitted_workers

    with submitted_workers(cfg, files, lambda text: events("jobs", message=text)) as submitted:
        yield submitted


def _collect(
    cfg: RunConfig,
    files: RunFolder,
    place: Launcher | None,
    record: Record,
    signals: Signals,
    events: Callable[..., None],
) -> None:
    try:
        import torch

        from collectx import collector as collectors
        from collectx import env, policy, trainer
        from collectx.collector.trajectories import Assembler
        from collectx.run.collection import RunCollection

        if problems := preflight.device_problems(cfg) + preflight.backend_problems(cfg):
            raise ConfigError(problems)
        # It learns where batches lie.
        device = torch.device(cfg.devices.storing_device or cfg.devices.device or "cpu")
        cores.limit_threads(cfg)
        snapshot.write_numerics(files, device)
        spec = env.read_spec(cfg.env, policy.is_user_policy(cfg.policy))
        _seed(cfg.seed)
        module = policy.build(cfg.policy, spec, cfg.seed)
        learner = trainer.build(cfg.trainer, module, spec, cfg.seed, device)
        replay = getattr(learner, "shared_replay", None) if _may_write(cfg) else None
        if replay is not None:
            record.digest = None
        own = None if replay is None else [{"replay": replay}] * cfg.collector.num_workers
        folder = cfg.collector.order_of
        again = None if folder is None else [collectors.RecordedBatch(*batch) for batch in delivery_log.read(folder)]
        workers = collectors.build(cfg, module, spec, events, files.logs, place, own, recorded=again)
    except (ConfigError, LauncherError, SpaceError) as error:
        raise record.misconfigured(error) from error
    with workers as collector:
        want = cfg.collector
        collection = RunCollection(
            collector,
            files,
            record.statistics,
            record.digest,
            events,
            signals.check,
            signals.hold,
            masked=want.preemptive_threshold is not None,
            assembler=None
            if want.trajs_per_batch is None
            else Assembler(want.trajs_per_batch, want.traj_format, want.reset_at_each_iter),
            workers_write=replay is not None,
            max_batches=cfg.run.max_batches,
        )
        try:
            learner.train(collection)
            record.end(None)
        except BaseException as error:
            record.end(error)
        finally:
            # What was delivered is brought to safety first.
            signals.shield()
            try:
                collection.close()
            finally:
                _save(learner, files)


def _may_write(cfg: RunConfig) -> bool:
    """Whether workers may write their batches to a trainer's replay buffer: where nobody looks at them before, and
    their order is left to chance anyway."""
    want = cfg.collector
    looked_at = getattr(cfg.trainer, "digest", False) or want.trajs_per_batch is not None or want.order_of is not None
    return is_async(want) and backend_of(cfg) == "shared_memory" and not looked_at


def _seed(seed: int) -> None:
    """Seeds what a policy's initialisation or a user's trainer may draw from; envs and workers have their own seeds."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _save(learner: Trainer, files: RunFolder) -> None:
    """Saves the trainer's state, if it has one, as `checkpoints/final.pt`; after a failure too, as it was learnt."""
    import torch

    state: dict = getattr(learner, "state_dict", dict)()
    if state:
        write_atomically(files.final_checkpoint, lambda file: torch.save(state, file))
