"""Writes the checkpoints of a run, and continues a run from one. In the trainer's process.

    before each batch   a checkpoint is due, or a signal has stopped the run?
                        sync: now. async: no more slots are granted, until those that are full are delivered
    at the end          of a run that has not failed

A checkpoint holds the state of the trainer (`state_dict`, and the content of its `replay_buffers`), of the collector
with its workers, of the statistics, and of the generators of the trainer's process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from collectx import state as states
from collectx.collector import saved_state
from collectx.collector.trajectories import Assembler
from collectx.config.derived import is_elastic
from collectx.config.schema.run import CheckpointOptions, RunConfig
from collectx.disk import sync
from collectx.errors import ConfigError, DamagedFile
from collectx.run import checkpoint_content, resumed
from collectx.run.checkpoint import Checkpoints
from collectx.run.digest import Digest
from collectx.run.files import write_atomically
from collectx.run.folder import RunFolder
from collectx.run.reproduce import order_of
from collectx.run.result import Record
from collectx.run.signals import Signals

if TYPE_CHECKING:
    from collectx.collector import Collector
    from collectx.env.base import Env
    from collectx.trainer.base import Trainer

# The share of the time that checkpoints by time may take.
_MOST_SHARE = 0.01


class Checkpointer:
    """Writes checkpoints.

    Args:
        events: the event log; receives every checkpoint and its cost.
        assembler: of a run whose batches are whole trajectories.
    """

    def __init__(
        self,
        options: CheckpointOptions,
        files: RunFolder,
        collector: Collector,
        trainer: Trainer,
        record: Record,
        signals: Signals,
        events: Callable[..., None],
        assembler: Assembler | None = None,
    ):
        self._options = options
        self._metrics = files.metrics
        self._checkpoints = Checkpoints(files.checkpoints, options.keep)
        self._collector = collector
        self._trainer = trainer
        self._record = record
        self._signals = signals
        self._events = events
        self._assembler = assembler
        self._last_batches = record.statistics.batches
        self._wait_s = float("inf") if options.every_min is None else 60.0 * options.every_min
        self._due_s = time.monotonic() + self._wait_s

    def before_batch(self) -> None:
        """To be called before a batch is requested. Blocks while a checkpoint is written.

        Raises:
            Stopped: a signal has stopped the run, and a checkpoint was written.
        """
        if not (self._signals.last is not None or self._is_due()):
            return
        self._collector.is_draining = True
        if self._collector.is_idle:
            self.write()
            self._collector.is_draining = False
            self._signals.check()

    def _is_due(self) -> bool:
        options, batches = self._options, self._record.statistics.batches
        is_requested, self._signals.is_checkpoint_requested = self._signals.is_checkpoint_requested, False
        return (
            self._collector.is_draining
            or is_requested
            or (options.every_batches is not None and batches - self._last_batches >= options.every_batches)
            or time.monotonic() >= self._due_s
        )

    def write(self) -> None:
        """Writes a checkpoint of the current state; blocks until it is on the disk. Does nothing before the first
        batch, or if there is one of as many batches. A checkpoint that cannot be written, on a full disk for example,
        is reported; the run continues."""
        statistics = self._record.statistics
        if statistics.batches == 0 or self._checkpoints.folder(statistics.batches).exists():
            return
        began_s = time.monotonic()
        buffers = getattr(self._trainer, "replay_buffers", {})
        facts = {"frames": statistics.frames, "policy_version": self._collector.policy_version}
        try:
            with self._signals.hold():
                sync(self._metrics)
                path = self._checkpoints.write(
                    statistics.batches, facts, self._state(), {name: each.dumps for name, each in buffers.items()}
                )
                seconds = round(time.monotonic() - began_s, 3)
                self._events("checkpoint", batches=statistics.batches, path=path.name, seconds=seconds)
        except Exception as error:
            # A worker that is gone is handled when the next batch is requested.
            message = f"{type(error).__name__}: {error}"
            if isinstance(error, OSError):
                message = f"{error.filename or self._checkpoints.path}: {error.strerror or error}"
            self._events("checkpoint_failed", batches=statistics.batches, message=message)
        finally:
            cost_s = time.monotonic() - began_s
            statistics.checkpoint_s += cost_s
            self._wait_s = max(self._wait_s, cost_s / _MOST_SHARE)
        self._last_batches, self._due_s = statistics.batches, time.monotonic() + self._wait_s

    def write_final(self, path: Path) -> None:
        """Writes the trainer's state alone, if it has one, to the file `path`; blocks until it is on the disk.

        Raises:
            OSError: it could not be written.
        """
        state: dict = getattr(self._trainer, "state_dict", dict)()
        if state:
            write_atomically(path, lambda file: torch.save(state, file))

    def _state(self) -> dict[str, Any]:
        state_dict = getattr(self._trainer, "state_dict", None)
        collector = saved_state.save(self._collector)
        rollouts = {worker: each["rollout"] for worker, each in collector["workers"].items()}
        unsaved = {worker: each["reason"] for worker, each in rollouts.items() if "reason" in each}
        if unsaved and not self._record.is_unsaved_known:
            # At the start of the run, before their reset, the state of the envs could be saved.
            self._events("envs_not_saved", workers=[*unsaved], reason=min(unsaved.values()))
        return {
            "trainer": None if state_dict is None else state_dict(),
            "collector": collector,
            "assembler": None if self._assembler is None else self._assembler.state(),
            "statistics": self._record.statistics.state(),
            "wall_s": time.monotonic() - self._record.start_s,
            "generators": states.save_generators(),
        }


class ResumePoint:
    """What a run continues from: the newest checkpoint that is not damaged.

    Attributes:
        batches: how many batches the run had delivered.
        collector: for `collectx.collector.build`.
        order: of an async run, the order of the batches after it, which are collected once more; see
            `collectx.run.reproduce.recorded_order`. Empty where it cannot be repeated.
        damaged: messages about newer checkpoints, which are damaged.

    Raises:
        ConfigError: there is no checkpoint, or all are damaged.
        DamagedFile: another file of the folder is.
    """

    def __init__(self, files: RunFolder, cfg: RunConfig):
        found, self.damaged = Checkpoints(files.checkpoints).newest(checkpoint_content.load)
        if found is None:
            missing = f"{files.path}: has no checkpoint to continue from: begin it anew with run.overwrite=true."
            raise ConfigError(self.damaged or [missing])
        self._checkpoint, self._state = found
        path, manifest = self._checkpoint.path, self._checkpoint.manifest
        self.batches: int = manifest["batches"]
        ends = (
            ("collector.total_frames", cfg.collector.total_frames, manifest["frames"], "frames"),
            ("run.max_batches", cfg.run.max_batches, self.batches, "batches"),
        )
        passed = [each for each in ends if each[1] is not None and 0 <= each[1] < each[2]]
        if passed:
            text = "{}={}: {} has {} {} already: choose more."
            raise ConfigError([text.format(name, end, path, done, what) for name, end, done, what in passed])
        self.collector: dict[str, Any] = self._state["collector"]
        # The file may be larger than the memory.
        lines, self._digest, count, frames = files.read_metrics(), Digest(), 0, None
        for count, line in enumerate(islice(lines, self.batches), start=1):
            frames = line.get("frames")
            try:
                self._digest.resume([line["digest"]] if "digest" in line else [])
            except (AttributeError, ValueError) as error:
                raise DamagedFile([f"{files.metrics}: line {count}: its digest is {line['digest']!r}"]) from error
        if (count, frames) != (self.batches, manifest["frames"]):
            has = f"has {count} lines up to {frames} frames, {path} is of {self.batches} batches"
            raise DamagedFile([f"{files.metrics}: {has} and {manifest['frames']} frames"])
        self.order = self._order(files, cfg, list(lines))

    def _order(self, files: RunFolder, cfg: RunConfig, lines: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
        losses = ("worker_restarted", "worker_dropped")
        written_s = self._checkpoint.manifest["time"]
        if any(event.get("event") in losses and event["time"] > written_s for event in files.read_events()):
            return []
        if is_elastic(cfg.collector) or not resumed.is_equal_run(resumed.newest_config(files), cfg):
            return []
        if any("reason" in each["rollout"] for each in self.collector["workers"].values()):
            return []
        try:
            return order_of(files.metrics, lines)
        except ValueError:
            return []

    def rewind(self, files: RunFolder) -> None:
        """Removes what the folder has about batches after the checkpoint."""
        Checkpoints(files.checkpoints).remove_after(self.batches)
        if files.metrics.exists():
            with open(files.metrics, "rb") as file:
                for _ in range(self.batches):
                    file.readline()
                position = file.tell()
            os.truncate(files.metrics, position)

    def load_record(self, record: Record) -> None:
        """Continues the statistics and the digest."""
        # The start of this process counts, as that of the first one does.
        record.statistics.load(self._state["statistics"], record.start_s)
        record.start_s -= self._state["wall_s"]
        if record.digest is not None:
            record.digest = self._digest

    def load_trainer(self, trainer: Trainer) -> None:
        """Restores the trainer and its replay buffers.

        Raises:
            ConfigError: it has no `load_state_dict`, though it had a `state_dict`, or does not accept the state.
        """
        name, state = type(trainer).__name__, self._state["trainer"]
        try:
            if state:
                trainer.load_state_dict(state)
            for key, buffer in getattr(trainer, "replay_buffers", {}).items():
                if (folder := self._checkpoint.folder(key)) is not None:
                    buffer.loads(folder)
        except Exception as error:
            text = f"{name} does not accept its saved state: {type(error).__name__}: {error}"
            if not hasattr(trainer, "load_state_dict"):
                text = (
                    f"{name} cannot be restored: give the class load_state_dict(state), the inverse of its state_dict."
                )
            raise ConfigError([f"{self._checkpoint.path}: {text}"]) from error

    def load_assembler(self, assembler: Assembler | None) -> None:
        """Restores the frames of trajectories that are not delivered."""
        if assembler is not None and self._state["assembler"] is not None:
            assembler.load(self._state["assembler"])

    def load_generators(self) -> None:
        """Restores the generators of this process; to be called right before training."""
        states.load_generators(self._state["generators"])


def resume_point(files: RunFolder, cfg: RunConfig, say: Callable[[str], None]) -> ResumePoint | None:
    """What the run in the folder continues from; None if it left no checkpoint, so that it begins anew. `say` receives
    messages.

    Raises:
        ConfigError: as `ResumePoint` does, or `cfg` does not fit the saved state.
    """
    if resumed.begins_anew(files):
        # Where there is neither, a job has been submitted for the run.
        if files.metrics.exists() or files.result.exists():
            say(f"{files.path} {resumed.NO_CHECKPOINT}")
        return None
    if problems := resumed.problems(files, cfg):
        raise ConfigError(problems)
    point = ResumePoint(files, cfg)
    for text in point.damaged:
        say(f"{text}: the checkpoint before it is taken")
    return point


def announce_unsaved(cfg: RunConfig, events: Callable[..., None]) -> Callable[[Env], None]:
    """Returns a function that announces, at the start of a run, that checkpoints will not hold the state of its envs.
    It takes the group of envs of one worker, or one env of it, in any state."""

    def announce(group: Env) -> None:
        reason = group.unsaved or states.reason_not_saved(group, "the group of envs")
        if cfg.collector.num_workers_per_collector > 1:
            reason = "each worker runs a collector, whose state cannot be read"
        if reason is not None:
            events("envs_not_saved", reason=reason)

    return announce
