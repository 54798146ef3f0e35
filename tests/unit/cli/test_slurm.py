"""`collectx run` with SLURM launchers: scripts, a second start, refusals. Real jobs: tests/slurm."""

from pathlib import Path

import pytest
from composed_overrides import composed
from stand_in_slurm import missing

from collectx import DistributedCollector
from collectx.checkpoints import Checkpoints
from collectx.cli import run, status
from collectx.errors import ConfigError, LauncherError
from collectx.jobs.worker_jobs import JobSpec
from collectx.place import place_of
from collectx.place.slurm import commands
from collectx.run import RunFolder

HYDRAS = "hydra/launcher=submitit_slurm"


def test_a_run_is_one_job_with_what_the_launcher_asks_for(queue, capsys):
    asked = "partition=p account=a qos=q time=30 mem=4G cpus_per_task=2 gpus=1 constraint=ib nodes=2 exclusive=true"
    more = ["container=/image", "setup=['export LEVER=up']", "sbatch={job-name: mine}"]
    others = ["hydra.run.dir=run", "collector.num_workers=3", "collector.frames_per_batch=384", "trainer.gamma=0.5"]
    assert run.main(["launcher=slurm", *others, *(f"launcher.{word}" for word in [*asked.split(), *more])]) == 0
    (script,) = queue.scripts
    options = "partition=p account=a qos=q time=30 mem=4G cpus-per-task=2 gres=gpu:1 constraint=ib nodes=2 exclusive"
    assert missing(script, *options.split(), "job-name=mine", "requeue", "ntasks=4") == []
    assert "--array" not in script
    for text in ("\nexport LEVER=up\n", "--container=/image", "SRUN_CPUS_PER_TASK"):
        assert text in script
    out = capsys.readouterr().out
    assert "run: job 100, 4 tasks" in out
    assert "completed" in out
    # The job runs what was composed when it was submitted.
    cfg = JobSpec.read(RunFolder("run")).cfg
    assert (cfg.trainer.gamma, cfg.collector.num_workers) == (0.5, 3)
    # What has ended there is not replaced by a job.
    assert run.main(["launcher=slurm", "hydra.run.dir=run", "launcher.wait=false"]) == 2
    assert "run.overwrite=true" in capsys.readouterr().err
    assert (RunFolder("run").read_result()["status"], len(queue.scripts)) == ("completed", 1)


@pytest.mark.ci
def test_a_job_continues_a_run_that_has_a_checkpoint(queue):
    command = ["launcher=slurm", "hydra.run.dir=run"]
    assert run.main(command) == 0
    files = RunFolder("run")
    files.result.unlink()  # the job was lost
    Checkpoints(files.checkpoints).write(1, {"frames": 512}, {"state.pt": {}})
    assert run.main([*command, "resume=auto"]) == 0
    assert [path.name for path in files.checkpoints.iterdir()] == ["000000001"]
    assert JobSpec.read(files).cfg.run.resume == "auto"
    assert len(queue.scripts) == 2
    assert run.main([*command, "run.overwrite=true"]) == 0
    assert not list(files.checkpoints.iterdir())


def test_the_points_of_a_sweep_whose_folder_is_not_chosen_have_one_folder(queue, capsys):
    assert run.main(["launcher=slurm", "-m", "seed=0,4"]) == 0
    folder = capsys.readouterr().out.rpartition("sweep folder: ")[-1].strip()
    assert [f"  {Path.cwd() / folder}/seed={seed}\n" in queue.scripts[0] for seed in (0, 4)] == [True, True]
    assert status.main([folder]) == 0
    assert capsys.readouterr().out.count("  completed") == 2


@pytest.mark.ci
def test_a_repeated_sweep_continues_points_from_their_checkpoints(queue, capsys):
    words = ["launcher=slurm", "launcher.wait=false", "hydra.sweep.dir=sweep", "-m", "seed=1,2"]
    assert run.main(words) == 0
    queue.states["100_1"] = "CANCELLED"
    first, second = RunFolder("sweep/seed=1"), RunFolder("sweep/seed=2")
    (first.checkpoints / "000000001").mkdir()
    queue.write_result(second.path, "interrupted")
    capsys.readouterr()
    assert run.main(words) == 0
    assert [path.name for path in first.checkpoints.iterdir()] == ["000000001"]
    assert [JobSpec.read(files).cfg.run.resume for files in (first, second)] == ["auto", "auto"]
    err = capsys.readouterr().err
    assert f"{second.path} contains no checkpoint, so the run starts over" in err
    assert str(first.path) not in err
    queue.states["101_1"] = "CANCELLED"
    assert run.main([*words, "run.overwrite=true"]) == 0
    assert not list(first.checkpoints.iterdir())


def test_a_queued_job_is_not_replaced_and_that_is_told(queue, capsys):
    queue.is_held = True
    words = ["launcher=slurm", "launcher.wait=false", "hydra.run.dir=run"]
    assert run.main(words) == run.main([*words, "run.overwrite=true"]) == 0
    assert queue.states == {"100": "PENDING"}
    folder = Path("run").absolute()
    told = "run.overwrite=true does not replace job 100, which has not ended. To replace it, "
    assert f"{told}cancel it (collectx cancel {folder}), then repeat this command" in capsys.readouterr().err


@pytest.mark.parametrize("launcher", ["slurm", "submitit", "submitit_delayed"])
def test_a_launcher_that_needs_slurm_is_refused_where_there_is_none(launcher, within):
    within(commands, "shutil", which=lambda name: None)
    (problem,) = place_of(composed(f"launcher={launcher}")).missing()
    assert problem.startswith(f"launcher={launcher} cannot be used: this machine has no sbatch on its PATH")


@pytest.mark.sample(1)
@pytest.mark.parametrize("launcher", ["slurm", "submitit_delayed"])
def test_a_refused_run_leaves_its_folder_as_it_was(queue, capsys, launcher):
    words = [f"launcher={launcher}", "hydra.run.dir=run", "launcher.wait=false"]
    queue.refusal = "Invalid partition name specified"
    assert run.main(words) == 2
    assert queue.refusal in capsys.readouterr().err
    assert not list(Path().iterdir())
    queue.refusal = ""
    assert run.main(words) == 0
    RunFolder("run").final_checkpoint.write_text("weights")
    (RunFolder("run").checkpoints / "000000001").mkdir()
    before = files_of("run")
    queue.refusal = "QOSMaxSubmitJobPerUserLimit"
    for more in ([], ["run.overwrite=true", "seed=4"], ["resume=auto", "run.max_batches=1"]):
        assert run.main([*words, *more]) == 2
        assert files_of("run") == before
    assert status.main(["run"]) == 0
    assert "  completed" in capsys.readouterr().out


@pytest.mark.ci
def test_refused_points_of_a_sweep_leave_their_folders_as_they_were(queue):
    words = ["launcher=slurm", "hydra.sweep.dir=sweep", "launcher.wait=false", "-m", "seed=0,1"]
    queue.refusal = "Invalid partition name specified"
    assert run.main(words) == 2
    assert not Path("sweep").exists()
    queue.refusal = ""
    assert run.main(words) == 0
    before = files_of("sweep")
    queue.refusal = "Invalid partition name specified"
    assert run.main(words) == 2
    assert files_of("sweep") == before


@pytest.mark.parametrize(("reason", "state"), [("PartitionConfig", "PENDING"), ("JobHeldUser", "CANCELLED")])
def test_a_job_that_is_not_released_is_cancelled_but_not_one_that_cannot_start_yet(queue, capsys, reason, state):
    def refuse(command):
        if command[1] == "release":
            raise LauncherError("Requested partition configuration not available now")
        return ""

    queue.scontrol = refuse
    queue.squeue = lambda command: f"100|{queue.states['100']}|{reason}|\n"
    assert run.main(["launcher=slurm", "hydra.run.dir=run", "launcher.wait=false"]) == (0 if state == "PENDING" else 2)
    assert queue.states == {"100": state}
    assert ("not available now" in capsys.readouterr().err) == (state == "CANCELLED")


def files_of(folder: str) -> dict[Path, bytes]:
    """The files of a run or a sweep by their paths, without the lock, and without what Hydra writes before SLURM is
    asked."""
    paths = [path for path in Path(folder).rglob("*") if not {".hydra", "lock", "multirun.yaml"} & {*path.parts}]
    return {path: path.read_bytes() if path.is_file() else b"" for path in paths}


def test_a_collector_without_the_jobs_of_its_launcher_says_how_to_get_them():
    with pytest.raises(ConfigError, match="submitit_delayed_launcher"):
        DistributedCollector([dict], frames_per_batch=20, launcher="submitit_delayed")
