"""Several learners as tasks of a job on several nodes: the batches and weights of a local run, and one end for all."""

import time

import pytest
import torch
from machines import wait_until
from running import SMALL, finish_requeued, nightly, urgent_job

from collectx.cli.main import main
from collectx.run import RunFolder

_SAME = [word for word in SMALL if not word.startswith(("trainer=", "policy="))]
_LEARN = [*_SAME, "trainer=ppo", "trainer.num_learners=2", "checkpoint.every_batches=2"]
_JOB = ["launcher=slurm", "launcher.nodes=2", "env.step_s=0.003"]


@pytest.fixture(scope="session")
def local(tmp_path_factory):
    """The folder of the run with local learners."""
    folder = RunFolder(tmp_path_factory.mktemp("learners") / "run")
    with pytest.raises(SystemExit) as end:
        main(["run", *_LEARN, f"hydra.run.dir={folder.path}"])
    assert end.value.code == 0
    return folder


def _crash(started):
    """Crashes the node of learner 1: the first one requeues the job."""
    started.wait_for("checkpoint", 1)
    started.cluster.crash("n2")


def _crash_first(started):
    """Crashes the node of the first learner, and of the batch script: SLURM requeues the job."""
    started.wait_for("checkpoint", 1)
    started.cluster.crash("n1")


@pytest.mark.parametrize("cut", [urgent_job, nightly(_crash), nightly(_crash_first)])
def test_a_requeued_run_of_two_learners_is_the_local_run(run, local, cut):
    started = run(*_LEARN, *_JOB, "collector.worker_timeout_s=6")
    started.wait_for_more(3)
    cut(started)
    assert finish_requeued(started, 0 if cut is urgent_job else 20) == 0, started.output
    assert started.events("resumed")
    assert started.result["digest"] == local.read_result()["digest"]
    one, other = (torch.load(files.policy, weights_only=True) for files in (started.files, local))
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert set(started.states()) == {"COMPLETED"}


@pytest.mark.parametrize("num_learners", [2, nightly(4)])
def test_a_killed_learner_on_another_node_ends_the_run(cluster, run, num_learners):
    words = [f"trainer.num_learners={num_learners}", f"launcher.nodes={num_learners}"]
    more = [f"collector.num_workers={num_learners}", "collector.total_frames=-1"]
    started = run(*_LEARN, *_JOB, *words, *more)
    started.wait_for_more(3)
    # The processes of its workers have the same command.
    cluster.on("n2", ["pkill", "--signal=KILL", "--oldest", "--full", "jobs.entry /"])
    killed_s = time.monotonic()
    wait_until(lambda: started.result, 60, "the result")
    assert time.monotonic() - killed_s < 5
    assert started.finish() == 1
    log = started.files.log("learner-1")
    assert f"WorkerDied: learner 1 (task 1 on n2 was killed by signal 9; log: {log}" in started.output
    assert "gloo" not in started.output
    for node in ("n1", "n2"):
        assert not cluster.login(["pgrep", "--full", "jobs.entry /"], machine=node, check=False)
    assert set(started.states()) == {"FAILED"}
