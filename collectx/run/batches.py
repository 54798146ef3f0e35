"""The batches that a trainer iterates over: counts, digests and logs each one.

    collector --batch--> RunBatches --batch--> trainer
                           |   ^                   |
        metrics.jsonl <----+   +--- log, publish --+

Called from the main thread only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

from collectx.collector.env_methods import EnvMethods
from collectx.run.context import RunContext
from collectx.run.folder.batch_line import BatchLine, PartTotals, WorkerEntry
from collectx.run.folder.files import JsonLines
from collectx.run.words import REQUEST
from collectx.trainer.learners import ALONE

if TYPE_CHECKING:
    from torch import nn

    from collectx.collector.batch_info import BatchInfo
    from collectx.collector.collector import CollectorCore
    from collectx.run.evaluator import Evaluator


_ENTRY_INTERVAL_S = 1.0
"""Minimum seconds between two complete entries of a worker in `metrics.jsonl`."""
_FIRST_EPISODES = 10
"""After this many episodes, a metric that still has no value is reported."""
_NO_ENTROPY = 1e-4
"""Below this entropy, a policy repeats one action."""


class RunBatches(EnvMethods):
    """A `collectx.trainer.base.BatchCollection` over a collector.

    A batch's line is written to `metrics.jsonl` when the trainer takes the next batch, because the trainer logs scalars
    in between. Worker times, which would fill most of the file, are written once per second.

    Attributes:
        statistics: sums over all deliveries, also read by the progress display.
        is_learning: whether the trainer holds a batch, and has not asked for the next one.
        is_exhausted: whether `next` has raised `StopIteration`.
        is_late: whether that was because of `end_s`.
    """

    def __init__(
        self,
        run: RunContext,
        core: CollectorCore,
        check: Callable[[Callable[[], None]], None] = lambda complete: None,
        loggers: Callable[[Mapping[str, Any]], None] = lambda line: None,
        evaluator: Evaluator | None = None,
        examine: Callable[[Any], None] = lambda batch: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """
        Args:
            run: its options end the iteration after `run.max_batches`, or at the first request after
                `ResultBuilder.end_s`, except for the run's first batch. Its record's digest hashes every batch, which
                takes about 0.05 ms plus 0.2 ms per MB. Gets events for metrics that no episode has, for the end of a
                run without an episode or with a return far below its best, and with `collector.check_finite` for the
                first NaN or infinity that the trainer logs under each name. No signal raises while a batch is counted.
            check: called before each batch; raises if the run has to stop. Its argument is a function that writes
                the line of the last batch.
            loggers: called with each line of `metrics.jsonl`.
            evaluator: evaluates the policy during the run; its results go into the next line.
            examine: called with the first batch that contains actions of the policy.
            clock: returns monotonic seconds, for `Statistics.first_s` and `last_s`.
        """
        self.statistics = statistics = run.statistics
        self.folder, self.run_id = run.folder.path, run.folder.run_id or ""
        self.learners = run.words.learners or ALONE
        self.total_frames = statistics.total_frames
        self.frames = statistics.frames
        self.mean_return = statistics.mean_return
        self.num_episodes = statistics.num_episodes
        self._core = core
        self._events, self._digest = run.add_event, run.record.digest
        self._check = check
        self._hold = run.signals.hold
        self._clock = clock
        self._max_batches, self._end_s = run.cfg.run.max_batches, run.record.end_s
        # For each worker: the time of its last complete entry, and its totals at that time.
        self._written = {worker: (-math.inf, copy(totals)) for worker, totals in statistics.workers.items()}
        # Rank 0 writes the lines of all learners.
        self._lines = JsonLines(run.folder.metrics) if run.words.rank == 0 else None
        self._words = run.words
        self._loggers = loggers
        self._evaluator = evaluator
        self._examine, self._is_examined = examine, False
        self._random_frames = run.cfg.collector.init_random_frames or 0
        self._keeps_best = run.cfg.checkpoint.keep_best is not None
        self._check_finite = run.cfg.collector.check_finite
        # The scalars whose NaN or infinity was reported.
        self._said: set[str] = set()
        self._has_said_missing = False
        self._line: BatchLine | None = None
        self._logged: dict[str, float] = {}
        self.is_learning = self.is_exhausted = self.is_late = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Returns the next batch; blocks until it is complete. Raises the errors of the collector, and `StopIteration`
        after `max_batches`. Batches are counted, digested and logged before they are joined to trajectories."""
        self.is_learning = False
        try:
            joined = self._core.assembler
            batch = self._collect() if joined is None else joined.next(self._collect)
        except StopIteration:
            self.is_exhausted = True
            raise
        self.is_learning = True
        return batch

    def _collect(self) -> Any:
        self._core.exclusive_use.check_process()
        if self._evaluator is not None:
            self._evaluator.before_batch()  # before a checkpoint, which contains this evaluation
        self._check(self._write_line)
        statistics = self.statistics
        if statistics.batches == self._max_batches:
            raise StopIteration
        is_late = self._end_s is not None and statistics.batches > 0 and self._clock() >= self._end_s
        if self._end_s is not None and self._words.of_first(REQUEST, is_late)[0]:
            self.is_late = True
            raise StopIteration
        # The line of the last batch is written while the workers fill the next one.
        self._core.grant_next_batch()
        self._write_line()
        batch = next(self._core)
        with self._hold():
            own = None if self._digest is None else self._digest.of(batch)
            info, digest = self._words.merge(self._core.last_batch_info, own)
            now_s = self._clock()
            is_resumed = statistics.started is None and statistics.batches > 0
            statistics.add(info, now_s)
            statistics.taking_part = self._core.pool.ready_of_started
            self.frames = statistics.frames
            self.mean_return = statistics.mean_return
            self.num_episodes = statistics.num_episodes
            self._logged.update(statistics.metrics)
            reports = [part.report for part in info.parts]
            episodes = sum(len(report.returns) for report in reports)
            self._line = BatchLine(
                batch=info.index,
                time=time.time(),
                frames=statistics.frames,
                frames_per_s=statistics.rate,
                waited_s=info.waited_s,
                version=info.version,
                lag=statistics.lag,
                settings=self._core.settings.version or None,
                episodes=episodes or None,
                num_episodes=statistics.num_episodes if episodes else None,
                batch_return=sum(float(report.returns.sum()) for report in reports) / episodes if episodes else None,
                batch_length=sum(int(report.lengths.sum()) for report in reports) / episodes if episodes else None,
                mean_return=statistics.mean_return if statistics.num_episodes else None,
                resumed=is_resumed,
                workers=self._worker_entries(info, now_s),
                taking_part=statistics.taking_part,
                learners=info.learners,
                digest=None if self._digest is None or digest is None else self._digest.append(digest),
            )
        self._say_missing(_FIRST_EPISODES)
        if not self._is_examined and statistics.frames > self._random_frames:
            self._is_examined = True
            self._examine(batch)
        return batch

    def _with_core(self, use: Callable[[CollectorCore], Any]) -> Any:
        return use(self._core)

    def publish(self, policy: nn.Module) -> int:
        if policy is not None and not hasattr(policy, "modules"):
            what = "its state dict" if isinstance(policy, Mapping) else f"an object of type {type(policy).__name__}"
            raise TypeError(f"publish takes the policy's module, not {what}. Write collection.publish(policy).")
        return self._core.publish(policy)

    def log(self, **scalars: float) -> None:
        """See `BatchCollection.log`. Also accepts one-element tensors."""
        values = {name: _number(name, value) for name, value in scalars.items()}
        for name, value in values.items():
            if self._check_finite and not math.isfinite(value) and name not in self._said:
                self._said.add(name)
                self._events("not_finite", scalar=name, value=str(value), batch=self.statistics.batches - 1)
        self._logged.update(values)
        # A new dict: the display may be iterating over the old one.
        self.statistics.scalars = self.statistics.scalars | values

    def close(self) -> None:
        """Writes the last batch's line, and passes later evaluations to the loggers. Does not close the collector.
        Idempotent."""
        try:
            self._write_line()
            while self._evaluator is not None and (result := self._evaluator.result()) is not None:
                self._loggers({"frames": self.statistics.frames, "eval": result})
            self._say_missing(1)
            if self.is_exhausted and not self.statistics.num_episodes:
                self._events("no_episodes", frames=self.statistics.frames)
            if self.is_exhausted and 0 < self.statistics.num_episodes == self.statistics.frames:
                self._events("one_step_episodes")
            if self.is_exhausted and 0 <= self.statistics.scalars.get("entropy", -1.0) < _NO_ENTROPY:
                self._events("entropy_gone")
            elif self.is_exhausted and not self._keeps_best and self.statistics.version and self.statistics.has_fallen:
                best, frames = self.statistics.best_return, self.statistics.best_frames
                self._events("return_fell", best=best, frames=frames, last=self.statistics.mean_return)
        finally:
            if self._lines is not None:
                self._lines.close()

    def _say_missing(self, num_episodes: int) -> None:
        """Reports, once, the metrics without a value after so many episodes."""
        statistics = self.statistics
        if self._has_said_missing or statistics.num_episodes < num_episodes or not statistics.missing_metrics:
            return
        self._has_said_missing = True
        self._events("metrics_missing", names=statistics.missing_metrics, num_episodes=statistics.num_episodes)

    def _worker_entries(self, info: BatchInfo, now_s: float) -> list[WorkerEntry]:
        """Returns complete entries for the workers whose last one is `_ENTRY_INTERVAL_S` old, or a quarter of the run,
        so that a short run has several. A batch of one worker of each learner always names the workers and policy
        versions, which `collectx.run.resume.order_of` reads."""
        entries = []
        interval_s = min(_ENTRY_INTERVAL_S, (now_s - (self.statistics.first_s or 0.0)) / 4)
        for number, part in enumerate(info.parts):
            settings = info.settings[number] if info.settings else None
            entry = WorkerEntry(part.worker, part.report.policy_version, settings)
            written_s, before = self._written.get(part.worker) or (-math.inf, PartTotals())
            if now_s - written_s >= interval_s:
                totals = copy(self.statistics.workers[part.worker])
                self._written[part.worker] = now_s, totals
                entry.totals = totals.since(before)
            if entry.totals is not None or len(info.parts) == self.learners.num_learners:
                entries.append(entry)
        return entries

    def _write_line(self) -> None:
        with self._hold():
            if self._line is None:
                return
            line, self._line = self._line, None
            line.scalars, self._logged = self._logged, {}
            if self._evaluator is not None:
                line.eval = self._evaluator.result()
            content = line.to_json()
            if self._lines is not None:
                self._lines.append(content)
            self._loggers(content)


def _number(name: str, value: Any) -> float:
    if hasattr(value, "detach"):
        value = value.detach()  # torch warns of others
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = getattr(value, "shape", None)
        what = f"an object of type {type(value).__name__}" if shape is None else f"values of shape {[*shape]}"
        raise TypeError(
            f"collection.log({name}=...) got {what}. Pass a number, or a tensor or array with one element."
        ) from error
