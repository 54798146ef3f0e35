"""The event log, and which events the user is told of."""

from __future__ import annotations

import pytest

from collectx.run import RunFolder
from collectx.run.events import EventLog
from collectx.run.news import sentence


def test_events_are_lines_in_order_and_some_are_told(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin()
    events, told = EventLog(folder), []
    events.tell = told.append
    events("workers_started", num_workers=2)
    events("worker_failed", worker=1, type="WorkerDied", message="killed")
    events("worker_dropped", worker=1, num_workers=1)
    events.close()
    events("worker_failed", worker=0, type="WorkerDied", message="too late")
    lines = list(folder.read_events())
    assert [line["event"] for line in lines] == ["workers_started", "worker_failed", "worker_dropped"]
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert len(told) == 2
    log = folder.log("trainer").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in log] == told


def test_what_is_shown_elsewhere_is_written_down_and_not_told(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin()
    events, told = EventLog(folder, untold=("worker_failed",)), []
    events.tell = told.append
    events("worker_failed", worker=1, type="WorkerDied", message="killed")
    events("jobs", message="workers are submitted: job 12")
    events.close()
    assert told == ["workers are submitted: job 12"]
    assert len(folder.log("trainer").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("life", "ordinal"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (22, "22nd")]
)
def test_restarts_are_counted_in_words(life, ordinal):
    assert f"for the {ordinal} time" in sentence("worker_restarted", {"worker": 0, "life": life})
