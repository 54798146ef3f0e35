"""Sweeps: names, the table, failures, and a second start that runs what is missing only."""

from __future__ import annotations

from collectx.cli import run

SWEEP = ["-m", "hydra.sweep.dir=sweep"]


def seeds(stub) -> list[int]:
    return [cfg.seed for cfg, _, _ in stub.calls]


def test_every_point_has_a_folder_named_by_what_varies(stub, tmp_path, capsys):
    assert run.main([*SWEEP, "env=cartpole,pendulum", "trainer.gamma=0.9"]) == 0
    assert [(cfg.env.id, folder) for cfg, folder, _ in stub.calls] == [
        ("CartPole-v1", tmp_path / "sweep" / "env=cartpole"),
        ("Pendulum-v1", tmp_path / "sweep" / "env=pendulum"),
    ]
    table = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    assert table[0].split() == ["point", "status", "frames", "frames/s", "return", "wall_s"]
    assert table[1].split() == ["env=cartpole", "completed", "512", "1,000", "-", "0.5"]
    assert table[-1] == "sweep folder: sweep"


def test_a_second_start_runs_only_what_is_missing(stub, capsys):
    stub.status = lambda cfg: "failed" if cfg.seed == 0 else "completed"
    assert run.main([*SWEEP, "seed=0,1"]) == 1
    assert seeds(stub) == [0, 1]  # a failed point stops no other
    out = capsys.readouterr().out
    assert (out.count("  failed"), out.count("  completed")) == (1, 1)
    stub.calls.clear()
    stub.status = lambda cfg: "interrupted"
    assert run.main([*SWEEP, "seed=0,1,2"]) == 130
    assert seeds(stub) == [0]
    assert capsys.readouterr().out.count("not run") == 1


def test_a_changed_configuration_is_another_point_in_another_folder(stub):
    for gamma in ("0.9", "0.5"):
        assert run.main([*SWEEP, f"trainer.gamma={gamma}"]) == 0  # without a sweep, one point
    assert [folder.name for _, folder, _ in stub.calls] == ["0", "0_2"]


def test_every_point_is_checked_before_the_first_starts(stub, capsys):
    assert run.main([*SWEEP, "collector.num_workers=1,3", "trainer.gama=1"]) == 2
    err = capsys.readouterr().err
    assert stub.calls == []
    assert err.count("trainer.gama") == 1
    assert err.rstrip().endswith("[collector.num_workers=3]")
