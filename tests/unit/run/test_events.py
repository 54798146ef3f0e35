"""The event log, and which events the user is told of."""

import pytest

from collectx.run.folder.events import EventLog, format_event
from collectx.run.terminal import notices


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


def test_the_same_text_of_many_workers_is_told_once_with_their_number(folder):
    events, told = EventLog(folder), []
    events.show = told.append
    for worker in range(20):
        events("worker_failed", worker=worker, type="WorkerDied", message=f"worker {worker} (pid {worker + 7}): killed")
        events("worker_restarted", worker=worker, restarts=1, after="WorkerDied")
    events("worker_failed", worker=3, type="ValueError", message="another reason")
    events.close()
    failed, restarted = (
        "failed: WorkerDied: worker {} (pid {}): killed",
        "was restarted for the 1st time, after WorkerDied",
    )
    assert told == [
        f"worker 0 {failed.format(0, 7)}",
        f"worker 0 {restarted}",
        "worker 3 failed: ValueError: another reason",
        f"20 workers reported this; last: worker 19 {failed.format(19, 26)}",
        f"20 workers reported this; last: worker 19 {restarted}",
    ]
    assert len(folder.log("trainer").read_text().splitlines()) == len(list(folder.read_events())) == 41


def test_repeated_texts_are_told_after_a_pause_and_then_at_once_again(monkeypatch, wait_until):
    monkeypatch.setattr(notices, "PAUSE_S", 0.01)
    told = []
    show = notices.Notices(told.append)
    for worker in range(3):
        show("no more memory", worker)
    wait_until(lambda: len(told) > 1)
    show("no more memory", 7)
    assert [told[0], told[-1]] == ["no more memory"] * 2
    show.close()


def test_reasons_of_many_workers_that_begin_new_episodes_are_told_once():
    reasons = {"0": "lost", "1": "not saved", "2": "lost", "3": "lost"}
    assert format_event("resumed", {"batches": 7, "frames": 70, "new_episodes": reasons}) == (
        "continues after 7 batches, 70 frames; 3 workers begin new episodes: lost"
        "; worker 1 begins new episodes: not saved"
    )


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
