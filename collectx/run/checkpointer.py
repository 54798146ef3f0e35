"""When a run writes checkpoints, and what they contain. In the trainer's process.

    before each batch   if a checkpoint is due, or a signal has stopped the run
    at the end          unless the run has failed

    state.pt            the states of the trainer (`state_dict`), the collector and its workers, the statistics, the
                        evaluations without a result, and the random generators of the trainer's process
    replay-<name>.pt    one for each of the trainer's `replay_buffers`, unless `checkpoint.replay_buffer=false`

With several learners, each of them writes its part, at the same batch; an older checkpoint is removed when all parts
are on the disk. A resume skips a checkpoint that lacks a part.

collectx/run/resume.py continues a run from a checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from collectx import state as states
from collectx.checkpoints import STATE, sync
from collectx.config.schema.run import OF_EVALUATION, RunConfig
from collectx.errors import summary_of
from collectx.run.context import RunContext
from collectx.run.folder.files import write_atomically
from collectx.run.resume import buffer_file
from collectx.run.signals import RunStopped
from collectx.run.words import REQUEST

if TYPE_CHECKING:
    from collectx.collector.collector import CollectorCore
    from collectx.env.base import Env
    from collectx.run.evaluator import Evaluator
    from collectx.trainer.base import Trainer

# Timed checkpoints may take this share of the time.
_MAX_SHARE = 0.01
# A checkpoint that could not be written is tried again after this time, or the interval if that is shorter.
_RETRY_S = 60.0
# From this many bytes of pickled envs on, a note says why checkpoints are so large.
_LARGE_ENVS = 64 << 20


class Checkpointer:
    """Writes checkpoints, with an event for each one, which contains the seconds that it took."""

    def __init__(self, run: RunContext, core: CollectorCore, trainer: Trainer, evaluator: Evaluator | None = None):
        self._events = run.add_event
        self._options = options = run.cfg.checkpoint
        self._metrics = run.folder.metrics
        self._words = run.words
        self._folder = run.folder
        self._checkpoints = run.folder.checkpoints_of(run.words.rank, options.keep)
        self._core = core
        self._trainer = trainer
        self._record = record = run.record
        self._signals = run.signals
        self._evaluator = evaluator
        # With `checkpoint.keep_best=eval/NAME`, each evaluation ranks the checkpoint of its weights. By batches.
        self._scores: dict[int, float] = {}
        self._ranking = evaluator if (options.keep_best or "").startswith(OF_EVALUATION) else None
        if self._ranking is not None:
            self._ranking.on_result = self._rank
        # The batches of the last attempt, and of the last checkpoint that is complete, as far as known.
        self._last_batches = self._written_batches = record.statistics.batches
        self._said_size = False
        self._every_s = float("inf") if options.every_min is None else 60.0 * options.every_min
        self._due_s = time.monotonic() + self._every_s

    def before_batch(self, complete: Callable[[], None] = lambda: None) -> None:
        """Writes a checkpoint if one is due; blocks until it is on the disk. Call this before requesting a batch.
        `complete` writes the line of the last batch; called before a checkpoint is written. Raises `RunStopped` if a
        signal has stopped the run, and a checkpoint was written."""
        stop, is_due = self._words.of_first(REQUEST, self._signals.last or 0, self._is_due())
        if not (stop or is_due):
            return
        complete()
        self.write()
        if stop:
            self._words.is_end, self._signals.last = True, int(stop)
        if stop or self._words.is_alone:
            self._signals.check()

    def _is_due(self) -> bool:
        options, batches = self._options, self._record.statistics.batches
        if batches == 0:
            return False  # a request waits for the first batch
        # A signal may come between two statements.
        if is_requested := self._signals.is_checkpoint_requested:
            self._signals.is_checkpoint_requested = False
        return (
            is_requested
            or (options.every_batches is not None and batches - self._last_batches >= options.every_batches)
            or time.monotonic() >= self._due_s
            or (self._ranking is not None and self._ranking.last_batches == batches)
        )

    def write(self, wait_for_workers: bool = True) -> None:
        """Writes a checkpoint of the current state; blocks until it is on the disk. Does nothing before the first
        batch, or if there is a checkpoint of this batch. If writing fails, for example on a full disk, the failure is
        reported and the run continues. With `wait_for_workers=False`, workers may still be filling slots; the
        checkpoint then contains no worker states. Raises `CollectxError` if the learners have different weights."""
        statistics = self._record.statistics
        if statistics.batches in (0, self._written_batches):
            return
        if self._core.num_batches != statistics.batches:
            message = "the run was interrupted while a batch was being delivered"
            self._events("checkpoint_failed", batches=statistics.batches, type=RunStopped.__name__, message=message)
            return
        began_s, every_s, is_written = time.monotonic(), self._every_s, False
        self._words.check_weights(lambda: self._core.transport.newest_weights(), statistics.batches)
        buffers = getattr(self._trainer, "replay_buffers", {}) if self._options.replay_buffer else {}
        facts = {
            "batches": statistics.batches,
            "frames": statistics.frames,
            "policy_version": self._core.policy_version,
            "score": self._score(),
            "num_learners": self._words.num_learners,
        }
        unranked: list[int] = []
        try:
            if wait_for_workers:
                # This wait does not count as time of the checkpoint: the batches that are filled meanwhile are later
                # delivered without a wait.
                self._core.wait_until_filled()
                began_s = time.monotonic()
            # A signal may end the wait for workers, but not the writing.
            files: dict[str, Any] = {STATE: self._state(wait_for_workers)}
            with self._signals.hold(), ExitStack() as stack:
                if self._words.rank == 0:
                    sync(self._metrics)
                for name, buffer in buffers.items():
                    files[buffer_file(name)] = stack.enter_context(buffer.frozen_state())
                open_ones = [] if self._ranking is None else self._ranking.state()
                unranked = [each["batches"] for each in open_ones]
                path = self._checkpoints.write(statistics.batches, facts, files, None)
                is_written, self._written_batches = True, statistics.batches
                seconds = round(time.monotonic() - began_s, 3)
                self._events("checkpoint", batches=statistics.batches, path=path.name, seconds=seconds)
                self._tell_trainer()
        except Exception as error:
            # A lost worker is handled when the next batch is requested.
            message = summary_of(error)
            if isinstance(error, OSError):
                message = f"{error.filename or self._checkpoints.path}: {error.strerror or error}"
            if "pickle" in message:
                message = f"{message}. {self._of_state_dict()}"
            self._events("checkpoint_failed", batches=statistics.batches, type=type(error).__name__, message=message)
            every_s = min(every_s, _RETRY_S)
        finally:
            cost_s = time.monotonic() - began_s
            statistics.checkpoint_s += cost_s
        self._last_batches = statistics.batches
        self._due_s = time.monotonic() + max(every_s, cost_s / _MAX_SHARE)
        self._complete(is_written, unranked)

    def _complete(self, is_written: bool, unranked: Sequence[int]) -> None:
        """Removes older checkpoints if all learners have written their parts of the newest one."""
        missing = [str(rank) for rank in self._words.not_written(is_written)]
        if missing:
            self._written_batches = 0
        if missing and is_written and self._words.rank == 0:
            message = f"the part of learner {' and '.join(missing)} is missing"
            batches = self._record.statistics.batches
            self._events("checkpoint_failed", batches=batches, type="CollectxError", message=message)
        if not missing and self._words.rank == 0:
            self._checkpoints.remove_old(unranked)
            self._folder.remove_old_parts()

    def _tell_trainer(self) -> None:
        """Calls the trainer's `checkpoint_written`. The checkpoint is complete, whatever that raises."""
        try:
            getattr(self._trainer, "checkpoint_written", lambda: None)()
        except Exception as error:
            name = f"{type(self._trainer).__name__}.checkpoint_written"
            self._events("checkpoint_hook_failed", hook=name, type=type(error).__name__, message=summary_of(error))

    def _score(self) -> float | None:
        """Returns the metric that chooses the best checkpoint (`checkpoint.keep_best`); None before its first value."""
        name, statistics = self._options.keep_best, self._record.statistics
        if self._ranking is not None:
            return self._scores.get(statistics.batches)
        metrics = {"mean_return": statistics.mean_return, **statistics.metrics}
        value = metrics.get(name or "", math.nan)
        return None if math.isnan(value) else value

    def _rank(self, result: dict[str, Any]) -> None:
        """Ranks the checkpoint of the evaluated weights, which may not be written yet, by an evaluation's result."""
        metrics = {"mean_return": result["mean_return"], **result.get("metrics", {})}
        score = float(metrics.get(str(self._options.keep_best).removeprefix(OF_EVALUATION), math.nan))
        if math.isnan(score):
            return
        batches = result["batches"]
        self._scores[batches] = score
        try:
            self._checkpoints.rank(batches, score)
        except OSError as error:
            message = f"its score was not written: {summary_of(error)}"
            self._events("checkpoint_failed", batches=batches, type=type(error).__name__, message=message)

    def write_final(self, path: Path) -> None:
        """Writes the trainer's state alone to the file `path`; blocks until it is on the disk. Does nothing for a
        trainer without a state. Raises `OSError` if the file could not be written."""
        state: dict = getattr(self._trainer, "state_dict", dict)()
        if state:
            try:
                write_atomically(path, lambda file: torch.save(state, file))
            except Exception as error:
                if "pickle" in str(error):
                    error.add_note(self._of_state_dict())
                raise

    def _of_state_dict(self) -> str:
        name = type(self._trainer).__name__
        return f"Return only tensors and plain data from {name}.state_dict(), whose result checkpoints contain."

    def _state(self, wait_for_workers: bool) -> dict[str, Any]:
        state_dict = getattr(self._trainer, "state_dict", None)
        collector = self._core.state(wait_for_workers)
        rollouts = {worker: each["rollout"] for worker, each in collector["workers"].items()}
        unsaved = {worker: each["reason"] for worker, each in rollouts.items() if "reason" in each}
        if unsaved and not self._record.is_unsaved_known:
            # Before their first reset, when `announce_unsaved` looked, the states of the envs could be saved.
            self._events("envs_not_saved", workers=[*unsaved], reason=min(unsaved.values()))
        nbytes = sum(len(each.get("envs", ())) for each in rollouts.values())
        if nbytes >= _LARGE_ENVS and not self._said_size:
            self._said_size = True
            self._events("envs_large", nbytes=nbytes)
        return {
            "trainer": None if state_dict is None else state_dict(),
            "collector": collector,
            "statistics": self._record.statistics.state(),
            "evaluations": [] if self._evaluator is None else self._evaluator.state(),
            "evaluated": self._record.evaluated,
            "wall_s": time.monotonic() - self._record.start_s,
            "generators": states.save_generators(),
        }


def announce_unsaved(cfg: RunConfig, events: Callable[..., None]) -> Callable[[Env], None]:
    """Returns a function that adds an event, at the start of a run, if checkpoints will not contain env states. The
    function takes the env group of one worker, or one env of the group, in any state."""

    def announce(group: Env) -> None:
        reason = group.unsaved or states.reason_not_saved(group)
        if cfg.collector.num_workers_per_collector > 1:
            reason = "the processes within a worker do not report the state of their envs"
        if reason is not None:
            events("envs_not_saved", reason=reason)

    return announce
