"""The event log of a run: joins, deaths, checkpoints and signals, one line each, in the order in which they happened.
Any thread may write to it.

A message that many workers repeat, such as the failure of a node's workers, is shown once with the number of workers.
"""

from __future__ import annotations

import re
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

from collectx.config.problem import counted, page
from collectx.run.folder.files import JsonLines
from collectx.run.folder.layout import RunFolder

# Equal messages are gathered for this many seconds.
PAUSE_S = 1.0
# The characters that are shown of a message that was already shown in full.
_LAST = 70
# The log of a worker, and its pid.
_LOG = re.compile(r" \((log: [^)]*|pid \d+)\)")


class Notices:
    """Shows a message once, then how many workers repeated it. The second message comes after `PAUSE_S`, or at `flush`,
    and contains the beginning of the last repetition. Texts that differ only in numbers count as equal. Any thread may
    call it; `show` is also called from a thread of this object. As a context manager, closes at the end of the
    block."""

    def __init__(self, show: Callable[[str], None]):
        self._show = show
        self._lock = threading.Lock()
        # By text without numbers: the workers, the newest text, and whether it was repeated.
        self._gathered: dict[str, tuple[set[Any], str, bool]] = {}
        self._timer: threading.Timer | None = None

    def __call__(self, text: str, worker: Any) -> None:
        """Shows a message about `worker`, its index or address."""
        kind = re.sub(r"\d+", "#", text)
        with self._lock:
            workers, _, _ = self._gathered.get(kind, (set(), "", False))
            is_repeated = bool(workers)
            if not self._gathered:
                self._timer = threading.Timer(PAUSE_S, self.flush)
                self._timer.name, self._timer.daemon = "collectx-notices", True
                self._timer.start()
            self._gathered[kind] = (workers | {worker}, text, is_repeated)
        if not is_repeated:
            self._show(text)

    def flush(self) -> None:
        """Shows the messages that were repeated since the last call."""
        with self._lock:
            gathered, self._gathered = self._gathered, {}
            if self._timer is not None:
                self._timer.cancel()
        for workers, text, is_repeated in gathered.values():
            if is_repeated:
                last = textwrap.shorten(_LOG.sub("", text), _LAST, placeholder=" ...")
                several = f"this happened to {len(workers)} workers, the last one: {last}"
                self._show(several if len(workers) > 1 else text)

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Flushes, and waits up to `PAUSE_S` for the thread. If `show` hangs on a pipe that no process reads, the
        thread ends with the process."""
        self.flush()
        if self._timer is not None:
            self._timer.join(PAUSE_S)

    def __exit__(self, *error: object) -> None:
        self.close()


# Events that every run of the same env and options has.
_EXPLAINED = ("infos_examined", "no_trajectories", "observations_outside", "statistics_in_envs")


class EventLog:
    """`events(name, **fields)` appends `{"time": unix seconds, "event": name, **fields}` to `events.jsonl`. If there is
    a message about the event (`format_event`), it is also written to `logs/trainer.log` and, unless the name is in
    `hidden`, passed to `show`; if many workers report the same, only once (`Notices`). What the configuration explains
    is passed to `explain` instead. Events that a full disk refuses are written with a later one."""

    def __init__(self, folder: RunFolder, hidden: Collection[str] = ()):
        self._hidden = frozenset(hidden)
        self.show: Callable[[str], None] = lambda text: None
        self.explain: Callable[[str], None] = lambda text: self.show(text)
        self._notices = Notices(lambda text: self.show(text))
        self._log = folder.log("trainer")
        self._path = folder.events
        self._lines: JsonLines | None = JsonLines(self._path)
        # Events that are not written yet, with their messages.
        self._waiting: deque[tuple[dict[str, Any], str | None]] = deque()
        self._lock = threading.Lock()
        self._closed = self._has_failed = False

    def __call__(self, name: str, **fields: Any) -> None:
        line = {"time": round(time.time(), 6), "event": name} | fields
        text = format_event(name, fields)
        with self._lock:
            # A thread may still report the end of a worker while the run closes.
            if self._closed:
                return
            self._waiting.append((line, text and f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"))
            failure, had_failed = self._write(), self._has_failed
            self._has_failed = failure is not None
        if failure is not None and not had_failed:
            self.show(f"events cannot be logged: {failure}. The run continues, and logs them when it can.")
        if text is None or name in self._hidden:
            return
        if name in _EXPLAINED:
            self.explain(text)
        elif "worker" in fields:
            self._notices(text, fields["worker"])
        else:
            self.show(text)

    def _write(self) -> OSError | None:
        """Writes the waiting events. Returns the error of the disk, which is not raised: the threads that report events
        must not stop, and the run continues without its log."""
        try:
            while self._waiting:
                line, text = self._waiting[0]
                if self._lines is None:
                    self._lines = JsonLines(self._path)  # without the part of a line that the full disk took
                self._lines.append(line)
                self._waiting.popleft()
                if text is not None:
                    with open(self._log, "a") as file:
                        file.write(text)
        except OSError as error:
            if self._lines is not None:
                self._lines.close()
            self._lines = None
            return error
        return None

    def close(self) -> None:
        """Writes waiting events, and closes the log; later events are dropped. Idempotent."""
        with self._lock:
            self._closed = True
            self._write()
            if self._lines is not None:
                self._lines.close()
        self._notices.close()
        if self._waiting:
            lost = counted(len(self._waiting), "event")
            self.show(f"{lost} could not be logged, so `collectx reproduce` may refuse this run.")
            self._waiting.clear()


# Event messages that only fill in the event's fields; see `format_event`.
_MESSAGES = {
    "worker_failed": "worker {worker} failed: {type}: {message}",
    "worker_waits": "worker {worker} waits for its start: {message}",
    "checkpoint_failed": "no checkpoint could be written: {message}",
    "logger_note": "{message}",
    "never_published": "the trainer published no weights, so the workers acted with the initial ones. Call "
    "collection.publish(policy) after each update.",
    "checkpoint_hook_failed": "the checkpoint is complete, but then {hook} raised {message}. The run continues.",
    "logger_slow": "{logger} logging is slower than the run: {waiting} lines are waiting, so further lines are skipped",
    "one_step_episodes": (
        "every episode ended after its first step, as in a bandit. In another env, check what step() returns as "
        "terminated and truncated."
    ),
    "not_finite": "the trainer logged {scalar}={value} in batch {batch}. Further such values are not reported.",
    "requeued": "the job was requeued: {reason}",
    "cancelled": "the job was cancelled: {reason}",
    "log_limited": "{file} exceeded run.max_log_bytes={max_bytes}: repeated lines are folded, and the oldest removed. "
    "For all lines, raise run.max_log_bytes.",
    "jobs": "{message}",
    "batches_copied": "batches are copied now, which is slower, because the trainer holds several, or forked while it "
    "held one. Keep clones of what it needs, and drop batches before a fork.",
    "no_trajectories": "{message}",
    "entropy_gone": "the entropy has fallen to 0, so the policy repeats one action. If it has not learned the task, "
    f"find out why: {page('does-not-learn')}",
    "statistics_in_envs": "{message}",
    "observations_outside": "{message}",
    "actions_outside": "{message}",
    "outputs_shared": "all {count} envs write to {path}, so they overwrite each other's files. Give env.entry_point a "
    "parameter env_index, and use it in the path.",
    "peer_refused": "refused a connection from {address}: {reason}",
}


def format_event(name: str, fields: dict[str, Any]) -> str | None:
    """Returns the user's message about an event of `events.jsonl`; None if users see none, or if the event lacks a
    field, as one that another version wrote may."""
    try:
        return _format_event(name, fields)
    except KeyError:
        return None


def _format_event(name: str, fields: dict[str, Any]) -> str | None:
    if name in _MESSAGES:
        return _MESSAGES[name].format_map(fields)
    if name in ("logger_failed", "evaluation_failed"):
        what = "evaluation" if name == "evaluation_failed" else f"{fields['logger']} logging"
        return f"{what} stopped: {fields['message'].removesuffix('.')}. The run continues."
    worker = fields.get("worker")
    if name == "worker_dropped":
        left = counted(fields["num_workers"], "worker")
        return f"the run continues with {left}, without worker {worker} (collector.on_worker_failure=drop)."
    if name == "worker_restarted":
        after = fields.get("after")
        why = "because SLURM ended its job" if after == "JobEnded" else f"after {after}"
        lost = " and ".join(fields.get("normalizers", ()))
        begins = f"; the statistics of {lost} in its envs start from scratch" if lost else ""
        return f"worker {worker} was restarted (restart {fields['restarts']}) {why}{begins}"
    if name == "worker_ready" and fields["batches"]:
        reason = fields["new_episodes"]
        begins = "" if reason is None else f"; it begins new episodes: {reason}"
        counts = f"{fields['num_workers']} of {fields['of']} workers now take part"
        return f"worker {worker} joined after {counted(fields['batches'], 'batch', 'batches')}: {counts}{begins}"
    if name == "not_saved":
        return (
            f"the trainer was interrupted during batch {fields['batches'] - 1}, so neither a checkpoint nor final.pt "
            "was saved. `collectx resume` continues from the newest checkpoint, if there is one"
        )
    if name == "failed_after_signal":
        batch = fields["batch"]
        saved = "" if batch is None else f". Saving what the trainer learned of batch {batch} until then"
        error = f"{fields['type']}: {fields['message'].removesuffix('.')}"
        return f"after the signal, the trainer raised {error} (full traceback: logs/trainer.log){saved}"
    if name == "envs_not_saved":
        some = fields.get("workers", ())
        of = f" of worker{'s' * (len(some) > 1)} {' and '.join(map(str, some))}" if some else ""
        return f"checkpoints cannot save the envs{of}, so these begin new episodes after a resume: {fields['reason']}"
    if name == "envs_large":
        return (
            f"each checkpoint contains {fields['nbytes'] / 1e6:.0f} MB of envs, because they are pickled with their "
            "data and the constants of their modules. To leave data out, see the section 'Large data': "
            f"{page('resume')}"
        )
    if name == "infos_examined":
        return (
            "the trainer stepped an env of its own with random actions, to learn the shapes of info entries "
            f"({', '.join(fields['names'])}). To avoid this, declare the shapes: '{fields['declared']}'."
        )
    if name == "metrics_missing":
        names, them = " and ".join(map(repr, fields["names"])), "it" if len(fields["names"]) == 1 else "them"
        of_ends = [name for name in fields["names"] if not name.startswith("step_mean/")]
        episodes = counted(fields["num_episodes"], "episode")
        return (
            f"env.metrics names {names}, but no {'last ' * bool(of_ends)}step in {episodes} returned {them} in its "
            "info. Check the spelling."
            + "".join(f" For the mean over all steps, use step_mean/{name}." for name in of_ends[:1])
        )
    if name == "no_episodes":
        return (
            f"no episode ended in {fields['frames']:,} frames, so this run has no return. Raise "
            "collector.total_frames, or cut each episode after N frames: collector.max_frames_per_traj=N."
        )
    if name == "return_fell":
        best, last = _short(fields["best"]), _short(fields["last"])
        return (
            f"the return fell from its best, {best} at {fields['frames']:,} frames, to {last}. To keep the best "
            "weights, train with checkpoint.keep_best=mean_return."
        )
    if name == "resumed":
        workers: dict[str, list[str]] = {}
        for worker, reason in fields["new_episodes"].items():
            workers.setdefault(reason, []).append(f"worker {worker} begins")
        begin = "".join(
            f"; {which[0] if len(which) == 1 else f'{len(which)} workers begin'} new episodes: {reason}"
            for reason, which in workers.items()
        )
        if empty := fields.get("empty_buffers"):
            begin += f"; the replay buffer {' and '.join(empty)} is empty, as the checkpoint does not contain it"
        if trainer := fields.get("new_trainer"):
            begin += f"; {trainer} has no state_dict, so only the policy's published weights continue"
        batches = counted(fields["batches"], "batch", "batches")
        moved = "".join(f"; its data moved: {each}" for each in fields.get("moved", ()))
        return f"the run continues after {batches} ({fields['frames']:,} frames){begin}{moved}"
    if name == "evaluation_awaited":
        one = _evaluations(fields["frames"])
        if (limit_s := fields["timeout_s"]) is None:
            return f"training waits for {one}, because another one is due. To wait less, raise eval.every_batches."
        return f"the run waits for {one}, at most {limit_s:g} s (eval.close_timeout_s)."
    if name == "evaluations_left":
        them = "it" if len(fields["frames"]) == 1 else "them"
        return f"the run ended without {_evaluations(fields['frames'])}. To make {them}: collectx resume RUN_DIR"
    if name == "initialized":
        who = "the policy and the critic begin" if fields.get("critic") else "the policy begins"
        rest = "; ".join(fields["left_out"])
        return f"{who} with weights of {fields['path']}" + (f"; not loaded: {rest}" if rest else "")
    if name == "evaluated":
        low, high = map(_short, fields["interval"] or (0.0, 0.0))
        interval = f" (95% CI {low} to {high})" if fields["interval"] else ""
        where = f"evaluated after {fields['frames']:,} frames"
        means = "".join(f", {name} {_short(value)}" for name, value in fields.get("metrics", {}).items())
        return f"{where}: mean return {_short(fields['mean_return'])}{interval}{means}"
    return None


def _short(value: float) -> str:
    return f"{value:,.1f}" if 1_000 <= abs(value) < 1e9 else f"{value:.4g}"


def _evaluations(frames: Sequence[int]) -> str:
    *others, last = (f"{each:,}" for each in frames)
    counts = f"{', '.join(others)} and {last}" if others else last
    return f"the evaluation{'s' * (len(frames) > 1)} after {counts} frames"
