"""Calls that a type checker accepts, and some that it refuses. Checked by mypy in `make check`, which reports a
`type: ignore` without an error; never run.
"""

from __future__ import annotations

from typing import Any

import collectx


def construct(create: Any) -> None:
    collectx.Collector(create, None, frames_per_batch=3, interruptor=None)
    collectx.MultiSyncCollector([create], frames_per_batch=[3], num_workers=1, init_fn=None)
    collectx.MultiSyncCollector(create, None, frame_per_batch=3)  # type: ignore[call-arg]
    collectx.MultiSyncCollector(create, None, frames_per_batch="3")  # type: ignore[arg-type]
    collectx.MultiCollector(create)  # type: ignore[call-arg]
    collectx.Collector(create, num_slots=2)  # type: ignore[call-arg]
