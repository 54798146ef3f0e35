"""`hydra/sweeper=halving`, as typed: points that are stopped at a rung, and points that go on."""

import json
import re
import shlex
import signal

import pytest
import yaml
from commands import collectx, forked, result, start

from collectx.run import RunFolder

HALVING = ["-m", "hydra/sweeper=halving", "collector.total_frames=6_144", "sweep.rungs=[2_048,6_144]"]


def rows(said):
    """Returns the rows of the last table, as words, by their first one."""
    lines = said.stdout.split("\n\n")[-1].splitlines()
    return {words[0]: words[1:] for words in map(str.split, lines[1:]) if words[0] not in ("point", "sweep")}


def digests(folder):
    return [line.digest for line in RunFolder(folder).read_metrics()]


def test_the_best_goes_on_where_it_was_and_the_others_are_stopped(tmp_path):
    words = [*HALVING, "trainer.learning_rate=1e-4,1e-3,1e-2", "hydra.sweep.dir=sweep"]
    table = rows(collectx("run", *words, cwd=tmp_path))
    best, *stopped = table
    assert table[best][:4] == ["completed:", "1", "of", "1"]
    assert [" ".join(table[name][:7]) for name in stopped] == [f"stopped at rung 1: {i} of 3" for i in (2, 3)]
    values = [float(table[name][-1]) for name in table]
    assert values[1] > values[2]
    assert yaml.safe_load((tmp_path / "sweep" / "optimization_results.yaml").read_text()) == {
        "name": "halving",
        "best_params": {"trainer.learning_rate": float(best.partition("=")[2])},
        "best_value": result(tmp_path / "sweep" / best)["mean_return"],
    }
    frames = {name: result(tmp_path / "sweep" / name)["frames"] for name in table}
    assert frames == {best: 6144, **dict.fromkeys(stopped, 2048)}
    # Its batches are those of a run alone, the stopped ones' those of its beginning.
    alone = {
        name: forked("run", name, "collector.total_frames=6_144", f"hydra.run.dir={i}", cwd=tmp_path)
        for i, name in enumerate(table)
    }
    for number, name in enumerate(alone):
        ours = digests(tmp_path / "sweep" / name)
        assert ours == digests(tmp_path / str(number))[: len(ours)]
        assert len(ours) == frames[name] // 512
    # The report has the table.
    said = forked("report", "sweep", cwd=tmp_path).stdout
    assert "Rungs of sweep, in frames\n" in said
    lines = filter(None, map(str.split, said.splitlines()))
    assert {name: cells for name, *cells in lines if name in table} == table
    again = forked("run", *words, cwd=tmp_path)
    assert "sweep: nothing is left to do" in again.stdout
    assert rows(again) == table
    # A stopped point says so, and goes on alone.
    listed = forked("status", "sweep", cwd=tmp_path).stdout
    for rank, name in enumerate(stopped, 2):
        assert f"{name}: the sweep stopped it at rung 1 of 2, where it ranked {rank} of 3 by mean_return" in listed
        assert result(tmp_path / "sweep" / name)["rung"]["stopped"]
    assert listed.count(" stopped  ") == 2
    assert "max_batches" not in listed
    watched = forked("watch", "sweep", cwd=tmp_path)
    assert f"{stopped[0]} stopped (the sweep stopped it at rung 1 of 2" in watched.stdout
    forked("resume", f"sweep/{stopped[0]}", cwd=tmp_path)
    assert digests(tmp_path / "sweep" / stopped[0]) == digests(tmp_path / str([*table].index(stopped[0])))
    assert rows(forked("run", *words, cwd=tmp_path)) == table
    longer = forked("resume", f"sweep/{best}", "collector.total_frames=7_168", cwd=tmp_path)
    assert "7,168" in longer.stdout
    between = [*words[:2], "collector.total_frames=6_144", "sweep.rungs=[2_048,4_096,6_144]", *words[4:]]
    by_frames = [*words, "sweep.objective=frames_per_s"]
    longer = [*words, "trainer.gamma=0.9"]
    saved = (tmp_path / "sweep" / "halving.json").read_bytes()
    for changed, said in (
        (between, "its points were compared by ['mean_return'] at [2048, 6144]"),
        (by_frames, "sweep.objective=['frames_per_s'] cannot be used in sweep"),
        (longer, "sweep contains points with another configuration: "),
    ):
        assert said in forked("run", *changed, cwd=tmp_path, status=2).stderr
    assert (tmp_path / "sweep" / "halving.json").read_bytes() == saved


@pytest.mark.ci
def test_points_are_drawn_from_intervals_and_ranked_by_several_objectives(tmp_path):
    drawn = ["trainer.learning_rate=tag(log,interval(1e-4,1e-2))", "trainer.num_epochs=int(interval(1,4))"]
    drawn += ["sweep.draws=3", "seed=1"]
    said = collectx(
        *("run", *HALVING, *drawn, "sweep.objective=[mean_return,wall_s]", "trainer.gamma=0.9,0.99"),
        *("hydra.sweep.dir=sweep", "sweep.reduction=1.5"),
        cwd=tmp_path,
    )
    saved = json.loads((tmp_path / "sweep" / "halving.json").read_text())
    assert saved["objective"] == ["mean_return", "wall_s"]
    assert sorted(len(point["values"]) for point in saved["points"]) == [1, 2, 2]
    assert len(rows(said)) == 3
    best = yaml.safe_load((tmp_path / "sweep" / "optimization_results.yaml").read_text())
    for each in best["solutions"]:
        assert each["params"].keys() == {"trainer.learning_rate", "trainer.num_epochs", "trainer.gamma"}
        assert each["values"] in [point["values"].get("6144") for point in saved["points"]]
    again = collectx("run", *HALVING, *drawn, "trainer.gamma=0.9,0.99", "sweep.seed=1", "--cfg=job", cwd=tmp_path)
    assert "learning_rate" in again.stdout


@pytest.mark.ci
def test_a_sweep_that_was_interrupted_goes_on_at_its_rung(tmp_path, wait_until):
    words = [*HALVING, "trainer.gamma=0.9,0.99", "seed=0,1", "hydra.sweep.dir=sweep"]
    command = start("run", *words, cwd=tmp_path)
    said = tmp_path / "said.txt"
    wait_until(lambda: command.poll() is not None or "[1/4] " in said.read_text(), 200, "it")
    command.send_signal(signal.SIGINT)
    assert command.wait(100) == 130
    assert "collectx resume" not in said.read_text()
    # The second seed of the first candidate may have begun.
    (table,) = re.findall(r"\npoint .*\n(?:.*\n){2}", said.read_text())
    assert re.search(r" (waiting|interrupted) +2\n.* not started +2\n", table)
    (line,) = re.findall("to go on with the sweep and its stopped point: collectx (.+)", said.read_text())
    again = collectx(*shlex.split(line), cwd=tmp_path)
    assert "sweep: rung 1 of 2: 2 points (4 runs) to 2,048 frames, 1 already done" in again.stdout
    # The seeds of a configuration go on together.
    best, stopped = rows(again)
    assert yaml.safe_load((tmp_path / "sweep" / "optimization_results.yaml").read_text())["best_params"] == {
        "trainer.gamma": float(best.partition("=")[2])
    }
    for name, frames in ((best, 6144), (stopped, 2048)):
        assert [result(tmp_path / "sweep" / f"{name},seed={i}")["frames"] for i in (0, 1)] == [frames, frames]


@pytest.mark.ci
def test_a_point_that_fails_is_last_and_named(tmp_path):
    words = ["trainer.learning_rate=1e-3,1e30", "hydra.sweep.dir=sweep"]
    said = collectx("run", *HALVING, *words, cwd=tmp_path, status=1)
    assert list(rows(said).items())[-1] == ("trainer.learning_rate=1e+30", ["failed"])
    assert "trainer.learning_rate=1e+30: failed: " in said.stderr
    assert result(tmp_path / "sweep" / "trainer.learning_rate=0.001")["frames"] == 6144


@pytest.mark.ci
def test_evaluations_rank(tmp_path):
    words = [
        "trainer.gamma=0.9,0.95,0.99",
        "eval.every_batches=2",
        "eval.episodes=2",
        "sweep.objective=eval/mean_return",
    ]
    said = collectx("run", *HALVING, *words, "hydra.sweep.dir=sweep", cwd=tmp_path)
    best, *stopped = rows(said)
    ended = {name: result(tmp_path / "sweep" / name) for name in (best, *stopped)}
    saved = json.loads((tmp_path / "sweep" / "halving.json").read_text())
    values = {point["name"]: point["values"] for point in saved["points"]}
    assert values[best]["2048"] >= max(values[name]["2048"] for name in stopped)
    assert values[best]["6144"] == [ended[best]["eval/mean_return"]]
    assert all(values[name]["2048"] == [ended[name]["eval/mean_return"]] for name in stopped)
    # A point that went on alone keeps its evaluation when the sweep, which keeps more points now, comes to it.
    forked("resume", f"sweep/{stopped[0]}", cwd=tmp_path)
    again = rows(forked("run", *HALVING, *words, "sweep.reduction=1.4", "hydra.sweep.dir=sweep", cwd=tmp_path))
    assert [cells[0] for cells in again.values()] == ["completed:"] * 3


@pytest.mark.nightly
def test_points_run_at_the_same_time_with_hydras_launchers(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "trainer.gamma=0.9,0.95,0.99", "hydra.sweep.dir=sweep"]
    said = collectx("run", *HALVING, *words, cwd=tmp_path)
    assert len(rows(said)) == 3
    frames = sorted(result(folder)["frames"] for folder in (tmp_path / "sweep").glob("trainer.gamma=*"))
    assert frames == [2048, 2048, 6144]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trainer.gamma=interval(0.9,0.99)", "sweep.rungs=[64]"], "is an interval. Say how many points to draw"),
        (["seed=0,1"], "sweep.rungs is missing. Name the numbers of frames"),
        (["seed=0,1", "sweep.rungs=[500,200]"], "sweep.rungs=[500, 200] must be positive and ascending"),
        (["seed=0,1", "sweep.rungs=[500_000]"], "sweep.rungs ends at 500,000 frames, but collector.total_frames="),
        (["seed=0,1", "sweep.rungs=[64]", "run.max_batches=3"], "run.max_batches cannot be used with"),
        (["seed=0,1", "sweep.rungs=[64]", "run.max_minutes=3"], "run.max_minutes cannot be used with"),
        (["seed=0,1", "sweep.rungs=[64]", "run.overwrite=true"], "run.overwrite=true cannot be used with"),
        (["seed=0,1", "sweep.rungs=[64]", "run.resume=never"], "run.resume=never cannot be used with"),
        (["seed=0,1", "sweep.rungs=64,128"], "To pass a list, write 'sweep.rungs=[64,128]'"),
        (["seed=0,1", "sweep.rungs=[64]", "sweep.reduction=1"], "sweep.reduction=1"),
        (["seed=0,1", "sweep.rungs=[64]", "sweep.draws=0"], "sweep.draws=0"),
        (["seed=0,1", "sweep.rungs=[64,65,9_000]"], "has rungs within one batch of"),
    ],
)
def test_what_cannot_be_swept_so_is_refused_before_anything_starts(tmp_path, words, said):
    refused = forked("run", "-m", "hydra/sweeper=halving", *words, cwd=tmp_path, status=2)
    assert said in refused.stderr
    assert not [*tmp_path.iterdir()]


_SEARCH = """\
# @package _global_
defaults:
  - override /hydra/sweeper: halving
hydra: {mode: MULTIRUN, sweeper: {params: {trainer.gamma: '0.9,GAMMA', seed: '0,1'}}}
sweep: {draws: 4, rungs: [1_024, 2_048]}
collector: {total_frames: 4_096}
"""


@pytest.mark.ci
def test_a_file_chooses_the_sweeper_and_is_checked_before_anything_starts(tmp_path):
    path = tmp_path / "conf" / "experiment" / "search.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(_SEARCH.replace("GAMMA", "1.99"))
    words = ["--config-dir", "conf", "experiment=search", "hydra.sweep.dir=sweep"]
    assert "trainer.gamma=1.99 must be from 0 to 1." in forked("run", *words, cwd=tmp_path, status=2).stderr
    assert not (tmp_path / "sweep").exists()
    path.write_text(_SEARCH.replace("GAMMA", "0.99"))
    planned = forked("plan", *words, cwd=tmp_path)
    assert "sweep.draws=4 gives only 2 points: the values allow no others." in planned.stderr
    assert "sweep.rungs ends at 2,048 frames, so no point reaches collector.total_frames=4096." in planned.stderr
    assert "runs               4" in planned.stdout
    ignored = forked("plan", *words, "hydra/sweeper=basic", cwd=tmp_path).stderr
    assert "sweep.rungs has no effect without hydra/sweeper=halving." in ignored
