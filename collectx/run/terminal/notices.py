"""Messages that many workers repeat, such as the failure of a node's workers, shown once with the number of workers."""

from __future__ import annotations

import re
import textwrap
import threading
from collections.abc import Callable
from typing import Any, Self

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
