"""Jobs that return to the queue: the run goes on where it was, and every batch is delivered once."""

import pytest
import torch
from running import ENDLESS, LAUNCHERS, SMALL, finish_requeued, nightly, urgent_job

import collectx.data
from collectx.run import RunFolder

# Some seconds long, with the batches of `digest`. The partition preempts, so that launcher.requeue is true.
_SLOW = [*SMALL, "env.step_s=0.003"]
# Three minutes long; one batch takes 18 s.
_SLOWER = ["env.step_s=0.035", "checkpoint.grace_s=35"]


def _requeue(started):
    started.cluster.login(["scontrol", "requeue", *started.jobs])


def _time_limit(started):
    """Comes by itself: SLURM signals a run of three minutes after 80 to 140 s."""


def _crash(started):
    """Crashes the trainer's node: SLURM takes it out of the job, and a worker requeues the job."""
    started.wait_for("checkpoint", 2)
    started.cluster.crash("n1")


def _crash_worker(started):
    """Crashes a worker's node, without which the run cannot continue: the trainer requeues the job."""
    started.wait_for("checkpoint", 1)
    started.cluster.crash("n3")


@pytest.mark.parametrize(
    ("launcher", "cut", "more"),
    [
        ("slurm", urgent_job, []),
        # An async worker first fills the slots that it was granted: within KillWait, also on a busy machine.
        nightly("slurm", _requeue, ["collector=multi_async", "collector.frames_per_batch=100"]),
        nightly("slurm", _time_limit, ["launcher.time=3", "launcher.signal_s=40", *_SLOWER]),
        nightly("slurm", _crash, ["collector.on_worker_failure=drop", "checkpoint.every_batches=1"]),
        nightly("slurm", _crash_worker, ["checkpoint.every_batches=1"]),
        nightly("submitit_delayed", urgent_job, []),
    ],
)
def test_a_requeued_run_delivers_every_batch_once(cluster, run, digest, launcher, cut, more):
    started = run(*_SLOW, *LAUNCHERS[launcher], *more)
    started.wait_for_more(1)
    cut(started)
    assert finish_requeued(started, 20 if cut is _crash_worker else 0) == 0, started.output
    assert started.events("resumed")
    if node := {_crash: "n1", _crash_worker: "n3"}.get(cut):
        assert started.events("requeued")[0]["reason"].startswith(f"{node}, the node of ")
    assert [line.batch for line in started.files.read_metrics()] == list(range(started.result["batches"]))
    assert started.result["frames"] == 10_000
    if "collector=multi_async" not in more:
        assert started.result["digest"] == digest
    assert set(started.states()) == {"COMPLETED"}


@pytest.mark.nightly
@pytest.mark.parametrize("cut", [_requeue, urgent_job])
def test_a_requeued_run_records_every_episode_once(run, cut):
    started = run(*_SLOW, *LAUNCHERS["slurm"], "trainer=record", "trainer.flush_every_frames=700")
    started.wait_for_more(3)
    cut(started)
    assert finish_requeued(started) == 0, started.output
    assert started.events("resumed")
    frames = collectx.data.load(started.files.path / "data")
    starts = frames["observation"][frames["observation"][:, 2] == 0]
    num_episodes = started.result["num_episodes"]
    assert len(torch.unique(starts, dim=0)) == len(starts) == num_episodes
    assert frames["next", "done"].sum() == num_episodes
    # Frames of an episode follow one another.
    assert set(frames["observation"].diff(dim=0)[~frames["next", "done"].flatten()[:-1]][:, 2].tolist()) == {1}


@pytest.mark.nightly
def test_a_run_that_was_requeued_often_enough_ends_and_says_so(cluster, run):
    started = run(*_SLOW, *LAUNCHERS["slurm"], "launcher.nodes=1", "launcher.max_requeues=1")
    for life in (0, 1):
        started.wait_until(lambda life=life: len(started.events("resumed")) == life, "the job to start")
        started.wait_for_more(1)
        cluster.login(["scancel", "--signal=TERM", *started.jobs])
        if life == 0:
            started.wait_until(lambda: cluster.job_states(started.jobs[0]) == ["PENDING"], "the job to be requeued")
            cluster.login(["scontrol", "update", f"JobId={started.jobs[0]}", "StartTime=now"])
    assert started.finish() == 130, started.output
    reason = f"job {started.jobs[0]} is not requeued: it was already requeued 1 time (launcher.max_requeues=1)"
    assert started.result["status"] == "interrupted"
    assert started.result["exit_reason"] == f"interrupted by SIGTERM: {reason}"
    assert reason in started.output
    assert started.states() == ["FAILED"]


@pytest.mark.nightly
def test_a_preempted_point_of_a_sweep_continues_in_its_folder(run):
    one_node = ["launcher=slurm", "launcher.nodes=1", "collector.num_workers=1", "collector.frames_per_batch=500"]
    started = run(*_SLOW, *one_node, "env.step_s=0.006", "-m", "seed=0,1")
    first, second = (RunFolder(started.cwd / "sweep" / f"seed={seed}") for seed in (0, 1))
    started.wait_until(lambda: all(len(list(each.read_metrics())) > 1 for each in (first, second)), "batches of both")
    (node,) = started.cluster.squeue(f"--jobs={started.jobs[0]}", "--format=%N")
    urgent_job(started, f"--nodelist={node}")
    assert finish_requeued(started) == 0, started.output
    assert started.status() == ["completed"] * 2
    for files, num_resumed in ((first, 1), (second, 0)):
        assert [line.batch for line in files.read_metrics()] == list(range(20))
        assert sum(event["event"] == "resumed" for event in files.read_events()) == num_resumed


@pytest.mark.nightly
@pytest.mark.parametrize(("cut", "more"), [(urgent_job, []), (_time_limit, ["launcher.time=2"])])
def test_workers_that_are_jobs_come_back_after_slurm_has_ended_them(cluster, run, cut, more):
    started = run(*ENDLESS, *LAUNCHERS["submitit"], *more, "collector.worker_timeout_s=60")
    jobs = {event["job"] for event in started.wait_for("worker_joined", 2)}
    cut(started)
    back = started.wait_for("worker_joined", 4)[2:]
    assert {event["worker"] for event in back} == {0, 1}
    assert not jobs & {event["job"] for event in back}
    assert {event["type"] for event in started.events("worker_failed")} == {"JobEnded"}
    started.wait_for_more()
    started.complete()


@pytest.mark.nightly
def test_a_job_ends_where_the_node_of_its_trainer_is_lost(run):
    rule = ["collector.on_worker_failure=drop", "launcher.requeue=false"]
    started = run(*SMALL, "env.step_s=0.01", *LAUNCHERS["slurm"], *rule)
    started.wait_for_more(2)
    started.cluster.crash("n1")
    assert started.finish() == 1, started.output
    assert "n1, the node of the trainer, is gone" in started.output
    assert started.states() == ["CANCELLED"]


@pytest.mark.parametrize(
    "words",
    [["--signal=USR1"], nightly(["--signal=USR2"]), nightly(["--batch", "--signal=USR1"])],
    ids=lambda words: "-".join(word.strip("-") for word in words),
)
def test_a_request_for_a_checkpoint_is_served_and_the_job_runs_on(cluster, run, words):
    started = run(*_SLOW, "launcher=slurm", "launcher.nodes=1")
    started.wait_for_more(1)
    cluster.login(["scancel", *words, *started.jobs])
    started.wait_for("checkpoint", 1)
    assert started.finish() == 0, started.output
    assert started.result["status"] == "completed"
    assert started.states() == ["COMPLETED"]


@pytest.mark.nightly
@pytest.mark.parametrize("words", [["--signal=HUP"], ["--batch", "--signal=HUP"]], ids=["job", "batch"])
def test_a_hangup_ends_a_job_with_a_checkpoint(cluster, run, words):
    started = run(*_SLOW, "launcher=slurm", "launcher.nodes=1")
    started.wait_for_more(1)
    cluster.login(["scancel", *words, *started.jobs])
    assert started.finish() == 130, started.output
    started.wait_for("checkpoint", 1)
    assert started.result["status"] == "interrupted"


@pytest.mark.nightly
def test_a_job_without_time_for_a_batch_does_not_come_back_for_ever(cluster, run):
    cluster.login(["scontrol", "update", "PartitionName=train", "DefaultTime=1"])
    try:
        started = run(*_SLOW, "launcher=slurm", "launcher.nodes=1")
        assert started.finish() == 1, started.output
    finally:
        cluster.login(["scontrol", "update", "PartitionName=train", "DefaultTime=10"])
    assert "its time limit is 60 s" in started.output
    assert started.states() == ["FAILED"]
