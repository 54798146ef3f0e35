"""Workers that are killed, and nodes that crash, are cut off or hang: workers are replaced, dropped, or fail the run.

Of `launcher=slurm` on four nodes, the trainer is on n1 and worker r on the node r + 2.
"""

from __future__ import annotations

import signal

import pytest
from running import ENDLESS, LAUNCHERS, nightly

_FOUR_NODES = [*ENDLESS, "launcher=slurm", "launcher.nodes=4", "collector.num_workers=3"]


def _hit(started, fault: str, event: dict) -> None:
    """The fault happens to a worker, by its `worker_joined`, or to its node."""
    if fault == "kill":
        started.cluster.on(event["host"], ["kill", "-KILL", str(event["pid"])])
    else:
        getattr(started.cluster, fault)(event["host"])


def _wait_for_return(started, worker: int, count: int) -> None:
    """Until a worker has joined so many times. A first replacement may be lost on a node that hangs."""
    joined = lambda: sum(event["worker"] == worker for event in started.events("worker_joined"))  # noqa: E731
    started.wait_until(lambda: joined() >= count, f"worker {worker} joins for the {count}. time")


@pytest.mark.parametrize("collector", ["multi_async", nightly("multi_sync"), nightly("rpc")])
def test_lost_workers_are_replaced_and_no_frame_is_lost_or_torn(run, collector):
    started = run(*_FOUR_NODES, f"collector={collector}", "collector.on_worker_failure=restart")
    joined = sorted(started.wait_for("worker_joined", 3), key=lambda event: event["worker"])
    assert [event["host"] for event in joined] == ["n2", "n3", "n4"]
    for faults in ({"kill": 0, "crash": 2}, {"cut": 0, "hang": 1}):
        started.wait_for_more()
        before = [event["worker"] for event in started.events("worker_joined")]
        for fault, worker in faults.items():
            _hit(started, fault, [event for event in started.events("worker_joined") if event["worker"] == worker][-1])
        for worker in faults.values():
            _wait_for_return(started, worker, before.count(worker) + 1)
    started.wait_for_more()
    started.complete()
    assert {event["worker"] for event in started.events("worker_failed")} == {0, 1, 2}


@pytest.mark.parametrize(("fault", "collector"), [("cut", "multi_sync"), nightly("crash", "multi_async")])
def test_a_run_goes_on_without_a_dropped_worker_until_ctrl_c_cancels_the_job(run, fault, collector):
    started = run(*ENDLESS, *LAUNCHERS["slurm"], f"collector={collector}", "collector.on_worker_failure=drop")
    joined = started.wait_for("worker_joined", 2)
    started.wait_for_more()
    victim = next(event for event in joined if event["worker"] == 1)
    _hit(started, fault, victim)
    (lost,) = started.wait_for("worker_failed", 1)
    assert lost["worker"] == 1
    started.wait_for_more()
    started.process.send_signal(signal.SIGINT)
    assert started.finish() == 130, started.output
    assert started.result["status"] == "interrupted"
    assert len(started.events("worker_joined")) == 2
    started.cluster.lose(victim["host"])
    started.cluster.heal(victim["host"])
    assert started.states() == ["CANCELLED"]


@pytest.mark.parametrize(("fault", "collector"), [("hang", "multi_async"), nightly("kill", "multi_sync")])
def test_a_lost_worker_fails_the_run_and_its_job(run, fault, collector):
    started = run(*ENDLESS, *LAUNCHERS["slurm"], f"collector={collector}", "collector.on_worker_failure=raise")
    joined = started.wait_for("worker_joined", 2)
    started.wait_for_more()
    victim = next(event for event in joined if event["worker"] == 1)
    _hit(started, fault, victim)
    assert started.finish() == 1
    assert "worker 1" in started.output
    assert str(started.folder / "logs" / "worker-1.log") in started.output
    assert started.result["status"] == "failed"
    if fault == "hang":
        assert "collector.worker_timeout_s" in started.output
        started.cluster.unhang(victim["host"])
    assert started.states() == ["FAILED"]


@pytest.mark.nightly
def test_the_others_do_not_pause_before_a_lost_worker_is_noticed(run):
    patient = ["collector.worker_timeout_s=250", "collector.on_worker_failure=drop"]
    started = run(*_FOUR_NODES, *patient)
    joined = started.wait_for("worker_joined", 3)
    started.wait_for_more()
    # Neither SLURM nor the network notices that.
    started.cluster.on(joined[-1]["host"], ["kill", "-STOP", str(joined[-1]["pid"])])
    started.wait_for_more(30)
    assert started.events("worker_failed") == []


@pytest.mark.nightly
def test_cancelled_crashed_and_cut_off_workers_are_submitted_once_more(cluster, run):
    started = run(*ENDLESS, *LAUNCHERS["submitit"], "collector.num_workers=3", "collector.on_worker_failure=restart")
    joined = {event["worker"]: event for event in started.wait_for("worker_joined", 3)}
    cluster.login(["scancel", joined[0]["job"]])
    _wait_for_return(started, 0, 2)
    # SLURM does not know yet that the node is gone, and may start a job there first.
    for worker, fault in ((1, "crash"), (2, "cut")):
        _hit(started, fault, joined[worker])
        _wait_for_return(started, worker, 2)
    started.complete()
    assert {event["worker"] for event in started.events("worker_failed")} >= {0, 1, 2}
    assert cluster.job_state(joined[0]["job"]) == "CANCELLED"


@pytest.mark.nightly
def test_a_delayed_trainer_has_resources_of_its_own_and_each_part_ends_with_the_other(cluster, run):
    started = run(*ENDLESS, *LAUNCHERS["submitit_delayed"], "collector.on_worker_failure=restart")
    first = started.wait_for("worker_joined", 2)[0]
    trainer, workers = cluster.login(["scontrol", "show", "job", *started.jobs]).split("\n\n")[:2]
    assert "gpu:1" in trainer
    assert "gpu" not in workers
    _hit(started, "kill", first)
    assert started.wait_for("worker_joined", 3)[-1]["worker"] == first["worker"]
    cluster.login(["scancel", first["job"]])
    assert started.finish() in (1, 130), started.output
    started.states()
