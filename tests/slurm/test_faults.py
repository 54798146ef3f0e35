"""Workers that are killed, nodes that crash, are cut off or hang.

Of `launcher=slurm` on four nodes, the trainer is on n1 and worker r on the node r + 2.
"""

import signal

import pytest
from machines import wait_until
from running import ENDLESS, LAUNCHERS, nightly

_FOUR_NODES = [*ENDLESS, "launcher=slurm", "launcher.nodes=4", "collector.num_workers=3"]


def _hit(started, fault: str, worker: int) -> dict:
    """The fault happens to a worker, or to its node; its last `worker_joined`."""
    victim = [event for event in started.events("worker_joined") if event["worker"] == worker][-1]
    if fault == "kill":
        started.cluster.on(victim["host"], ["kill", "-KILL", str(victim["pid"])])
    elif fault == "stop":
        started.cluster.on(victim["host"], ["kill", "-STOP", str(victim["pid"])])
    else:
        getattr(started.cluster, fault)(victim["host"])
    return victim


def _exists(started, worker: dict) -> bool:
    return started.cluster.on(worker["host"], ["sh", "-c", f"kill -0 {worker['pid']} 2>&1 || echo no"]) == ""


def _lives(started, worker: int) -> int:
    return sum(event["worker"] == worker for event in started.events("worker_joined"))


def _wait_for_return(started, worker: int, count: int) -> None:
    """Until a worker has joined so many times. A first replacement may be lost on a node that hangs."""
    started.wait_until(lambda: _lives(started, worker) >= count, f"worker {worker} joins for the {count}. time")


_NOTICED, _SILENT = {"kill": 0, "stop": 1, "crash": 2}, {"cut": 0, "hang": 1}


@pytest.mark.parametrize(
    ("collector", "rounds"),
    [
        ("multi_async", [{"crash": 2}]),
        *(nightly(collector, [_NOTICED, _SILENT]) for collector in ("multi_async", "multi_sync", "rpc")),
    ],
)
def test_lost_workers_are_replaced_and_no_frame_is_lost_or_torn(run, collector, rounds):
    started = run(*_FOUR_NODES, f"collector={collector}", "collector.on_worker_failure=restart")
    joined = started.wait_for("worker_joined", 3)
    assert {event["worker"]: event["host"] for event in joined} == {0: "n2", 1: "n3", 2: "n4"}
    for faults in rounds:
        started.wait_for_more()
        before = {worker: _lives(started, worker) for worker in faults.values()}
        victims = {fault: _hit(started, fault, worker) for fault, worker in faults.items()}
        for worker, count in before.items():
            _wait_for_return(started, worker, count + 1)
        if "stop" in victims:
            wait_until(lambda hung=victims["stop"]: not _exists(started, hung), 60, "the end of the worker that hung")
    started.wait_for_more()
    started.complete()
    hit = {worker for faults in rounds for worker in faults.values()}
    assert {event["worker"] for event in started.events("worker_failed")} == hit


def _lose_worker_1(run, fault: str, collector: str, then: str):
    """A run whose worker 1 meets the fault, and its node."""
    rules = [f"collector={collector}", f"collector.on_worker_failure={then}", "launcher.requeue=false"]
    started = run(*ENDLESS, *LAUNCHERS["slurm"], *rules)
    started.wait_for("worker_joined", 2)
    started.wait_for_more()
    return started, _hit(started, fault, 1)["host"]


@pytest.mark.nightly
@pytest.mark.parametrize(("fault", "collector"), [("cut", "multi_sync"), ("crash", "multi_async")])
def test_a_run_goes_on_without_a_dropped_worker_until_ctrl_c_cancels_the_job(run, fault, collector):
    started, node = _lose_worker_1(run, fault, collector, "drop")
    (lost,) = started.wait_for("worker_failed", 1)
    assert lost["worker"] == 1
    started.wait_for_more()
    started.interrupt(signal.SIGINT)
    assert started.result["status"] == "interrupted"
    assert len(started.events("worker_joined")) == 2
    started.cluster.lose(node)
    started.cluster.heal(node)
    assert started.states() == ["CANCELLED"]


@pytest.mark.nightly
@pytest.mark.parametrize(("fault", "collector"), [("hang", "multi_async"), ("kill", "multi_sync")])
def test_a_lost_worker_fails_the_run_and_its_job(run, fault, collector):
    started, node = _lose_worker_1(run, fault, collector, "raise")
    assert started.finish() == 1
    assert "worker 1" in started.output
    assert str(started.files.log("worker-1")) in started.output
    assert started.result["status"] == "failed"
    if fault == "hang":
        assert "collector.worker_timeout_s" in started.output
        started.cluster.unhang(node)
    assert started.states() == ["FAILED"]


@pytest.mark.nightly
def test_cancelled_crashed_and_cut_off_workers_are_submitted_once_more(cluster, run):
    started = run(*ENDLESS, *LAUNCHERS["submitit"], "collector.num_workers=3", "collector.on_worker_failure=restart")
    (cancelled,) = {event["job"] for event in started.wait_for("worker_joined", 3) if event["worker"] == 0}
    cluster.login(["scancel", cancelled])
    _wait_for_return(started, 0, 2)
    # SLURM does not know yet that the node is gone, and may start a job there first.
    for worker, fault in ((1, "crash"), (2, "cut")):
        _hit(started, fault, worker)
        _wait_for_return(started, worker, 2)
    started.complete()
    assert {event["worker"] for event in started.events("worker_failed")} >= {0, 1, 2}
    assert cluster.job_states(cancelled) == ["CANCELLED"]


@pytest.mark.nightly
def test_a_delayed_trainer_has_resources_of_its_own_and_each_part_ends_with_the_other(cluster, run):
    started = run(*ENDLESS, *LAUNCHERS["submitit_delayed"], "collector.on_worker_failure=restart")
    job = started.wait_for("worker_joined", 2)[0]["job"]
    trainer, workers = cluster.login(["scontrol", "show", "job", *started.jobs]).split("\n\n")[:2]
    assert "gpu:1" in trainer
    assert "gpu" not in workers
    _hit(started, "kill", 0)
    _wait_for_return(started, 0, 2)
    cluster.login(["scancel", job])
    assert started.finish() in (1, 130), started.output
    started.states()


@pytest.mark.nightly
def test_a_run_begins_while_a_job_waits_and_its_worker_joins(cluster, run):
    """One node of four CPUs is free, for four of the five workers."""
    others = ["--parsable", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1000"]
    blocking = cluster.login(["sbatch", *others], cwd=cluster.shared).strip()
    wait_until(lambda: cluster.job_states(blocking) == ["RUNNING"], 60, "the other job to run")
    members = ["collector.num_workers=5", "collector.min_workers=3", "collector.on_worker_failure=drop"]
    started = run(*ENDLESS, *LAUNCHERS["submitit"], "collector=multi_sync", *members, "collector.worker_timeout_s=60")

    def taking_part():
        """Returns how many of the five workers took part in each batch; None: all of them did."""
        return [line.taking_part for line in started.files.read_metrics()]

    started.wait_until(lambda: [4, 5] in taking_part(), "a batch of four workers")
    assert len(started.events("worker_joined")) == 4
    assert None not in taking_part()
    cluster.login(["scancel", blocking])
    started.wait_until(lambda: None in taking_part(), "a batch of five workers")
    started.complete()
    assert not started.events("worker_failed")
