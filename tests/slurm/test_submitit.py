"""The launchers submitit and submitit_delayed by the real command: jobs join, go, are replaced, and leave nothing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_COLLECTX = str(Path(sys.executable).with_name("collectx"))
_SMALL = [
    "env=counting",
    "env.num_envs=1",
    "policy=random",
    "collector=multi_async",
    "collector.num_workers=3",
    "collector.frames_per_batch=1000",
    "collector.total_frames=200_000",
    "hydra.run.dir=run",
]
# Takes batches until a file called `stop` is there, and looks at every frame.
_WATCHER = """
from pathlib import Path
from collectx.env.counting import StreamChecker

class Watcher:
    def __init__(self, restarts=True):
        self._checker = StreamChecker(restarts=restarts)

    def train(self, collection):
        for batch in collection:
            self._checker.take(batch)
            if Path("stop").exists():
                break
"""
_WATCHED = [
    *_SMALL,
    "trainer=custom",
    "trainer.target=watcher:Watcher",
    "collector.total_frames=-1",
    "env.step_s=0.002",
    "collector.worker_timeout_s=15",
    "collector.close_timeout_s=5",
]


class Run:
    """A started command, and what it leaves in its run folder."""

    def __init__(self, cluster, folder, overrides, prefix=()):
        (folder / "watcher.py").write_text(_WATCHER)
        self.cluster = cluster
        self.cwd = folder
        self.folder = folder / "run"
        self.process = cluster.start(
            [*prefix, _COLLECTX, "run", *overrides],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, timeout_s=120):
        """The exit status; then `said` is what the user saw."""
        try:
            self.said, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.said, _ = self.process.communicate()
            raise AssertionError(f"still going on after {timeout_s} s:\n{self.said}") from None
        return self.process.returncode

    def events(self, name):
        """The events of that name, as far as they are written."""
        try:
            lines = (self.folder / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [event for line in lines if (event := json.loads(line))["event"] == name]

    def wait_for(self, name, count, timeout_s=90):
        """Waits until there are so many events of that name; returns the last."""
        deadline = time.monotonic() + timeout_s
        while len(events := self.events(name)) < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"{len(events)} of {count} {name}:\n{self.process.communicate()[0]}")
            time.sleep(0.1)
        return events[count - 1]

    def stop(self):
        """Lets the watching trainer end."""
        (self.cwd / "stop").touch()

    @property
    def result(self):
        return json.loads((self.folder / "result.json").read_text())

    def states(self, *jobs):
        """How the jobs have ended, without those that were there before."""
        _wait(lambda: not self.cluster.jobs(), 30, "the jobs to end")
        return [self.cluster.job_state(job) for job in jobs]


def _wait(condition, timeout_s, what):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.1)


@pytest.fixture
def run(cluster, tmp_path):
    """`run(*overrides)` starts `collectx run`; what still runs at the end is killed."""
    started = []

    def start(*overrides, **options):
        started.append(Run(cluster, tmp_path, overrides, **options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()


def _submitit(*overrides, base=_SMALL):
    return [*base, "launcher=submitit", *overrides]


@pytest.mark.parametrize("collector", ["multi_async", "distributed_sync"])
def test_workers_are_jobs_on_other_nodes_that_end_with_the_run(run, collector):
    size = [f"collector={collector}", "collector.frames_per_batch=999", "collector.total_frames=199_800"]
    going = run(*_submitit(*size, "trainer=meter"))
    assert going.finish() == 0, going.said
    joined = going.events("worker_joined")
    assert {event["worker"] for event in joined} == {0, 1, 2}
    assert len({event["host"] for event in joined}) == 3
    assert going.result["status"] == "completed"
    assert going.result["frames"] == 199_800
    assert going.states(*(event["job"] for event in joined)) == ["COMPLETED"] * 3


def test_a_job_may_be_the_trainer(run):
    inside = ["srun", "--ntasks=1", "--cpus-per-task=2", "--gres=gpu:1", "--job-name=outer"]
    going = run(*_submitit("trainer=meter"), prefix=inside)
    assert going.finish() == 0, going.said
    assert {event["worker"] for event in going.events("worker_joined")} == {0, 1, 2}


def test_cancelled_crashed_and_cut_off_workers_are_replaced_and_nothing_is_lost_or_torn(cluster, run):
    if cluster.kind == "one host":
        pytest.skip("all nodes are this host")
    going = run(*_submitit("collector.on_worker_failure=restart", base=_WATCHED))
    going.wait_for("worker_joined", 3)
    first = {event["worker"]: event for event in going.events("worker_joined")}
    cluster.login(["scancel", first[0]["job"]])
    assert going.wait_for("worker_joined", 4)["worker"] == 0
    cluster.crash(first[1]["host"])
    assert going.wait_for("worker_joined", 5)["worker"] == 1
    cluster.cut(first[2]["host"])
    assert going.wait_for("worker_joined", 6)["worker"] == 2
    going.stop()
    assert going.finish() == 0, going.said
    assert [event["worker"] for event in going.events("worker_failed")] == [0, 1, 2]
    assert cluster.job_state(first[0]["job"]) == "CANCELLED"


def test_an_async_run_goes_on_with_those_that_have_come(cluster, run):
    one_node = ["launcher.exclusive=true", "launcher.sbatch.exclude=n1"]
    going = run(*_submitit(*one_node, "trainer=meter", "collector.total_frames=300_000"))
    assert going.finish() == 0, going.said
    joined = {event["worker"] for event in going.events("worker_joined")}
    assert len(joined) == 2
    (missing,) = {0, 1, 2} - joined
    assert re.search(rf"1 of 3 workers wait in the queue: worker {missing}: PENDING \(.*Resources", going.said), (
        going.said
    )
    assert going.result["frames"] == 300_000
    assert cluster.jobs() == []


def test_a_job_cancelled_in_the_queue_is_noticed_at_once(cluster, run):
    going = run(*_submitit("launcher.sbatch.begin=now+1hour", "trainer=meter"))
    going.wait_for("jobs", 1)
    _wait(lambda: len(cluster.jobs()) == 1, 10, "one array waits")
    (array,) = {job.partition("_")[0] for job in cluster.jobs()}
    began = time.monotonic()
    cluster.login(["scancel", f"{array}_1"])
    assert going.finish(30) == 1
    assert time.monotonic() - began < 15
    assert re.search(r"worker 1 \(job \d+_1: (GONE|CANCELLED) \(.*ended before it had joined", going.said), going.said
    assert cluster.jobs() == []


def test_a_full_queue_is_said_and_limited(cluster, run):
    going = run(*_submitit("launcher.cpus_per_task=64", "launcher.queue_timeout_s=8", "trainer=meter"))
    assert going.finish(60) == 1
    assert "3 of 3 workers wait in the queue: worker 0, 1, 2: PENDING (PartitionConfig: no node" in going.said
    assert "has not joined for 8 s (launcher.queue_timeout_s=8)" in going.said
    assert cluster.jobs() == []


def test_a_wrong_partition_is_a_wrong_configuration(cluster, run):
    going = run(*_submitit("launcher.partition=nowhere", "trainer=meter"))
    assert going.finish(60) == 2
    assert "invalid partition specified: nowhere" in going.said
    assert "launcher.partition" in going.said
    assert cluster.jobs() == []


def test_a_job_that_cannot_start_says_why(cluster, run):
    going = run(*_submitit("launcher.python=/nowhere/python", "trainer=meter"))
    assert going.finish(60) == 1
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
    going = run(*_submitit(*wanted, "trainer=meter"), prefix=inside)
    assert going.finish(90) == 1
    assert "n2 could not reach the trainer within 8 s (collector.start_timeout_s=8)" in going.said, going.said
    assert "backend.interface" in going.said


def test_ctrl_c_cancels_all_jobs(cluster, run):
    going = run(*_submitit("launcher.sbatch.exclude=n1", "launcher.exclusive=true", base=_WATCHED))
    going.wait_for("worker_joined", 2)
    going.process.send_signal(signal.SIGINT)
    assert going.finish(60) == 130, going.said
    assert cluster.jobs() == []
    assert going.result["status"] == "interrupted"


def _delayed(*overrides, base=_SMALL):
    return [*base, "launcher=submitit_delayed", *overrides]


def test_delayed_trainer_and_workers_have_resources_of_their_own(cluster, run):
    gpu = ["launcher.trainer.gpus=1", "launcher.trainer.cpus_per_task=2", "launcher.worker.cpus_per_task=1"]
    going = run(*_delayed(*gpu, "trainer=meter"))
    assert going.finish() == 0, going.said
    assert going.result["frames"] == 200_000
    (job,) = re.findall(r"\bjob (\d+), 4 tasks", going.said)
    shown = cluster.login(["scontrol", "show", "job", job])
    trainer, workers = shown.split("\n\n")[:2]
    assert "gpu:1" in trainer
    assert "gpu" not in workers
    assert going.states(job) == ["COMPLETED\nCOMPLETED"]


def test_delayed_workers_are_replaced_and_one_parts_end_is_the_others(cluster, run):
    going = run(*_delayed("collector.on_worker_failure=restart", "collector.num_workers=2", base=_WATCHED))
    going.wait_for("worker_joined", 2)
    first = going.events("worker_joined")[0]
    cluster.on(first["host"], ["kill", "-KILL", str(first["pid"])])
    assert going.wait_for("worker_joined", 3)["worker"] == first["worker"]
    cluster.login(["scancel", first["job"]])
    assert going.finish(60) in (1, 130), going.said
    _wait(lambda: cluster.jobs() == [], 20, "both parts end")


_SCRIPT = """
import collectx, gymnasium, socket

def make():
    return gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")

@collectx.submitit_delayed_launcher(2, submitit_main_conf={"gpus_per_node": 1},
                                    submitit_collection_conf={"slurm_nodelist": "n2"})
def main():
    with collectx.DistributedCollector(
        [make] * 2, frames_per_batch=20, total_frames=200, sync=True, launcher="submitit_delayed"
    ) as collector:
        print("frames", sum(batch.numel() for batch in collector))

if __name__ == "__main__":
    main()
"""


def test_a_script_and_its_workers_are_submitted_together(cluster, tmp_path):
    (tmp_path / "script.py").write_text(_SCRIPT)
    said = cluster.login([sys.executable, "script.py"], timeout=120, cwd=tmp_path)
    assert "frames 200\n" in said
    _wait(lambda: cluster.jobs() == [], 20, "all jobs end")
    (events,) = tmp_path.glob("outputs/*/*/events.jsonl")
    joined = [json.loads(line) for line in events.read_text().splitlines() if "worker_joined" in line]
    if cluster.kind != "one host":
        assert [event["host"] for event in joined] == ["n2", "n2"]
