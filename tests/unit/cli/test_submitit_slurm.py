"""Hydra's own way to run as SLURM jobs means `launcher=slurm` here."""

from __future__ import annotations

import pytest
from fakecluster import ROLE, FakeSlurm

from collectx.cli import run
from collectx.cli.submitit_slurm import translated

CHOICE = "hydra/launcher=submitit_slurm"
COMMON = [f"launcher.python={ROLE}", "hydra.sweep.dir=sweep", "-m", "seed=0,4"]


def test_a_sweep_as_other_programs_are_told(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]):
    asked = ["partition=p", "timeout_min=30", "mem_gb=4", "cpus_per_task=2", "gpus_per_node=1", "array_parallelism=1"]
    more = ["name=mine", "setup=['module load cuda']", "additional_parameters={constraint: ib}"]
    assert run.main([*COMMON, CHOICE, *(f"hydra.launcher.{word}" for word in [*asked, *more])]) == 0
    (script,) = slurm.scripts()
    wanted = ["partition=p", "time=30", "mem=4G", "cpus-per-task=2", "gres=gpu:1", "array=0-1%1", "job-name=mine"]
    assert [each for each in [*wanted, "constraint=ib"] if f"#SBATCH --{each}\n" not in script] == []
    assert "module load cuda" in script
    assert "as launcher=slurm launcher.partition=p launcher.time=30" in "".join(capsys.readouterr())
    assert set(slurm.wait("COMPLETED").values()) == {"COMPLETED"}


@pytest.mark.parametrize(
    ("words", "sentences"),
    [
        (
            [CHOICE, "hydra.launcher.tasks_per_node=4", "hydra.launcher.partitoin=p"],
            ["collector.num_workers workers", "did you mean hydra.launcher.partition?"],
        ),
        (["hydra/launcher=submitit_local"], ["`collectx list launcher`"]),
        ([CHOICE, "launcher=submitit"], ["launcher=submitit and hydra/launcher=submitit_slurm both say"]),
    ],
)
def test_what_cannot_be_is_refused_all_at_once(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], words: list[str], sentences: list[str]
):
    assert run.main([*COMMON, *words]) == 2
    said = capsys.readouterr().err
    assert [each for each in sentences if each not in said] == []
    assert slurm.states() == {}


def test_other_words_are_left_alone():
    words = ["launcher=slurm", "seed=1,2", "hydra/launcher=points"]
    assert translated(words) == (words, [])
