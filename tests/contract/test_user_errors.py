"""What user code raises in a worker arrives at whoever uses the collector as it was raised, also where it is unusual.
Plain exceptions are in `test_survival.py`."""

from __future__ import annotations

import pytest
import ways
from collecting import faulty, start
from ways import case, over
from worlds.faulty import BrokenLever, Unpicklable

import collectx
from collectx.errors import WorkerDied, WorkerError

FAULTS = {
    "builtin": (ZeroDivisionError, "divided by zero"),
    "stop_iteration": (RuntimeError, "StopIteration"),
    "unpicklable": (Unpicklable, "holds a lock"),
    # Of the worker's process.
    "exits": (WorkerError, "SystemExit"),
    "killed": (WorkerDied, r"worker [01] \(log: .*/worker-[01].log\)"),
}


@pytest.mark.parametrize(
    ("way", "fault"),
    [
        *(case(ways.INLINE_SYNC, fault) for fault in list(FAULTS)[:3]),
        *(case(way, fault) for way in (ways.SHARED_SYNC, ways.GLOO_ASYNC) for fault in FAULTS),
    ],
)
def test_an_env_that_fails_in_an_unusual_way_is_named(way, fault, tmp_path):
    error, message = FAULTS[fault]
    with (
        start(way.kind, way.place, faulty(fault), log_dir=tmp_path) as collector,
        pytest.raises(error, match=message),
    ):
        list(collector)


@over([ways.SINGLE, ways.SHARED_SYNC])
def test_an_error_of_a_reset_says_so(way):
    with (
        start(way.kind, way.place, faulty("raises", at_step=-1)) as collector,
        pytest.raises(BrokenLever, match="in env 0 of this group of 1, while resetting"),
    ):
        next(collector)


@over([ways.SHARED_SYNC, ways.GLOO_SYNC])
@pytest.mark.parametrize("is_filtered", [True, False])
def test_warnings_of_workers_are_filtered_on_request(way, is_filtered, tmp_path, monkeypatch):
    assert collectx.filter_warnings_subprocess
    monkeypatch.setattr(collectx, "filter_warnings_subprocess", is_filtered)
    with start(way.kind, way.place, faulty("warns"), frames_per_batch=20, log_dir=tmp_path) as collector:
        next(collector)
    assert ("the env warns" in (tmp_path / "worker-0.log").read_text()) is not is_filtered
