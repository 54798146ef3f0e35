"""`launcher=submitit_delayed`: one script of two parts, each with resources of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from collectx.cli.compose import compose
from collectx.config import PartResources, as_dict, from_dict
from collectx.errors import ConfigError
from collectx.launcher import submitit_delayed

COMMON = ["launcher=submitit_delayed", "collector=multi_async", "collector.num_workers=3", "env=counting"]


def script(*overrides, survives_nodes=False):
    cfg = compose([*COMMON, *overrides])
    return submitit_delayed.script(Path("/runs/a b"), cfg.launcher, cfg.collector.num_workers, survives_nodes, 15.0)


def parts(text):
    """The options of both parts."""
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    middle = lines.index("hetjob")
    return set(lines[:middle]), set(lines[middle + 1 :])


def call(text):
    """What srun is told about each part."""
    roles = text.rpartition("\nsrun ")[2].partition("\nroles=")[0]
    return roles.split('"$run" : ')


def test_each_part_asks_for_its_own_and_for_what_is_common():
    text = script(
        "launcher.partition=cpu",
        "launcher.time=60",
        "launcher.mem=2G",
        "launcher.sbatch.mail-type=FAIL",
        "launcher.trainer.partition=gpu",
        "launcher.trainer.gpus=1",
        "launcher.trainer.cpus_per_task=8",
        "launcher.trainer.sbatch.nodelist=g1",
        "launcher.worker.mem=1G",
        "launcher.worker.cpus_per_task=2",
        "launcher.nodes=2",
    )
    trainer, worker = parts(text)
    assert trainer >= {"--partition=gpu", "--gres=gpu:1", "--cpus-per-task=8", "--mem=2G", "--ntasks=1", "--nodes=1"}
    assert worker >= {"--partition=cpu", "--cpus-per-task=2", "--mem=1G", "--ntasks=3", "--nodes=2"}
    assert not any("gpu" in each for each in worker)
    assert "--nodelist=g1" in trainer - worker
    assert {"--time=60", "--mail-type=FAIL", "--no-requeue"} <= trainer & worker
    first, second = call(text)
    assert "--cpus-per-task=8 --het-group=0" in first
    assert "--cpus-per-task=2 --het-group=1" in second
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


def test_lost_nodes_end_the_job_unless_workers_are_replaced():
    assert "--no-kill" not in script()
    text = script(survives_nodes=True)
    assert all("--no-kill" in part for part in (*parts(text), *call(text)))


def test_the_parts_travel_as_plain_data():
    cfg = compose([*COMMON, "launcher.trainer.gpus=2", "launcher.worker.sbatch.comment=hello"])
    again = from_dict(as_dict(cfg))
    assert again == cfg
    assert isinstance(again.launcher.trainer, PartResources)
    assert (again.launcher.trainer.gpus, again.launcher.worker.gpus) == (2, None)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("launcher.trainer.gpu=1", "launcher.trainer.gpu: no such key; did you mean launcher.trainer.gpus?"),
        ("launcher.trainer.gpus=-1", "launcher.trainer.gpus=-1: must be at least 0"),
        ("launcher.worker.cpus_per_task=two", "launcher.worker.cpus_per_task=two: must be an integer"),
        ("launcher.worker=4", "launcher.worker=4: must be a mapping"),
        ("launcher.trainer.sbatch.ntasks=3", "launcher.trainer.sbatch.ntasks: collectx sets it itself"),
        ("launcher.max_parallel=2", "launcher.max_parallel=2: jobs of two parts cannot be a job array"),
        ("launcher.nodes=4", "launcher.nodes=4 is more than the 3 workers"),
    ],
)
def test_wrong_parts_are_said(override, sentence):
    with pytest.raises(ConfigError) as caught:
        compose([*COMMON, override])
    (problem,) = caught.value.problems
    assert problem.startswith(sentence)


def test_a_user_file_may_leave_parts_out(tmp_path):
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "mine.yaml").write_text("kind: submitit_delayed\ntrainer: {gpus: 1}\n")
    launcher = compose(["launcher=mine", *COMMON[1:]], tmp_path).launcher
    assert (launcher.trainer.gpus, launcher.trainer.partition, launcher.trainer.sbatch) == (1, None, {})
    assert launcher.worker == PartResources(*[None] * 7)
