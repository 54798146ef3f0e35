"""The event log, and which events the user is told of."""

import pytest

from collectx.run.folder import events as notices
from collectx.run.folder.events import EventLog, format_event


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


def test_what_the_configuration_explains_is_not_told_as_an_event_of_the_run(folder):
    events, told, explained = EventLog(folder), [], []
    events.show, events.explain = told.append, explained.append
    for name in ("observations_outside", "jobs"):
        events(name, message=f"told of {name}")
    events.close()
    assert (told, explained) == (["told of jobs"], ["told of observations_outside"])
    assert len(folder.log("trainer").read_text().splitlines()) == 2


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
        "was restarted (restart 1) after WorkerDied",
    )
    assert told == [
        f"worker 0 {failed.format(0, 7)}",
        f"worker 0 {restarted}",
        "worker 3 failed: ValueError: another reason",
        "this happened to 20 workers, the last one: worker 19 failed: WorkerDied: worker 19: killed",
        f"this happened to 20 workers, the last one: worker 19 {restarted}",
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


FAILURE = {"worker": 1, "type": "WorkerDied", "message": "killed"}
RESTART = {"worker": 1, "restarts": 1, "after": "WorkerDied"}
JOIN = {"worker": 2, "num_workers": 3, "of": 4, "batches": 7, "new_episodes": None}
RESUME = {"batches": 7, "frames": 70, "new_episodes": {}}
RESULT = {"batches": 9, "frames": 12_345, "mean_return": 123.45678, "interval": [100.0, 150.123456]}
# What users are told about events; None: nothing.
EVENTS = [
    ("workers_started", {"num_workers": 2}),
    ("worker_failed", FAILURE),
    ("worker_dropped", {"worker": 1, "num_workers": 3}),
    *[("worker_restarted", RESTART | {"restarts": each}) for each in (1, 2, 3, 4, 11, 12, 13, 21, 111, 113, 122)],
    ("worker_restarted", {"worker": 1, "restarts": 2, "after": "ValueError"}),
    ("worker_restarted", RESTART | {"after": "JobEnded", "normalizers": ["NormalizeReward"]}),
    ("worker_restarted", RESTART | {"normalizers": ["NormalizeReward", "NormalizeObservation"]}),
    ("worker_ready", JOIN | {"batches": 0}),
    ("worker_ready", JOIN),
    ("worker_ready", JOIN | {"batches": 1, "new_episodes": "lost"}),
    ("checkpoint", {"batches": 3, "path": "000000003", "seconds": 0.1}),
    ("checkpoint_failed", {"message": "no space"}),
    ("not_saved", {"batches": 3}),
    ("failed_after_signal", {"type": "OSError", "message": "a helper died.", "batch": 3}),
    ("failed_after_signal", {"type": "OSError", "message": "a helper died", "batch": None}),
    ("envs_not_saved", {"reason": "Env is a world"}),
    ("envs_not_saved", {"reason": "Env is a world", "workers": [0, 2]}),
    ("envs_large", {"nbytes": 123_456_789}),
    ("infos_examined", {"names": ["speed", "success"], "declared": "env.info_keys=[speed, success]"}),
    ("metrics_missing", {"names": ["speed", "success"], "num_episodes": 10}),
    ("metrics_missing", {"names": ["step_mean/speed"], "num_episodes": 1}),
    ("no_episodes", {"frames": 12_345}),
    ("one_step_episodes", {}),
    ("never_published", {}),
    ("entropy_gone", {}),
    ("return_fell", {"best": 391.23456, "frames": 40_960, "last": 127.345}),
    ("evaluation_awaited", {"frames": [1000], "timeout_s": None}),
    ("evaluation_awaited", {"frames": [1000, 2000, 3000], "timeout_s": 60.0}),
    ("evaluations_left", {"frames": [1000, 2000]}),
    ("resumed", RESUME),
    ("resumed", RESUME | {"new_episodes": {"1": "lost"}}),
    ("resumed", RESUME | {"new_episodes": {"0": "lost", "1": "not saved", "2": "lost", "3": "lost"}}),
    ("resumed", RESUME | {"new_trainer": "Reinforce"}),
    ("evaluated", RESULT),
    ("evaluated", RESULT | {"interval": None, "metrics": {"success": 0.5, "speed": 1234567.8}}),
    ("evaluation_failed", {"message": "its process ended"}),
    ("logger_failed", {"logger": "wandb", "message": "no answer"}),
    ("logger_slow", {"logger": "wandb", "waiting": 100}),
    ("requeued", {"reason": "SIGTERM"}),
    ("cancelled", {"reason": "n1 is gone"}),
    ("batches_copied", {}),
    ("observations_outside", {"message": "an observation lies outside of its space"}),
    ("actions_outside", {"message": "an action lies outside of its space"}),
    ("outputs_shared", {"count": 4, "path": "out.csv"}),
    ("log_limited", {"file": "logs/worker-0.log", "max_bytes": 10_000_000}),
    ("worker_waits", {"worker": 1, "message": "it asks for 1 CPU. Nodes: 1 with 2 CPU (free: nothing)."}),
    ("peer_refused", {"address": "1.2.3.4", "reason": "a wrong secret"}),
]


def test_what_users_are_told_about_events(expected):
    expected("events", [[name, format_event(name, fields)] for name, fields in EVENTS])


@pytest.mark.parametrize("name", sorted({name for name, fields in EVENTS if fields}))
def test_an_event_that_lacks_its_fields_is_not_told_or_told_without_them(name):
    assert isinstance(format_event(name, {}), str | None)
