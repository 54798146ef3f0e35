"""`hydra/sweeper=halving`, as typed: points that are stopped at a rung, and points that go on."""

import json
import signal

import pytest
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
    assert len(table[best]) == 2
    assert [table[name][:2] for name in stopped] == [["stopped:", "2"], ["stopped:", "3"]]
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
    drawn += ["sweep.draws=3"]
    said = collectx(
        *("run", *HALVING, *drawn, "sweep.objective=[mean_return,wall_s]", "trainer.gamma=0.9,0.99"),
        *("hydra.sweep.dir=sweep", "sweep.reduction=1.5"),
        cwd=tmp_path,
    )
    saved = json.loads((tmp_path / "sweep" / "halving.json").read_text())
    assert saved["objective"] == ["mean_return", "wall_s"]
    assert sorted(len(point["values"]) for point in saved["points"]) == [1, 2, 2]
    assert len(rows(said)) == 3
    again = collectx("run", *HALVING, *drawn, "trainer.gamma=0.9,0.99", "sweep.seed=1", "--cfg=job", cwd=tmp_path)
    assert "learning_rate" in again.stdout


@pytest.mark.ci
def test_a_sweep_that_was_interrupted_goes_on_at_its_rung(tmp_path, wait_until):
    words = [*HALVING, "seed=0,1,2", "hydra.sweep.dir=sweep"]
    command = start("run", *words, cwd=tmp_path)
    wait_until(lambda: command.poll() is not None or "point 2 of 3" in (tmp_path / "said.txt").read_text(), 200, "it")
    command.send_signal(signal.SIGINT)
    assert command.wait(100) == 130
    said = collectx("run", *words, cwd=tmp_path)
    assert "sweep: 3 runs, " in said.stdout
    assert sorted(result(folder)["frames"] for folder in (tmp_path / "sweep").glob("seed=*")) == [2048, 2048, 6144]


@pytest.mark.ci
def test_a_point_that_fails_is_last_and_named(tmp_path):
    words = ["trainer.learning_rate=1e-3,1e30", "hydra.sweep.dir=sweep"]
    said = collectx("run", *HALVING, *words, cwd=tmp_path, status=1)
    assert list(rows(said).items())[-1] == ("trainer.learning_rate=1e+30", ["failed"])
    assert "trainer.learning_rate=1e+30: failed: " in said.stderr
    assert result(tmp_path / "sweep" / "trainer.learning_rate=0.001")["frames"] == 6144


@pytest.mark.ci
def test_evaluations_rank(tmp_path):
    words = ["seed=0,1,2", "eval.every_batches=2", "eval.episodes=2", "sweep.objective=eval/mean_return"]
    said = collectx("run", *HALVING, *words, "hydra.sweep.dir=sweep", cwd=tmp_path)
    best, *stopped = rows(said)
    ended = {name: result(tmp_path / "sweep" / name) for name in (best, *stopped)}
    saved = json.loads((tmp_path / "sweep" / "halving.json").read_text())
    values = {point["name"]: point["values"] for point in saved["points"]}
    assert values[best]["2048"] >= max(values[name]["2048"] for name in stopped)
    assert values[best]["6144"] == [ended[best]["eval/mean_return"]]
    assert all(values[name]["2048"] == [ended[name]["eval/mean_return"]] for name in stopped)


@pytest.mark.nightly
def test_points_run_at_the_same_time_with_hydras_launchers(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=0,1,2", "hydra.sweep.dir=sweep"]
    said = collectx("run", *HALVING, *words, cwd=tmp_path)
    assert len(rows(said)) == 3
    assert sorted(result(folder)["frames"] for folder in (tmp_path / "sweep").glob("seed=*")) == [2048, 2048, 6144]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trainer.gamma=interval(0.9,0.99)", "sweep.rungs=[64]"], "is an interval. Say how many points to draw"),
        (["seed=0,1"], "sweep.rungs is missing. Name the numbers of frames"),
        (["seed=0,1", "sweep.rungs=[500,200]"], "sweep.rungs=[500, 200] must be positive and ascending"),
        (["seed=0,1", "sweep.rungs=[500_000]"], "sweep.rungs ends at 500000 frames, but collector.total_frames="),
        (["seed=0,1", "sweep.rungs=[64]", "run.max_batches=3"], "run.max_batches cannot be used with"),
        (["seed=0,1", "sweep.rungs=[64]", "sweep.reduction=1"], "sweep.reduction=1"),
        (["seed=0,1", "sweep.rungs=[64]", "sweep.draws=0"], "sweep.draws=0"),
        (["seed=0,1", "sweep.rungs=[64,65,9_000]"], "has rungs within one batch of"),
    ],
)
def test_what_cannot_be_swept_so_is_refused_before_anything_starts(tmp_path, words, said):
    refused = forked("run", "-m", "hydra/sweeper=halving", *words, cwd=tmp_path, status=2)
    assert said in refused.stderr
    assert not [*tmp_path.iterdir()]
