"""The signal handlers that user code may not replace in this process.

Envs and simulators may install their own handlers when they are made. Those of the trainer write a checkpoint and end
the run, and those of a worker leave its end to the trainer: both set theirs again afterwards.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any

_kept: dict[int, Any] = {}
_noted: set[str] = set()
_note: Callable[[str], None] = print


def keep(handlers: Mapping[int, Any], note: Callable[[str], None]) -> None:
    """From now on, `restore` sets these handlers, which are installed now, and calls `note` if they were replaced.
    Without handlers, it does nothing."""
    global _note
    _kept.clear()
    _kept.update(handlers)
    _noted.clear()
    _note = note


def restore(maker: str) -> None:
    """Called after user code made something, such as an env. Sets the kept handlers again, and notes once that `maker`,
    such as "env.id=CartPole-v1", replaced them. Does nothing outside the main thread, where no handler can be set."""
    if threading.current_thread() is not threading.main_thread():
        return
    replaced = [signal.Signals(signum).name for signum, ours in _kept.items() if signal.getsignal(signum) != ours]
    for signum, handler in _kept.items():
        signal.signal(signum, handler)  # also in place of one that a C library has installed, which Python does not see
    text = f"{maker} installed handlers of {', '.join(replaced)}; the run needs its own and removed them."
    if replaced and text not in _noted:
        _noted.add(text)
        _note(text)
