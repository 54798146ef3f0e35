"""The batch scripts of `launcher=submitit` and `launcher=submitit_delayed`, and submitit's parameters."""

from dataclasses import asdict
from pathlib import Path

import pytest
from composed_overrides import composed

from collectx.config.registry import from_dict
from collectx.errors import ConfigError
from collectx.place.slurm.script import script
from collectx.place.slurm.submitit import slurm_resources


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
        ({"tasks_per_node": 4, "slurm_teardown": ["ls"]}, "ntasks_per_node=4: a worker is one task on one node"),
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
