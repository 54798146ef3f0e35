"""The trainer's record of a worker, from its first process to its last, and the decision about a failed worker
(`collector.on_worker_failure`). `WorkerPool` keeps the records and carries out the decisions.

A worker also has settings: what a trainer changes in running envs, by attributes, calls of methods, and options of
resets.

    trainer --set_attr--> Settings: in force, with a version --Request("change")--> worker: before its next part

Workers that start later, such as replacements, get the settings in force. Checkpoints contain them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from collectx.config.problem import counted, opt
from collectx.errors import JobEnded
from collectx.place.launcher import AnyHandle
from collectx.transport.base import Reply, Request, Reset
from collectx.worker.spec import ProcessHistory, ProcessSpec


class Setting(NamedTuple):
    """A setting for all workers.

    Attributes:
        kind: "call", "set_attr" or "reset_options".
        name: the name of the method, or a path to it such as "task.set_level", or of the attribute; empty for options.
        contents: a list with one content for all workers, or one for each. The content of a call: its positional and
            its keyword arguments. Of an attribute: whether there is a value for each env, and the values or the value.
            Of options: a dict or None.
        version: 1 for the first setting of a run.
    """

    kind: str
    name: str
    contents: Sequence[Any]
    version: int

    def __str__(self) -> str:
        """Returns the call that made the setting, without its values."""
        return "set_reset_options(...)" if self.kind == "reset_options" else f"{self.kind}({self.name!r}, ...)"

    def of(self, worker: int) -> tuple[str, str, Any]:
        """Returns the setting as a worker gets it, in plain data: kind, name, content. Workers that
        were added later reuse the contents of the first ones."""
        return self.kind, self.name, self.contents[worker % len(self.contents)]


class Settings:
    """The settings in force: the last one of each attribute and each method, in the order in which they were made.
    `version` is the number of settings so far."""

    def __init__(self) -> None:
        self.version = 0
        # In order. Contains older settings of the same name too until the newer one is confirmed, because they are in
        # force again if it is withdrawn.
        self._settings: list[Setting] = []

    def add(self, kind: str, name: str, contents: Sequence[Any]) -> Setting:
        """Returns a new setting, which replaces an earlier one of this kind and name, unless workers refuse it."""
        self.version += 1
        setting = Setting(kind, name, contents, self.version)
        self._settings.append(setting)
        return setting

    def confirm(self, setting: Setting) -> None:
        """Forgets the settings that this one replaces: all workers have applied it."""
        self._settings = [
            each
            for each in self._settings
            if (each.kind, each.name) != (setting.kind, setting.name) or each.version >= setting.version
        ]

    def withdraw(self, setting: Setting) -> None:
        """Removes a setting that a worker refused; the one before it is in force again. Idempotent."""
        self._settings = [each for each in self._settings if each.version != setting.version]

    @property
    def in_force(self) -> list[Setting]:
        """The settings in force, in order."""
        last = {(each.kind, each.name): each.version for each in self._settings}
        return [each for each in self._settings if last[each.kind, each.name] == each.version]

    def since(self, version: int, worker: int) -> list[tuple[str, str, Any]]:
        """Returns the settings in force that are newer than `version`, as this worker gets them."""
        return [each.of(worker) for each in self.in_force if each.version > version]

    def state(self) -> dict[str, Any]:
        """Returns the state for `load`, in plain data and tensors."""
        return {"version": self.version, "in_force": [tuple(each) for each in self.in_force]}

    def load(self, state: Mapping[str, Any]) -> None:
        self.version = state["version"]
        self._settings = [Setting(*each) for each in state["in_force"]]


class WorkerState(Enum):
    """Whether a worker takes part in batches; see `collectx.collector.pool`. The inference server is `SERVING`."""

    STARTING = "starting"
    READY = "ready"
    SERVING = "serving"
    DROPPED = "dropped"


@dataclass(eq=False)
class Pending:
    """A request to a worker that has not replied to it.

    Attributes:
        setting: the setting that the request makes, if any.
        is_of_start: whether the process got it at its start, with the settings in force.
        is_awaited: whether a call waits for the reply; False after the call was interrupted.
    """

    setting: Setting | None = None
    is_of_start: bool = False
    is_awaited: bool = False


@dataclass(eq=False)
class WorkerRecord:
    """What the trainer knows about a worker and its newest process.

    Attributes:
        history: what came before the newest process.
        handle: the handle of the newest process; None if its end cannot be observed.
        num_granted: number of slots that the worker may fill and has not filled.
        num_frames: frames delivered, in all incarnations.
        num_parts: parts of batches delivered by this trainer process.
        first_requests: requests to which the worker must still reply before it is ready.
        saved: the saved state that a starting worker loads before it is ready; None without one.
        new_episodes: the reason why the newest process begins new episodes although it loaded `saved`.
        settings_version: the newest settings version that was sent to the newest process, with all before it.
        pending: the requests without a reply, oldest first, without `first_requests`.
        reply: the reply to the last `WorkerPool.request`; None while it is missing.
        has_replied: whether the newest process has replied to any request; it has then made its envs and policy.
        reset: the reset to send with the worker's next granted slot.
    """

    index: int
    history: ProcessHistory = ProcessHistory()  # noqa: RUF009, it is frozen
    spec: ProcessSpec = field(init=False)
    state: WorkerState | None = None
    handle: AnyHandle | None = None
    num_granted: int = 0
    num_frames: int = 0
    num_parts: int = 0
    first_requests: Sequence[Request] = ()
    saved: dict[str, Any] | None = None
    new_episodes: str | None = None
    settings_version: int = 0
    pending: deque[Pending] = field(default_factory=deque)
    reply: Reply | None = None
    has_replied: bool = False
    reset: Reset | None = None
    is_server: bool = False

    @property
    def name(self) -> str:
        return "inference server" if self.is_server else f"worker {self.index}"

    def take_reset(self) -> Reset | None:
        """Returns the reset to send with a granted slot, and removes it."""
        reset, self.reset = self.reset, None
        return reset


class FailureAction(Enum):
    """What to do about a failed worker.

    RESTART: start a replacement, which counts against `max_restarts`. REQUEUE: start a replacement, which counts
    against `max_requeues`, as the scheduler ended the worker's job. DROP: continue without the worker. END_RUN: raise
    the error.
    """

    RESTART = "restart"
    REQUEUE = "requeue"
    DROP = "drop"
    END_RUN = "end_run"


@dataclass(frozen=True)
class FailurePolicy:
    """Decides what to do about a failed worker.

    Both limits end a loop of failures. They count from the start of this trainer process, so a resume begins at 0
    again: the user who resumes the run has seen its error.

    Attributes:
        on_worker_failure: "raise", "restart" or "drop".
        max_restarts: maximum number of restarts, for all workers together.
        min_workers: a worker is dropped only if at least this number is left.
        max_requeues: maximum number of times that each worker is started again after the scheduler ended its job.
    """

    on_worker_failure: str
    max_restarts: int
    min_workers: int = 1
    max_requeues: int = 0

    def decide(self, worker: WorkerRecord, error: Exception, num_others: int, num_restarts: int) -> FailureAction:
        """Returns the action. Adds a note to `error` if a limit is the reason why the run ends."""
        if worker.history.is_last:
            error.add_note(f"{worker.name} was not replaced, because its trajectory ids are used up.")
            return FailureAction.END_RUN
        if isinstance(error, JobEnded) and self.max_requeues:
            if worker.history.num_requeues < self.max_requeues:
                return FailureAction.REQUEUE
            times = counted(self.max_requeues, "time")
            error.add_note(
                f"{worker.name} was not requeued again: its job was already requeued {times}. To allow more, raise "
                f"{opt('launcher.max_requeues')}."
            )
        if self.on_worker_failure == "drop":
            if num_others >= self.min_workers:
                return FailureAction.DROP
            minimum = opt("collector.min_workers")
            why = (
                f"only {counted(num_others, 'worker')} would be left, but {minimum}={self.min_workers}. To allow this, "
                f"lower {minimum}."
                if num_others
                else "it is the last worker."
            )
            error.add_note(f"{worker.name} was not dropped, because {why}")
        elif self.on_worker_failure == "restart":
            if num_restarts < self.max_restarts:
                return FailureAction.RESTART
            limit = opt("collector.max_restarts")
            error.add_note(
                f"{worker.name} was not restarted, because {_used(self.max_restarts)} ({limit}={self.max_restarts}, "
                f"for all workers together). To allow more, raise {limit}."
            )
        return FailureAction.END_RUN


def _used(max_restarts: int) -> str:
    if not max_restarts:
        return "the run allows no restarts"
    return f"the run has already used its {counted(max_restarts, 'restart')}"
