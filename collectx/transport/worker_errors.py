"""The errors of workers that are late or have died: what happened, why, what to do. Used by the supervisor."""

from __future__ import annotations

from collectx.errors import WorkerDied, WorkerTimeout
from collectx.transport.batch_timers import Limit
from collectx.transport.processes import Handle


def timeout_error(name: str, has_joined: bool, limit: Limit) -> WorkerTimeout:
    """The error of a worker that has exceeded a timeout."""
    option, limit_s = limit
    if has_joined:
        what = "delivered nothing"
        why = "its env or policy hangs, its host is out of reach, or a batch takes longer than that"
    else:
        what = "has not joined"
        why = (
            "it waits in a queue, starts slowly, or cannot reach the trainer, as its log then says (choose another "
            "network with backend.interface; a firewall must let all TCP ports between the hosts through)"
        )
    return WorkerTimeout(
        f"{name} {what} for {limit_s:g} s ({option}={limit_s:g}): {why}; to wait longer, raise {option}."
    )


def death_error(
    name: str, has_joined: bool, handle: Handle | None, join_timeout_s: float, error: Exception | None
) -> WorkerDied:
    """The error of a worker whose process or connection has ended. Blocks for up to `join_timeout_s` until a process of
    this machine has ended.

    Args:
        error: what reading from its connection has raised.
    """
    if handle is None or handle.pid is None:
        if not has_joined:
            return WorkerDied(f"{name} ended before it had joined the trainer.")
        cause = "" if error is None or isinstance(error, EOFError) else f" ({error})"
        return WorkerDied(
            f"{name} is gone{cause}: its connection broke without an error being reported: killed "
            "from outside, out of memory, a crash in native code of the env, or its host is gone."
        )
    handle.join(join_timeout_s)
    code = handle.exitcode
    how = "is still running but closed its connection" if code is None else f"ended with exit code {code}"
    if code is not None and code < 0:
        how = f"was killed by signal {-code}"
    return WorkerDied(
        f"{name} (pid {handle.pid}) {how} without reporting an error: killed from outside, "
        "out of memory, or a crash in native code of the env."
    )
