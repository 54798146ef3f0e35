"""A run that is interrupted and continued, in this process: as `collectx resume` does it, and as a job that SLURM
requeues. Over processes: tests/contract/test_resume_contract.py, tests/system/test_resume.py, tests/slurm."""

import signal
from dataclasses import replace

import pytest
import torch
from composed_overrides import composed
from omegaconf import OmegaConf

from collectx.cli import resume, run
from collectx.jobs import entry
from collectx.jobs.worker_jobs import JobSpec
from collectx.run import RunFolder, execute

_LINE = (
    "env=cartpole env.num_envs=2 policy=mlp policy.hidden_sizes=[8] trainer=custom trainer.digest=true "
    "trainer.target=user_code.drawing:DrawingTrainer collector.frames_per_batch=32 collector.total_frames=192"
)
_INLINE, _JOB = f"{_LINE} launcher=inline", f"{_LINE} collector=single launcher=slurm launcher.requeue=false"
_STOPPED = "trainer.kwargs.stop_at=3"


def check_equal(*folders):
    """Asserts that two completed runs have equal digests, logged values and last states."""
    files = [RunFolder(folder) for folder in folders]
    one, other = ([(each.batch, each.digest, each.scalars) for each in it.read_metrics()] for it in files)
    assert one == other
    assert len(one) > 3
    one, other = (it.read_result()["digest"] for it in files)
    assert one == other
    torch.testing.assert_close(*(torch.load(it.final_checkpoint) for it in files), rtol=0, atol=0)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """`job(restarts)` runs the only task of a job of SLURM that it has started again so often; returns its status."""
    files = RunFolder(tmp_path / "run")
    cfg = composed(_JOB)
    JobSpec(replace(cfg, trainer=replace(cfg.trainer, kwargs={"stop_at": 3})), ("collectx", "run")).write(files)
    (files.jobs / "log_begin").write_text("0")

    def start(restarts):
        environment = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_RESTART_COUNT": str(restarts)}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return entry.main([str(files.path)])

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
    yield start
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("line", "batches"), [("", 3), ("collector.trajs_per_batch=2 collector.traj_format=cat", 4)], ids=["", "cat"]
)
def test_an_interrupted_run_is_resumed_as_if_it_had_not_been(tmp_path, line, batches):
    folder = tmp_path / "run"
    assert run.main([*_INLINE.split(), *line.split(), _STOPPED, f"hydra.run.dir={folder}"]) == 130
    assert resume.main([str(folder), "checkpoint.keep=3"]) == 0
    files = RunFolder(folder)
    assert files.read_meta()["argv"] == ["collectx", "resume", str(folder), "checkpoint.keep=3"]
    assert "numerics" in files.read_meta()
    assert files.read_meta(files.meta)["argv"][1] == "run"
    kept = [OmegaConf.load(path).checkpoint.keep for _, path in files.configs]
    assert (kept, files.configs[-1][0]) == ([2, 3], batches)
    execute(composed(f"{_INLINE} {line}"), tmp_path / "uncut", [])
    check_equal(folder, tmp_path / "uncut")


@pytest.mark.ci
def test_batches_that_are_full_at_the_end_of_an_async_run_are_delivered_when_it_is_resumed(tmp_path):
    line = "env=counting policy=random trainer=meter collector=multi_async collector.num_workers=2 launcher=inline"
    for batches in (3, 6):
        assert execute(composed(f"{line} run.resume=auto run.max_batches={batches}"), tmp_path, []).batches == batches
    files = RunFolder(tmp_path)
    (resumed,) = (event for event in files.read_events() if event["event"] == "resumed")
    assert resumed["new_episodes"] == {}
    state = torch.load(files.checkpoints / "000000006" / "state.pt", weights_only=True)["collector"]
    assert (len(state["undelivered"]), [*state["workers"]]) == (4, [0, 1])


@pytest.mark.ci
def test_a_requeued_job_resumes_its_run(tmp_path, job):
    assert job(restarts=0) == 130
    assert RunFolder(tmp_path / "run").read_result()["batches"] == 3
    assert job(restarts=1) == 0
    execute(composed(_JOB.replace("slurm launcher.requeue=false", "inline")), tmp_path / "uncut", [])
    check_equal(tmp_path / "run", tmp_path / "uncut")
