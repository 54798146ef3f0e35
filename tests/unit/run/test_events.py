"""The event log, and which events the user is told of."""

import pytest

from collectx.run.events import EventLog, format_event


def test_events_are_lines_in_order_and_some_are_told(folder):
    # What is shown elsewhere is written down and not told.
    events, told = EventLog(folder, hidden=("worker_failed",)), []
    events.show = told.append
    events("workers_started", num_workers=2)
    events("worker_failed", worker=1, type="WorkerDied", message="killed")
    events("jobs", message="workers are submitted: job 12")
    events.close()
    events("jobs", message="too late")
    lines = list(folder.read_events())
    assert [line["event"] for line in lines] == ["workers_started", "worker_failed", "jobs"]
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    assert told == ["workers are submitted: job 12"]
    log = folder.log("trainer").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in log] == ["worker 1 failed: WorkerDied: killed", *told]


@pytest.mark.parametrize(
    ("batches", "reason", "text"),
    [
        (0, None, None),  # the run has not begun
        (7, None, "worker 2 joins after 7 batches: 3 of 4 workers"),
        (7, "lost", "worker 2 joins after 7 batches: 3 of 4 workers; it begins new episodes: lost"),
    ],
)
def test_a_worker_that_joins_later_is_told(batches, reason, text):
    fields = {"worker": 2, "num_workers": 3, "of": 4, "batches": batches, "new_episodes": reason}
    assert format_event("worker_ready", fields) == text
