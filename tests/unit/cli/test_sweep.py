"""Sweeps: names, the table, failures, and a second start that runs what is missing only."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectx.cli import run

from .conftest import Stub

SWEEP = ["-m", "collector.num_workers=1,2", "hydra.sweep.dir=sweep", "seed=0,1"]


def points(stub: Stub) -> list[tuple[int, int]]:
    return [(cfg.collector.num_workers, cfg.seed) for cfg, _, _ in stub.calls]


def test_every_point_has_a_folder_named_by_what_varies(stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run.main([*SWEEP, "trainer.gamma=0.9"]) == 0
    assert points(stub) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [folder for _, folder, _ in stub.calls] == [
        tmp_path / "sweep" / f"collector.num_workers={workers},seed={seed}" for workers in (1, 2) for seed in (0, 1)
    ]
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert table[0].split() == ["point", "status", "frames", "frames/s", "return", "wall_s"]
    assert table[1].split() == ["collector.num_workers=1,seed=0", "completed", "512", "1,000", "-", "0.5"]
    assert table[-1] == "sweep folder: sweep"


def test_a_second_start_runs_only_what_is_missing(stub: Stub):
    stub.status = lambda cfg: "failed" if cfg.seed == 1 and cfg.collector.num_workers == 2 else "completed"
    assert run.main(SWEEP) == 1
    assert len(stub.calls) == 4
    stub.calls.clear()
    stub.status = lambda cfg: "completed"
    assert run.main([*SWEEP[:-1], "seed=0,1,2"]) == 0
    assert points(stub) == [(1, 2), (2, 1), (2, 2)]
    stub.calls.clear()
    assert run.main(SWEEP) == 0
    assert points(stub) == []


@pytest.mark.ci
def test_a_changed_configuration_is_another_point_in_another_folder(stub: Stub):
    assert run.main(SWEEP) == 0
    assert run.main([*SWEEP, "trainer.gamma=0.5"]) == 0
    assert len(stub.calls) == len({folder for _, folder, _ in stub.calls}) == 8
    assert stub.calls[-1][1].name == "collector.num_workers=2,seed=1_2"


def test_a_failed_point_stops_no_other_and_is_in_the_table(stub: Stub, capsys: pytest.CaptureFixture[str]):
    stub.status = lambda cfg: "failed" if cfg.seed == 0 else "completed"
    assert run.main(SWEEP) == 1
    out = capsys.readouterr().out
    assert (out.count("  failed"), out.count("  completed")) == (2, 2)


def test_an_interruption_ends_the_sweep_with_a_table(stub: Stub, capsys: pytest.CaptureFixture[str]):
    stub.status = lambda cfg: "interrupted" if cfg.seed == 1 else "completed"
    assert run.main(SWEEP) == 130
    assert points(stub) == [(1, 0), (1, 1)]
    assert capsys.readouterr().out.count("not run") == 2


def test_every_point_is_checked_before_the_first_starts(stub: Stub, capsys: pytest.CaptureFixture[str]):
    assert run.main(["-m", "collector.num_workers=1,3", "seed=0,1", "trainer.gama=1"]) == 2
    err = capsys.readouterr().err
    assert stub.calls == []
    assert err.count("trainer.gama") == 1
    assert err.rstrip().endswith("[collector.num_workers=3,seed=0; collector.num_workers=3,seed=1]")


def test_a_sweep_over_choices(stub: Stub, capsys: pytest.CaptureFixture[str]):
    assert run.main(["-m", "env=cartpole,pendulum", "hydra.sweep.dir=s"]) == 0
    assert [cfg.env.id for cfg, _, _ in stub.calls] == ["CartPole-v1", "Pendulum-v1"]
    assert run.main(["-m", "env=cartpole,pendulun", "hydra.sweep.dir=s"]) == 2
    assert "did you mean pendulum?" in capsys.readouterr().err


def test_m_without_a_sweep_is_one_point(stub: Stub):
    assert run.main(["-m", "hydra.sweep.dir=s"]) == 0
    assert [folder.name for _, folder, _ in stub.calls] == ["0"]
