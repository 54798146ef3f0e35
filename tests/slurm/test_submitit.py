"""The launchers submitit and submitit_delayed by the real command: jobs join, go, are replaced, and leave nothing."""

from __future__ import annotations

import json
import re
import signal
import sys

import pytest
from running import ENDLESS, SMALL

_SUBMITIT = [*SMALL, "launcher=submitit"]
_ENDLESS = [*ENDLESS, "launcher=submitit", "collector.close_timeout_s=5"]


@pytest.mark.parametrize("collector", [["collector=distributed_sync"], ["collector=rpc", "collector.sync=true"]])
def test_workers_are_jobs_on_other_nodes_that_end_with_the_run(cluster, run, collector):
    # Ended by themselves, however busy the machine is.
    going = run(*_SUBMITIT, *collector, "collector.close_timeout_s=60")
    assert going.finish() == 0, going.said
    joined = going.events("worker_joined")
    assert {event["worker"] for event in joined} == {0, 1, 2}
    if cluster.kind != "one host":
        assert {event["host"] for event in joined} == set(cluster.nodes)
    assert going.result["status"] == "completed"
    assert going.result["frames"] == 99_900
    assert going.states(*(event["job"] for event in joined)) == ["COMPLETED"] * 3


def test_a_job_may_be_the_trainer_and_an_async_run_ends_its_workers(run):
    inside = ["srun", "--ntasks=1", "--cpus-per-task=2", "--gres=gpu:1", "--job-name=outer"]
    going = run(*_ENDLESS, "collector.close_timeout_s=60", prefix=inside)
    going.wait_for("worker_joined", 3)
    going.wait_for_more()
    going.stop()
    assert going.finish() == 0, going.said
    joined = going.events("worker_joined")
    assert {event["worker"] for event in joined} == {0, 1, 2}
    assert going.states(*(event["job"] for event in joined)) == ["COMPLETED"] * 3


def test_cancelled_crashed_and_cut_off_workers_are_replaced_and_nothing_is_lost_or_torn(cluster, run):
    if cluster.kind == "one host":
        pytest.skip("all nodes are this host")
    going = run(*_ENDLESS, "collector.on_worker_failure=restart")
    going.wait_for("worker_joined", 3)
    first = {event["worker"]: event for event in going.events("worker_joined")}

    def comes_again(worker):
        joined = [event for event in going.events("worker_joined") if event["worker"] == worker]
        return len(joined) > 1

    cluster.login(["scancel", first[0]["job"]])
    going.wait_until(lambda: comes_again(0), "worker 0 comes again")
    # SLURM does not know yet that the node is gone, and may start a job there first.
    cluster.crash(first[1]["host"])
    going.wait_until(lambda: comes_again(1), "worker 1 comes again")
    cluster.cut(first[2]["host"])
    going.wait_until(lambda: comes_again(2), "worker 2 comes again")
    going.stop()
    assert going.finish() == 0, going.said
    assert {event["worker"] for event in going.events("worker_failed")} == {0, 1, 2}
    assert cluster.job_state(first[0]["job"]) == "CANCELLED"


def test_an_async_run_goes_on_with_those_that_have_come(run):
    going = run(*_ENDLESS, "launcher.exclusive=true", "launcher.sbatch.exclude=n1")
    going.wait_for("worker_joined", 2)
    (missing,) = {0, 1, 2} - {event["worker"] for event in going.events("worker_joined")}
    notice = re.compile(rf"1 of 3 workers wait in the queue: worker {missing}: PENDING \(.*Resources")
    going.wait_until(lambda: notice.search(going.seen()), "who waits is said")
    going.wait_for_more()
    going.stop()
    assert going.finish() == 0, going.said
    assert len(going.events("worker_joined")) == 2
    going.wait_for_no_job()


def test_a_job_cancelled_in_the_queue_is_noticed_long_before_its_time_is_over(cluster, run):
    going = run(*_SUBMITIT, "launcher.sbatch.begin=now+1hour", "launcher.queue_timeout_s=1000")
    going.wait_until(lambda: len(cluster.jobs()) == 1, "one array waits")
    (array,) = {job.partition("_")[0] for job in cluster.jobs()}
    cluster.login(["scancel", f"{array}_1"])
    assert going.finish(90) == 1
    assert re.search(r"worker 1 \(job \d+_1: (GONE|CANCELLED) \(.*ended before it had joined", going.said), going.said
    going.wait_for_no_job()


def test_a_full_queue_is_said_and_limited(run):
    # The first reason that SLURM gives may be another; what changes is said after 15 s.
    going = run(*_SUBMITIT, "launcher.cpus_per_task=64", "launcher.queue_timeout_s=24")
    assert going.finish(120) == 1
    assert "3 of 3 workers wait in the queue: worker 0, 1, 2: PENDING (PartitionConfig: no node" in going.said
    assert "has not joined for 24 s (launcher.queue_timeout_s=24)" in going.said
    going.wait_for_no_job()


def test_a_wrong_partition_is_a_wrong_configuration(cluster, run):
    going = run(*_SUBMITIT, "launcher.partition=nowhere")
    assert going.finish() == 2
    assert "invalid partition specified: nowhere" in going.said
    assert "launcher.partition" in going.said
    assert cluster.jobs() == []


def test_a_job_that_cannot_start_says_why(run):
    going = run(*_SUBMITIT, "launcher.python=/nowhere/python")
    assert going.finish() == 1
    assert re.search(r"worker \d \(job \d+_\d: FAILED.*/nowhere/python: No such file or directory", going.said), (
        going.said
    )


def test_an_unreachable_trainer_is_named_within_the_stated_time(cluster, run):
    if cluster.kind == "one host":
        pytest.skip("all nodes are this host")
    cluster.isolate("n1")
    cluster.isolate("n2")
    inside = ["srun", "--ntasks=1", "--nodelist=n1"]
    wanted = ["launcher.sbatch.nodelist=n2", "collector.start_timeout_s=8", "collector.num_workers=1"]
    going = run(*_SUBMITIT, *wanted, prefix=inside)
    assert going.finish() == 1
    within = "within 6 s (three quarters of collector.start_timeout_s=8)"
    assert f"n2 could not reach the trainer {within}" in going.said, going.said
    assert "backend.interface" in going.said


def test_ctrl_c_cancels_all_jobs(run):
    going = run(*_ENDLESS, "launcher.sbatch.exclude=n1", "launcher.exclusive=true")
    going.wait_for("worker_joined", 2)
    going.process.send_signal(signal.SIGINT)
    assert going.finish() == 130, going.said
    assert going.result["status"] == "interrupted"
    going.wait_for_no_job()


@pytest.mark.parametrize("collector", [[], ["collector=rpc"]])
def test_delayed_trainer_and_workers_have_resources_of_their_own(cluster, run, collector):
    gpu = ["launcher.trainer.gpus=1", "launcher.trainer.cpus_per_task=2", "launcher.worker.cpus_per_task=1"]
    going = run(*SMALL, "launcher=submitit_delayed", *gpu, *collector)
    assert going.finish() == 0, going.said
    assert going.result["frames"] == 99_900
    (job,) = going.jobs
    shown = cluster.login(["scontrol", "show", "job", job])
    trainer, workers = shown.split("\n\n")[:2]
    assert "gpu:1" in trainer
    assert "gpu" not in workers
    assert going.states(job) == ["COMPLETED\nCOMPLETED"]


def test_delayed_workers_are_replaced_and_one_parts_end_is_the_others(cluster, run):
    two = ["collector.on_worker_failure=restart", "collector.num_workers=2"]
    going = run(*ENDLESS, "launcher=submitit_delayed", *two)
    going.wait_for("worker_joined", 2)
    first = going.events("worker_joined")[0]
    cluster.on(first["host"], ["kill", "-KILL", str(first["pid"])])
    assert going.wait_for("worker_joined", 3)["worker"] == first["worker"]
    cluster.login(["scancel", first["job"]])
    assert going.finish() in (1, 130), going.said
    going.wait_for_no_job()


_SCRIPT = """
import collectx, gymnasium, socket

def make():
    return gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")

@collectx.submitit_delayed_launcher(2, framework="FRAMEWORK", submitit_main_conf={"gpus_per_node": 1},
                                    submitit_collection_conf={"slurm_nodelist": "n2"})
def main():
    with collectx.COLLECTOR(
        [make] * 2, frames_per_batch=20, total_frames=200, sync=True, launcher="submitit_delayed"
    ) as collector:
        print("frames", sum(batch.numel() for batch in collector))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("framework", "collector"), [("distributed", "DistributedCollector"), ("rpc", "RPCCollector")])
def test_a_script_and_its_workers_are_submitted_together(cluster, tmp_path, wait_until, framework, collector):
    (tmp_path / "script.py").write_text(_SCRIPT.replace("FRAMEWORK", framework).replace("COLLECTOR", collector))
    said = cluster.login([sys.executable, "script.py"], timeout=200, cwd=tmp_path)
    assert "frames 200\n" in said
    wait_until(lambda: cluster.jobs() == [], 90, "all jobs end")
    (events,) = tmp_path.glob("outputs/*/*/events.jsonl")
    joined = [json.loads(line) for line in events.read_text().splitlines() if "worker_joined" in line]
    if cluster.kind != "one host":
        assert [event["host"] for event in joined] == ["n2", "n2"]
