"""The batch scripts of `launcher=submitit` and `launcher=submitit_delayed`, and submitit's parameters."""

from dataclasses import asdict
from pathlib import Path

import pytest
from composed_overrides import composed

from collectx.config.registry import from_dict
from collectx.errors import ConfigError, LauncherError
from collectx.library.slurm import slurm_resources
from collectx.place.slurm import JobFiles, commands
from collectx.place.slurm.job_watcher import JobArray, array_options
from collectx.place.slurm.log_watcher import role_shell
from collectx.place.slurm.script import script


def options_of(text):
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


@pytest.fixture
def srun(tmp_path, monkeypatch):
    """submitit looks for it."""
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_submitits_parameters_are_translated(srun):
    asked = {"timeout_min": 10, "mem_gb": 1.5, "cpus_per_task": 2, "slurm_gpus_per_node": 1, "nodes": 1}
    asked |= {"slurm_partition": "p", "account": "mine", "slurm_qos": None, "slurm_exclusive": "user", "name": "mine"}
    asked |= {"slurm_setup": ["module load cuda"], "slurm_srun_args": ["--mpi=none", "--exact"]}
    asked |= {"slurm_mail_type": "FAIL", "slurm_additional_parameters": {"reservation": "r"}}
    found = slurm_resources(asked, 3)
    assert (found.time, found.mem, found.cpus_per_task, found.gpus) == ("10", "1536MB", 2, 1)
    assert (found.partition, found.account, found.qos, found.exclusive) == ("p", "mine", None, False)
    assert found.sbatch == {"mail-type": "FAIL", "job-name": "mine", "exclusive": "user", "reservation": "r"}
    assert found.srun == {"mpi": "none", "exact": True}
    assert (found.setup, found.num_threads) == (["module load cuda"], 3)
    assert slurm_resources({}, 1).time is None


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"slurm_partitoin": "p"}, "Unknown argument 'partitoin' for executor 'slurm'"),
        ({"timeout_min": "ten"}, '"timeout_min" expected type'),
        (
            {"tasks_per_node": 4, "slurm_teardown": ["ls"]},
            "slurm_kwargs['tasks_per_node']=4 cannot be used: each worker is one task on one node",
        ),
    ],
)
def test_wrong_parameters_of_submitit_are_refused(srun, parameters, problem):
    with pytest.raises(ConfigError) as caught:
        slurm_resources(parameters, 1)
    assert any(problem in each for each in caught.value.problems)


DELAYED = "launcher=submitit_delayed collector=multi_async collector.num_workers=3 env=counting"


def test_each_part_of_a_job_has_its_own_options_and_the_common_ones():
    common = "partition=cpu time=60 mem=2G sbatch.mail-type=FAIL nodes=2 worker.mem=1G worker.cpus_per_task=2"
    own = "partition=gpu gpus=1 cpus_per_task=8 sbatch.nodelist=g1"
    asked = [f"launcher.{word}" for word in common.split()] + [f"launcher.trainer.{word}" for word in own.split()]
    cfg = composed(" ".join([DELAYED, *asked]))
    assert from_dict(asdict(cfg)) == cfg
    text = script([Path("/runs/a b")], cfg.launcher, 4, False, 15.0)
    trainer, worker = (set(options_of(part)) for part in text.split("#SBATCH hetjob"))
    assert trainer >= {"--partition=gpu", "--gres=gpu:1", "--cpus-per-task=8", "--mem=2G", "--ntasks=1", "--nodes=1"}
    assert worker >= {"--partition=cpu", "--cpus-per-task=2", "--mem=1G", "--ntasks=3", "--nodes=2"}
    assert not any("gpu" in each for each in worker)
    assert "--nodelist=g1" in trainer - worker
    assert {"--time=60", "--mail-type=FAIL", "--no-requeue"} <= trainer & worker
    assert "--cpus-per-task=8 --het-group=0" in text
    assert "--cpus-per-task=2 --het-group=1" in text
    # Lost nodes end the job unless workers are replaced.
    assert "--no-kill" not in text
    surviving = script([Path("/runs/a b")], cfg.launcher, 4, True, 15.0)
    assert surviving.count("--no-kill") == 4  # of both parts and their calls of srun


# Of the trainer and three workers; what each launcher has beyond the others.
SCRIPTS = {
    "one run": "slurm",
    "an array": "slurm max_parallel=2 nodes=2 requeue=true max_requeues=3 signal_s=60",
    "resources": "slurm partition=gpu account=me qos=high time=60 mem=2G constraint=a cpus_per_task=2 gpus=1 "
    "exclusive=true container=/images/c.sif sbatch.mail-type=FAIL sbatch.dependency=singleton srun.mpi=pmix",
    "parts": "submitit_delayed nodes=2 worker.mem=1G worker.cpus_per_task=2 trainer.gpus=1 trainer.cpus_per_task=8",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_batch_scripts(expected, name):
    kind, *words = SCRIPTS[name].split()
    asked = " ".join(f"launcher.{word}" for word in words)
    cfg = composed(f"{DELAYED.replace('submitit_delayed', kind)} {asked} launcher.python=python")
    if name == "resources":
        cfg.launcher.setup = ["module load cuda", "source 'my env/bin/activate'"]
    runs = [Path("/runs/a b"), Path("/runs/c")] if name == "an array" else [Path("/runs/a b")]
    after = {"17", "18_1"} if name in ("an array", "resources") else ()
    text = script(runs, cfg.launcher, 4, name == "an array", 15.0, after)
    expected(name.replace(" ", "-"), text.replace(role_shell("python"), "ROLE"))


def test_the_script_of_worker_jobs(expected, tmp_path):
    cfg = composed("launcher=submitit collector=multi_async launcher.mem=1G launcher.gpus=2 launcher.srun.mpi=none")
    files = JobFiles(tmp_path / "a b")
    files.jobs.mkdir(parents=True)
    files.worker_jobs.write_text("of an earlier run")
    JobArray(cfg.launcher, files, ["python", "-m", "entry", "/runs/a b"])
    expected("worker", files.worker_script.read_text().replace(str(tmp_path), "/runs"))
    assert not files.worker_jobs.exists()


@pytest.mark.parametrize(
    ("workers", "largest", "expected"),
    [
        ([0], 1, [(0, "0")]),
        ([2, 0, 1], 3, [(0, "0,1,2")]),
        ([0, 1, 2], 2, [(0, "0,1"), (2, "0")]),
        ([5, 3], 2, [(2, "1"), (4, "1")]),
        ([3, 4], 4, [(0, "3"), (4, "0")]),
    ],
)
def test_arrays_of_workers(monkeypatch, tmp_path, workers, largest, expected):
    """Each array begins with index 0, below the largest that SLURM allows."""
    assert [*array_options(workers, largest)] == [(first, f"--array={indices}") for first, indices in expected]
    monkeypatch.setattr(commands, "largest_array", lambda: largest)
    jobs, calls = iter(["70", "71"]), []

    def submit(script, option, arguments):
        calls.append((int(arguments[0]), option))
        return next(jobs)

    monkeypatch.setattr(commands, "submit", submit)
    files = JobFiles(tmp_path)
    array = JobArray(composed("launcher=submitit").launcher, files, ["python"])
    firsts = {first: number for number, (first, _) in enumerate(expected)}
    found = {worker: f"{70 + firsts[worker // largest * largest]}_{worker % largest}" for worker in workers}
    assert array.submit(workers) == found
    assert calls == [(first, f"--array={indices}") for first, indices in expected]
    assert sorted(files.worker_jobs.read_text().split("\n")[:-1]) == sorted(f"{job} {w}" for w, job in found.items())


@pytest.mark.parametrize(
    ("num_accepted", "words"), [(0, "^no more jobs$"), (1, "only 2 of 3 workers could be .*: no more")]
)
def test_all_workers_are_submitted_or_none(monkeypatch, tmp_path, num_accepted, words):
    accepted, cancelled = ["70"][:num_accepted], []

    def submit(script, option, arguments):
        if not accepted:
            raise LauncherError("no more jobs")
        return accepted.pop()

    monkeypatch.setattr(commands, "largest_array", lambda: 2)
    monkeypatch.setattr(commands, "submit", submit)
    monkeypatch.setattr(commands, "cancel", cancelled.extend)
    files = JobFiles(tmp_path)
    array = JobArray(composed("launcher=submitit").launcher, files, ["python"])
    with pytest.raises(LauncherError, match=words):
        array.submit([0, 1, 2])
    assert cancelled == ["70_0", "70_1"][: 2 * num_accepted]
    assert not files.worker_jobs.exists()
