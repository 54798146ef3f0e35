"""One run of the counting env over backend=mpi as a process of its own, for `test_joining.py`: kills a worker on
the way. Prints the frames and the names of the events."""

from __future__ import annotations

import os
import signal

from collecting import counting, start

from collectx.env.counting import StreamChecker

events: list[tuple[str, dict]] = []
checker = StreamChecker(restarts=True)
with start(
    "distributed",
    "local",
    counting(3),
    backend="mpi",
    frames_per_batch=30,
    total_frames=-1,
    on_worker_failure="restart",
    events=lambda name, **fields: events.append((name, fields)),
) as collector:
    for index, batch in enumerate(collector):
        checker.take(batch)
        joined = [fields["pid"] for name, fields in events if name == "worker_joined"]
        if index == 50:
            os.kill(joined[0], signal.SIGKILL)
        if index >= 200 and len(joined) == 3:
            break
print(checker.frames, *(name for name, _ in events))
