"""The result of a run, and the builder that collects it while the run lives."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from collectx.config.derived import expected_frames
from collectx.config.problem import counted
from collectx.config.schema.run import OF_EVALUATION, RunConfig
from collectx.errors import CollectxError, ConfigError, text_of, worker_of
from collectx.run.digest import Digest
from collectx.run.signals import Signals
from collectx.run.statistics import Statistics


class Status(StrEnum):
    """The state of a run; in `result.json` one of the first three. STOPPED is a completed run that its sweep does not
    continue, WAITING one of which the sweep has not decided yet, or that it has yet to continue."""

    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped"
    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    UNKNOWN = "unknown"
    DAMAGED = "damaged"

    @property
    def has_ended(self) -> bool:
        return self in (*ENDED, *WITHOUT_FAILURE, Status.DAMAGED)


def exit_status(*statuses: Status) -> int:
    """Returns the exit status of a command: 130 if a run was interrupted, otherwise 1 if one failed, otherwise 0."""
    if Status.INTERRUPTED in statuses:
        return 130
    return int(any(status not in WITHOUT_FAILURE for status in statuses))


def interruption(signum: int) -> str:
    """Returns the `exit_reason` of a run that a signal ended."""
    return f"interrupted by {signal.Signals(signum).name}"


ALL_DELIVERED = "all frames delivered"


def limit_of(exit_reason: str) -> str | None:
    """Returns the option whose limit ended a completed run; None if the trainer did."""
    if exit_reason == ALL_DELIVERED:
        return "collector.total_frames"
    limits = ("run.max_batches", "run.max_minutes")
    return next((option for option in limits if f"({option}=" in exit_reason), None)


ENDED = (Status.COMPLETED, Status.FAILED, Status.INTERRUPTED)
WITHOUT_FAILURE = (Status.COMPLETED, Status.STOPPED, Status.WAITING)
# The events of a lost worker after which the run continues.
LOSSES = ("worker_restarted", "worker_dropped")


@dataclass(frozen=True)
class Failure:
    """An error of the run. `type` is the exception's type with its module, if it is not built in. For a restarted or
    dropped worker, and for a checkpoint, the module is left out. `worker` is the index of the worker that raised it;
    None for the trainer."""

    type: str
    message: str
    worker: int | None = None


@dataclass(frozen=True)
class Result:
    """The result of one run, which `result.json` contains.

    Attributes:
        exit_reason: why the run ended, in one sentence.
        frames, batches: how many the trainer received.
        wall_s: seconds from the command's start to the end of the run.
        checkpoint_s, evaluation_s: seconds of `wall_s` in which checkpoints were written, and evaluations awaited.
        start_s: seconds from the command's start to the first delivered batch; None without a batch.
        frames_per_s: the frames after the first batch, divided by the seconds from the first delivery to the last; None
            with fewer than two batches.
        mean_return: mean return of the last 100 finished episodes; None if none finished.
        digest: the digest of all batches in their order; None without `trainer.digest`.
        failures: the errors that ended the run, then the failures that it survived: restarted or dropped workers, and
            each distinct reason why a checkpoint could not be written.
        metrics: the means of `env.metrics`, see `Statistics.metrics`, and of the last evaluation, such as
            `eval/mean_return`. In `result.json` each is an entry of its own.
        rung: how the sweep ranked the run at the rung that ended it, see `collectx.cli.halving`; None without rungs.
    """

    status: Status
    exit_reason: str
    frames: int
    batches: int
    wall_s: float
    checkpoint_s: float
    start_s: float | None
    frames_per_s: float | None
    mean_return: float | None
    num_episodes: int
    digest: str | None
    failures: tuple[Failure, ...]
    folder: Path
    metrics: Mapping[str, float] = field(default_factory=dict)
    rung: Mapping[str, Any] | None = None
    evaluation_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Returns the content of `result.json`."""
        content = asdict(self) | {"status": self.status.value}
        # The run folder may be moved.
        del content["folder"]
        if self.rung is None:
            del content["rung"]
        if not self.evaluation_s:
            del content["evaluation_s"]
        content = content.pop("metrics") | content
        content["failures"] = [
            {key: value for key, value in asdict(failure).items() if value is not None} for failure in self.failures
        ]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any], folder: Path) -> Result:
        """Returns the result in a `result.json`. Raises `KeyError` or `TypeError` if an entry is missing or wrong."""
        failures = tuple(Failure(**failure) for failure in content["failures"])
        names = {each.name for each in fields(cls)}
        metrics = {name: value for name, value in content.items() if name not in names}
        content = {name: value for name, value in content.items() if name in names}
        return cls(
            **{
                "checkpoint_s": 0.0,
                **content,
                "metrics": metrics,
                "status": Status(content["status"]),
                "failures": failures,
            },
            folder=folder,
        )


class ResultBuilder:
    """Collects the contents of a run's result while the run lives.

    Attributes:
        start_s: when the command started, by `time.monotonic`.
        digest: hashes the delivered batches; None where batches are not hashed.
        evaluated: the numbers of the newest evaluation, as `eval/NAME`.
        is_unsaved_known: whether an event already said that env states are not saved.
        config_error: the mistake in the configuration that ended the run before any worker started.
        cause_of: returns the error that another learner had first, for an error that followed from it.
        error_after_signal: the error that ended training after a signal had asked for its end; None if it was the
            signal itself that interrupted training.
    """

    def __init__(self, cfg: RunConfig, signals: Signals):
        global _has_started_a_run
        self.start_s, _has_started_a_run = command_start_s(), True
        self.statistics = Statistics(
            cfg.collector.total_frames,
            getattr(cfg.trainer, "target_return", None),
            getattr(cfg.env, "metrics", ()),
            expected_frames(cfg),
        )
        self.digest = None if getattr(cfg.trainer, "digest", False) is False else Digest()
        self.errors: list[BaseException] = []
        self.is_unsaved_known = False
        self.config_error: ConfigError | None = None
        self.error_after_signal: BaseException | None = None
        self.cause_of: Callable[[BaseException], BaseException] = lambda error: error
        self._last_loss: Failure | None = None
        self._recovered: list[Failure] = []
        self.evaluated: dict[str, float] = {}
        self._max_batches, self._max_minutes = cfg.run.max_batches, cfg.run.max_minutes
        self._signals = signals
        self._status: Status | None = None
        self._reason = ""

    def end(self, error: BaseException | None, reason: object = None) -> None:
        """Records that training returned, with `error` None, or raised `error`. The first call sets the status; a later
        error turns COMPLETED into FAILED. An error after a signal counts as an interruption: a signal during an import,
        for example, raises an unrelated error. `reason` is what the trainer returned; if a text, it says why the
        trainer ended the run. A trainer that took no batch and gave no reason has failed."""
        error = None if error is None else self.cause_of(error)
        signum = self._signals.last
        if isinstance(error, KeyboardInterrupt) or (self._status is None and error is not None and signum is not None):
            if self._status is None:
                self._status = Status.INTERRUPTED
                self._reason = interruption(signum or signal.SIGINT)
                if error is not None and not _is_interrupt(error):
                    self.error_after_signal = error
            return
        if error is not None:
            self.errors.append(error)
            if self._status in (None, Status.COMPLETED):
                self._status = Status.FAILED
                self._reason = f"{type_name(error)}: {text_of(error)}"
            return
        if self._status is None:
            self._status = Status.COMPLETED
            frames, total = self.statistics.frames, self.statistics.total_frames
            is_complete = frames >= total >= 0
            if is_complete:
                self._reason = ALL_DELIVERED
            elif self.statistics.batches == self._max_batches:
                delivered = counted(self._max_batches, "batch", "batches")
                self._reason = f"{delivered} delivered (run.max_batches={self._max_batches})"
            elif self.statistics.batches == 0 and not isinstance(reason, str):
                self._status = Status.FAILED
                self._reason = "train() returned without a batch. To get batches, write `for batch in collection:`"
            else:
                self._reason = f"the trainer ended the run after {frames:,} frames"
            if isinstance(reason, str):
                self._reason = reason

    @property
    def end_s(self) -> float | None:
        """When `run.max_minutes` have passed, by `time.monotonic`; None without this limit."""
        return None if self._max_minutes is None else self.start_s + 60 * self._max_minutes

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal has ended training."""
        return self._status is Status.INTERRUPTED

    @property
    def status(self) -> Status:
        """The status of the run, if it ended now."""
        return self._status or Status.FAILED

    @property
    def reason(self) -> str:
        """Why training ended, as far as it has."""
        return self._reason

    def add_event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Records an event of `events.jsonl`. The result lists as failures the loss of a worker that is restarted or
        dropped (otherwise raised as an error), and checkpoints that could not be written."""
        if name == "worker_failed":
            self._last_loss = Failure(fields["type"], fields["message"], fields["worker"])
        elif name == "envs_not_saved":
            self.is_unsaved_known = True
        elif name == "evaluated":
            values = {"mean_return": fields["mean_return"], **fields.get("metrics", {})}
            self.evaluated = {f"{OF_EVALUATION}{name}": value for name, value in values.items()}
        elif name in LOSSES and self._last_loss is not None:
            self._recovered.append(self._last_loss)
        elif name in ("checkpoint_failed", "checkpoint_hook_failed"):
            what = "no checkpoint could be written" if name == "checkpoint_failed" else f"{fields['hook']} raised"
            failure = Failure(fields["type"], f"{what}: {fields['message']}")
            # A full disk makes every later checkpoint fail too.
            if failure not in self._recovered:
                self._recovered.append(failure)

    def result(self, folder: Path) -> Result:
        """Returns the result of the run up to now."""
        statistics = self.statistics
        first_s = statistics.first_s
        return Result(
            status=self.status,
            exit_reason=self._reason,
            frames=statistics.frames,
            batches=statistics.batches,
            wall_s=round(time.monotonic() - self.start_s, 3),
            checkpoint_s=round(statistics.checkpoint_s, 3),
            evaluation_s=round(statistics.evaluation_s, 3),
            start_s=None if first_s is None else round(first_s - self.start_s, 3),
            frames_per_s=None if statistics.frames_per_s is None else round(statistics.frames_per_s, 3),
            mean_return=None if math.isnan(statistics.mean_return) else statistics.mean_return,
            num_episodes=statistics.num_episodes,
            digest=self.digest.total if self.digest is not None and statistics.batches else None,
            failures=(*(Failure(type_name(e), text_of(e), worker_of(e)) for e in self.errors), *self._recovered),
            folder=folder,
            metrics={**statistics.metrics, **self.evaluated},
        )


def _is_interrupt(error: BaseException | None) -> bool:
    """Returns whether a signal raised the error, or interrupted the block that raised it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def type_name(error: BaseException) -> str:
    """Returns the exception's type as a traceback names it; one of collectx without its module."""
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", CollectxError.__module__) else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


_has_started_a_run = False


def command_start_s() -> float:
    """Returns when the command started, by `time.monotonic`: before the first run of this process, when the process
    started (resolution 10 ms); for later runs of a sweep, or if the operating system records no start times, now.
    """
    now_s = time.monotonic()
    if _has_started_a_run or not hasattr(time, "CLOCK_BOOTTIME"):
        return now_s
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return now_s
    # Field 22 of proc(5), the third one being the first after the command's name.
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return now_s - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
