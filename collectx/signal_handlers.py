"""The signal handlers that user code may not replace in this process.

Envs and simulators may install their own handlers when they are made. But the trainer's handlers write a checkpoint and
end the run, and a worker's leave its end to the trainer, so both processes install theirs again afterwards.
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
    """Makes `restore` reinstall these handlers, which are installed now, and call `note` if they were replaced. Without
    handlers, `restore` does nothing."""
    global _note
    _kept.clear()
    _kept.update(handlers)
    _noted.clear()
    _note = note


def restore(maker: str) -> None:
    """Installs the kept handlers again, and notes once that `maker`, such as "env.id=CartPole-v1", replaced them. Call
    this after user code made something, such as an env. Does nothing outside the main thread, where Python allows no
    handlers."""
    if threading.current_thread() is not threading.main_thread():
        return
    replaced = [signal.Signals(signum).name for signum, ours in _kept.items() if signal.getsignal(signum) != ours]
    for signum, handler in _kept.items():
        signal.signal(signum, handler)  # a C library may have installed one that Python does not see
    text = f"{maker} replaced the handlers of {', '.join(replaced)}. The run needs its own, so it restored them."
    if replaced and text not in _noted:
        _noted.add(text)
        _note(text)
