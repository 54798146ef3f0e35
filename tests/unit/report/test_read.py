"""Curves, times, groups and intervals of runs."""

import itertools
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from collectx.config.schema.trainer import RETURN_WINDOW
from collectx.errors import ConfigError
from collectx.jobs.status import RunStatus
from collectx.report.page import Report
from collectx.report.read import (
    NUM_POINTS,
    Group,
    Run,
    centre,
    common,
    differences,
    groups_of,
    interval,
    read_runs,
    shortener,
)
from collectx.run import RunFolder, Status

pytestmark = pytest.mark.xdist_group("report")  # one process makes the sweep


def write_run(folder, lines, events=()):
    """A run folder with the least in it."""
    (folder / "snapshot").mkdir(parents=True)
    (folder / "snapshot" / "config.yaml").write_text("seed: 0\n")
    for name, objects in (("metrics", lines), ("events", events)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in objects))
    return folder


def line(batch, time, **fields):
    return {"batch": batch, "time": time, "frames": 10 * (batch + 1), "frames_per_s": 10.0, "waited_s": 0.5} | {
        "version": batch,
        "lag": 0.0,
        **fields,
    }


def entry(worker, measured_s):
    sums = {"lag": 0, "frames": 10, "episodes": 0, "return": None}
    return {
        "worker": worker,
        "policy_version": 0,
        **sums,
        "env_s": measured_s,
        "policy_s": 0.0,
        "wait_s": 0.0,
        "send_s": 0.0,
    }


@pytest.mark.sample(3)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 20])
def test_the_centre_is_the_interquartile_mean(count):
    from scipy.stats import trim_mean  # takes a second

    values = np.random.default_rng(count).normal(size=(count, 3))
    assert centre(values) == pytest.approx(trim_mean(values, 0.25, axis=0))


def test_the_interval_is_that_of_the_bootstrap():
    from scipy.stats import bootstrap, trim_mean

    values = np.random.default_rng(0).normal(size=12)
    expected = bootstrap((values,), lambda each, axis: trim_mean(each, 0.25, axis=axis), method="percentile", rng=1)
    assert interval(values) == pytest.approx(list(expected.confidence_interval), abs=0.1)
    one = np.array([3.0])
    assert interval(one) == (3.0, 3.0)


def test_curves_of_several_runs_are_taken_where_all_have_them():
    one = np.array([0.0, 10.0]), np.array([0.0, 40.0])
    other = np.array([5.0, 20.0]), np.array([0.0, 15.0])
    places, values = common([one, other])
    assert (places[0], places[-1], values.shape) == (5.0, 10.0, (2, NUM_POINTS))
    assert values[:, 0].tolist() == [20.0, 0.0]
    assert values[:, -1].tolist() == pytest.approx([40.0, 5.0])
    assert common([one, (np.array([11.0]), np.array([0.0]))]) is None
    # Half of the shortest is enough, less would say little about it.
    assert common([one, (np.array([6.0, 20.0]), np.array([0.0, 14.0]))]) is None
    # Places that they share are taken as they are.
    longer = np.array([0.0, 10.0, 20.0, 30.0]), np.array([1.0, 2.0, 7.0, 7.0])
    places, values = common([one, longer])
    assert (places.tolist(), values.tolist()) == ([0.0, 10.0], [[0.0, 40.0], [1.0, 2.0]])


def test_runs_that_differ_in_their_seeds_alone_are_a_group(sweep):
    runs = read_runs([sweep, sweep / runs_name(1, 0)])
    assert [run.name for run in runs] == [runs_name(workers, seed) for workers in (1, 2) for seed in (0, 1)]
    assert differences(runs) == {"collector.num_workers": [1, 1, 2, 2], "seed": [0, 1, 0, 1]}
    groups = groups_of(runs)
    assert [(group.name, len(group.runs)) for group in groups] == [("num_workers=1", 2), ("num_workers=2", 2)]
    assert groups[0].values("frames").tolist() == [1024.0, 1024.0]
    assert [group.name for group in (*groups_of(runs[:2]), *groups_of(runs[:1]))] == ["all", runs_name(1, 0)]


def runs_name(workers, seed):
    return f"collector.num_workers={workers},seed={seed}"


def test_the_curves_of_a_run_are_those_of_its_files(sweep):
    (run,) = read_runs([sweep / runs_name(2, 1)])
    assert (run.name, run.status.status) == (runs_name(2, 1), Status.COMPLETED)
    frames, returns = run.curve("mean_return", "frames")
    assert frames[-1] == 1024
    assert returns[-1] == pytest.approx(run.numbers["mean_return"], rel=1e-6)
    times, rates = run.curve("frames_per_s", "elapsed_s")
    assert 0 < times[0] < times[-1] < 60
    # The rates are those after the first batch.
    passed_s = np.diff([run.columns["elapsed_s"][0], *times])
    assert sum(rates * passed_s) == pytest.approx(1024 - 128)
    of_update = {"approx_kl", "clip_fraction", "explained_variance", "learning_rate"}
    assert set(run.scalars) == {"actor_loss", "critic_loss", "entropy"} | of_update
    assert {span.worker for span in run.spans} == {0, 1}
    assert run.curve("nothing", "frames") is None


def test_long_curves_are_thinned_by_means(tmp_path):
    count = 10 * NUM_POINTS
    folder = write_run(tmp_path / "run", [line(batch, float(batch), mean_return=batch % 2) for batch in range(count)])
    (run,) = read_runs([folder])
    places, values = run.curve("mean_return", "frames")
    assert len(places) == NUM_POINTS
    assert set(values) == {0.5}
    assert np.all(np.diff(places) > 0)


def test_the_time_between_an_end_and_a_resumption_does_not_count(tmp_path):
    lines = [line(0, 101.0), line(1, 102.0), line(2, 5001.5, resumed=True), line(3, 5002.5)]
    events = [{"time": time, "event": "workers_started", "num_workers": 1} for time in (100.0, 5000.5)]
    (run,) = read_runs([write_run(tmp_path / "run", lines, events)])
    assert run.columns["elapsed_s"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert [run.seconds(time) for time in (100.0, 101.5, 3000.0, 5001.0)] == [0.0, 1.5, 2.0, 2.5]


def test_what_interrupted_a_run_before_it_was_resumed_is_said(tmp_path):
    resumed = {"event": "resumed", "batches": 2, "frames": 20, "new_episodes": {}}
    events = [
        {"time": 102.5, "event": "interrupted", "reason": "interrupted by SIGINT"},
        {"time": 5000.5} | resumed,
        {"time": 5003.0, "event": "interrupted", "reason": "interrupted by SIGTERM"},
    ]
    lines = [line(0, 101.0), line(1, 102.0), line(2, 5001.5, resumed=True)]
    (run,) = read_runs([write_run(tmp_path / "run", lines, events)])
    # Of the last end, the result says it.
    assert run.messages == [(102.5, "interrupted by SIGINT"), (5000.5, "the run continues after 2 batches (20 frames)")]


def test_the_waits_of_each_learner_are_those_of_all_batches(tmp_path):
    lines = [line(0, 101.0, learners=[[1.0, 0.5], [2.0, 0.25]]), line(1, 102.0, learners=[[1.0, 0.5], [2.0, 0.25]])]
    run, alone = read_runs([write_run(tmp_path / "two", lines), write_run(tmp_path / "one", [line(0, 101.0)])])
    assert {rank: waited_s.tolist() for rank, waited_s in run.learners.items()} == {0: [2.0, 1.0], 1: [4.0, 0.5]}
    assert not alone.learners
    page = Report([run, alone], "mean_return").write(tmp_path / "page").read_text()
    assert "for each other (s)" in page
    assert "1.0 / 0.5" in page
    assert "for each other (s)" not in Report([alone], "mean_return").write(tmp_path / "page").read_text()


def test_the_best_return_is_that_of_a_complete_window(tmp_path):
    counts, means = (1, 100, 101, 102), (500.0, 20.0, 60.0, 10.0)
    lines = [line(i, 101.0 + i, mean_return=means[i], num_episodes=counts[i]) for i in range(4)]
    (run,) = read_runs([write_run(tmp_path / "run", lines)])
    (first,) = read_runs([write_run(tmp_path / "first", lines[:1])])
    assert (run.best_return(), first.best_return()) == (60.0, 500.0)


def test_a_worker_that_was_lost_has_a_gap_until_the_next_one_works(tmp_path):
    lines = [line(index, 101.0 + index, workers=[entry(0, seconds)]) for index, seconds in enumerate((1, 1, 0.4))]
    events = [{"time": 100.0, "event": "workers_started", "num_workers": 1}]
    events += [{"time": 102.25, "event": "worker_failed", "worker": 0, "type": "WorkerDied", "message": ""}]
    (run,) = read_runs([write_run(tmp_path / "run", lines, events)])
    spans = [(round(span.begin_s, 3), round(span.end_s, 3)) for span in run.spans]
    assert spans == [(0.0, 1.0), (1.0, 2.0), (2.0, 2.25), (2.85, 3.0)]
    assert {span.shares for span in run.spans} == {(1.0, 0.0, 0.0, 0.0)}


def test_folders_without_a_run_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match="no run in or below"):
        read_runs([tmp_path])


@pytest.mark.ci
def test_a_damaged_file_is_the_status_of_its_run_only(sweep, tmp_path):
    generator = random.Random(0)
    shutil.copytree(sweep, tmp_path / "sweep")
    for name in ("metrics.jsonl", "events.jsonl", "result.json", "snapshot/config.yaml"):
        file = tmp_path / "sweep" / runs_name(1, 0) / name
        whole = file.read_bytes()
        for _ in range(8):
            place = generator.randrange(len(whole))
            file.write_bytes(whole[:place] + bytes([generator.randrange(256)]) + whole[place + 1 :])
            first, *others = read_runs([tmp_path / "sweep"])
            assert first.status.status in (Status.COMPLETED, Status.DAMAGED)
            assert [run.status.status for run in others] == [Status.COMPLETED] * 3
            assert sum(len(group.runs) for group in groups_of([first, *others])) == 4
        file.write_bytes(whole)


def test_only_completed_runs_of_the_greatest_length_count(tmp_path):
    """As in a sweep by halving, which ends some seeds by `run.max_batches`."""
    limits = {"a": 4, "b": 12, "c": 12, "d": None}
    runs = [
        Run(name, RunFolder(tmp_path), RunStatus(Status.COMPLETED), {"frames": index}, {"run.max_batches": limit})
        for index, (name, limit) in enumerate(limits.items())
    ]
    assert Group("all", tuple(runs)).values("frames").tolist() == [3.0]
    runs[3].status = RunStatus(Status.RUNNING)
    assert Group("all", tuple(runs)).values("frames").tolist() == [1.0, 2.0]
    assert Group("all", tuple(runs[:1])).limit == 4
    # One that got all of its frames was not ended by the limit.
    runs[1].options["collector.total_frames"] = 1
    assert Group("all", tuple(runs[:3])).values("frames").tolist() == [1.0]


def test_evaluations_are_curves_over_frames(tmp_path):
    """A run that continued from an older checkpoint has repeated an evaluation."""
    evaluated = [(20, 5.0, {}), (40, 6.0, {"won": 0.5}), (40, 7.0, {"won": 0.75})]
    events = [
        {"time": 1.0, "event": "evaluated", "batches": 1, "frames": frames, "mean_return": value, "interval": None}
        | {"mean_length": 1.0, "metrics": metrics}
        for frames, value, metrics in evaluated
    ]
    (run,) = read_runs([write_run(tmp_path / "run", [line(0, 1.0)], events)])
    curves = {name: [each.tolist() for each in run.curve(f"eval/{name}", "frames")] for name in run.evaluations}
    assert curves == {"mean_return": [[20, 40], [5, 7]], "won": [[40], [0.75]]}
    # They are no events to read.
    assert run.messages == []


@pytest.mark.parametrize(
    ("folders", "name"),
    [
        (["a/ppo/s0", "a/ppo/s1", "b"], "a/ppo"),
        (["ppo_seed0", "ppo_seed1", "b"], "ppo"),
        (["x,seed=0", "x,seed=1", "b"], "x"),
        (["class0", "class1", "b"], "class"),
        (["s0", "s1", "b"], "s0 and 1 more"),
    ],
)
def test_a_group_is_named_by_what_its_folders_share(tmp_path, folders, name):
    options = [{"seed": seed} | dict.fromkeys("pqrs", word) for seed, word in ((0, "a"), (1, "a"), (0, "b"))]
    runs = [
        Run(folder, RunFolder(tmp_path), RunStatus(Status.COMPLETED), None, each)
        for folder, each in zip(folders, options, strict=True)
    ]
    assert [group.name for group in groups_of(runs)] == [name, "b"]


def test_failed_runs_are_no_part_of_a_groups_numbers(sweep):
    first, second, *_ = read_runs([sweep])
    first.status = type(first.status)(Status.FAILED)
    assert Group("both", (first, second)).values("mean_return").tolist() == [second.numbers["mean_return"]]


@pytest.mark.parametrize(
    ("means", "episodes", "best"),
    [
        ([], [], None),
        ([np.nan, np.nan], [0, 0], None),
        ([np.nan, 9.0, 3.0, np.nan], [0, 5, RETURN_WINDOW - 1, RETURN_WINDOW - 1], 3.0),
        ([9.0, 3.0], [5, RETURN_WINDOW + 5], 3.0),
        # No episode ends in the third batch.
        ([9.0, 6.0, 6.0, 2.0], [5, RETURN_WINDOW, np.nan, 2 * RETURN_WINDOW], 6.0),
        ([9.0, 1.0, 4.0, 2.0], [5, RETURN_WINDOW, 2 * RETURN_WINDOW, 3 * RETURN_WINDOW], 4.0),
    ],
)
def test_the_best_return_is_of_a_whole_window(tmp_path, means, episodes, best):
    run = Run(
        "0", RunFolder(tmp_path), None, columns={"mean_return": np.array(means), "num_episodes": np.array(episodes)}
    )
    assert run.best_return() == best


def test_the_time_of_a_run_is_told_by_part(tmp_path):
    run = Run("0", RunFolder(tmp_path), None, {"start_s": 3.0, "checkpoint_s": 1.5})
    assert run.parts_s() == (None,) * 5
    run.columns = {"elapsed_s": np.array([5.0, 9.0, 17.0]), "waited_s": np.array([4.0, 1.0, np.nan])}
    assert run.parts_s() == (3.0, 1.0, 17.0 - 5.0 - 1.0 - 1.5, 1.5, None)
    # The last evaluation ends 4 s after the last batch.
    run.numbers |= {"evaluation_s": 6.0, "wall_s": 3.0 + 12.0 + 4.0}
    assert run.parts_s() == (3.0, 1.0, 12.0 + 4.0 - 1.0 - 1.5 - 6.0, 1.5, 6.0)
    run.numbers = None
    assert run.parts_s() == (None, 1.0, 11.0, None, None)


def test_rates_are_those_of_windows_of_equal_time(tmp_path):
    """The last two of six batches come at once."""
    columns = {"elapsed_s": [1.0, 2.0, 3.0, 4.0, 6.999, 7.0], "frames": [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]}
    run = Run("0", RunFolder(tmp_path), None, columns={name: np.array(each) for name, each in columns.items()})
    places, rates = run.curve("frames_per_s", "elapsed_s")
    assert places.tolist() == [3.0, 5.0, 7.0]
    assert rates.tolist() == pytest.approx([10.0, 6.667, 8.333], abs=1e-3)
    assert run.curve("frames_per_s", "frames")[0].tolist() == pytest.approx([30.0, 43.333, 60.0], abs=1e-2)
    assert run.curve("lag", "frames") is None
    run.columns = {name: column[4:] for name, column in run.columns.items()}
    assert run.curve("frames_per_s", "frames") is None
    run.columns = {"elapsed_s": np.ones(4), "frames": np.arange(4.0)}
    assert run.curve("frames_per_s", "elapsed_s") is None


def test_lines_become_columns_scalars_and_the_times_of_each_worker(tmp_path):
    parts = [[entry(0, 1.0), entry(1, 0.5)], [{"worker": 0, "policy_version": 0}], [entry(0, 2.0), entry(1, 2.5)]]
    scalars = [{}, {"scalars": {"loss": 3.0}}, {}, {"scalars": {"loss": None, "entropy": 1.0}}]
    lines = [line(0, 101.0, workers=parts[0]), line(1, 102.0, workers=parts[1], mean_return=5.0)]
    lines = [
        each | more
        for each, more in zip([*lines, line(2, 103.0, workers=parts[2]), line(3, 102.5)], scalars, strict=True)
    ]
    events = [{"time": 100.0, "event": "workers_started", "num_workers": 2}]
    events += [{"time": 102.0, "event": "worker_failed", "worker": 1, "type": "WorkerDied", "message": ""}]
    (run,) = read_runs([write_run(tmp_path / "run", lines, events)])
    # The clock of a host may be put back, time may not.
    assert run.columns["elapsed_s"].tolist() == [1.0, 2.0, 3.0, 3.0]
    assert run.columns["mean_return"].tolist() == pytest.approx([np.nan, 5.0, np.nan, np.nan], nan_ok=True)
    assert run.scalars["loss"].tolist() == pytest.approx([np.nan, 3.0, np.nan, np.nan], nan_ok=True)
    assert run.scalars["entropy"].tolist() == pytest.approx([np.nan] * 3 + [1.0], nan_ok=True)
    assert run.curve("scalars/loss", "frames")[0].tolist() == [20.0]
    assert run.curve("lag", "frames")[1].tolist() == [0.0] * 4
    spans = [(span.worker, span.begin_s, span.end_s) for span in run.spans]
    # Worker 1 worked half a second less than that before the line of batch 2, as another one began.
    assert spans == [(0, 0.0, 1.0), (0, 1.0, 3.0), (1, 0.5, 1.0), (1, 1.0, 2.0), (1, 2.0, 3.0)]


def test_times_of_a_run_without_a_line_are_since_its_workers_started(tmp_path):
    events = [{"time": 100.0, "event": "workers_started", "num_workers": 2}]
    (run,) = read_runs([write_run(tmp_path / "run", [], events)])
    assert [run.seconds(time) for time in (99.0, 100.0, 103.5)] == [0.0, 0.0, 3.5]
    assert (run.curve("frames", "elapsed_s"), run.spans, run.numbers) == (None, [], None)


def test_means_over_parts_of_a_curve_and_of_the_middle_half():
    places, values = np.arange(2.0 * NUM_POINTS), np.arange(2.0 * NUM_POINTS) % 2
    columns = {"frames": places, "lag": values, "short": np.where(places < NUM_POINTS, values, np.nan)}
    run = Run("0", RunFolder(Path("0")), None, columns=columns)
    thin = run.curve("lag", "frames")
    assert thin[0].tolist() == [2 * index + 0.5 for index in range(NUM_POINTS)]
    assert set(thin[1]) == {0.5}
    assert len(run.curve("short", "frames")[0]) == NUM_POINTS  # as many as there may be
    assert [centre(np.array(each)) for each in ([1.0, 2, 6], [0.0, 1, 3, 90], [0.0, 1, 2, 3, 4, 5, 6, 90])] == [
        3,
        2,
        3.5,
    ]


def test_groups_differ_by_options_but_seeds_checkpoints_and_loggers(tmp_path):
    def made(name, **options):
        return Run(
            name,
            RunFolder(tmp_path / name),
            RunStatus(Status.COMPLETED),
            options={key.replace("__", "."): each for key, each in options.items()},
        )

    runs = [made(str(seed), seed=seed, a__x=seed // 2, checkpoint__keep=seed, hydra__job=seed) for seed in range(4)]
    assert differences(runs) == {"seed": [0, 1, 2, 3], "a.x": [0, 0, 1, 1], "checkpoint.keep": [0, 1, 2, 3]}
    assert [(group.name, [run.name for run in group.runs]) for group in groups_of(runs)] == [
        ("x=0", ["0", "1"]),
        ("x=1", ["2", "3"]),
    ]
    differing = differences([*runs[1:3], made("none")])
    assert differing == {"seed": [1, 2, None], "a.x": [0, 1, None], "checkpoint.keep": [1, 2, None]}


def numbers(values):
    """Rounded, as JSON can say them."""
    return [None if each is None or np.isnan(each) else float(f"{each:.5g}") for each in values]


def facts(run):
    columns = {name: numbers(column) for name, column in (run.columns | run.scalars).items()}
    curves = {}
    for value in ("mean_return", "frames_per_s", "scalars/loss", "lag"):
        for over in ("frames", "elapsed_s"):
            curve = run.curve(value, over)
            curves[f"{value} over {over}"] = None if curve is None else [numbers(each) for each in curve]
    return {
        "status": [run.status.status, run.status.detail.replace(str(run.run_folder.path), "FOLDER")],
        "numbers": run.numbers and {name: run.numbers[name] for name in ("frames", "mean_return")},
        "options": run.options,
        "columns": columns,
        "curves": curves,
        "spans": [[span.worker, *numbers((span.begin_s, span.end_s, *span.shares))] for span in run.spans],
        "messages": run.messages,
        "best": run.best_return(),
        "parts_s": run.parts_s(),
        "seconds": numbers(map(run.seconds, (0.0, 100.0, 100.5, 104.0, 1000.0))),
    }


EVENTS = [
    {"time": 99.0, "event": "workers_started", "num_workers": 2},
    {"time": 103.25, "event": "worker_failed", "worker": 1, "type": "WorkerDied", "message": "killed"},
    {"time": 103.5, "event": "interrupted", "reason": "interrupted by SIGINT"},
    {"time": 201.0, "event": "workers_started", "num_workers": 2},
    {"time": 201.5, "event": "resumed", "batches": 4, "frames": 40, "new_episodes": {}},
    {"time": 205.0, "event": "interrupted", "reason": "interrupted by SIGTERM"},
]
LINES = [
    line(0, 100.0, num_episodes=0, scalars={"loss": 4.0}, workers=[entry(0, 1.0), entry(1, 0.5)]),
    line(1, 101.0, num_episodes=60, mean_return=5.0, waited_s=0.25),
    line(2, 102.0, num_episodes=120, mean_return=4.0, scalars={"loss": 2.0, "kl": 0.5}, workers=[entry(0, 2.0)]),
    line(
        3,
        104.0,
        num_episodes=240,
        mean_return=3.0,
        lag=1.5,
        workers=[entry(1, 0.0), {"worker": 0, "policy_version": 0}],
    ),
    line(4, 203.0, num_episodes=250, mean_return=None, resumed=True, workers=[entry(0, 1.0), entry(1, 1.0)]),
    line(5, 204.0, num_episodes=260, mean_return=6.0, scalars={"kl": 0.25}),
]
RESULT = {"status": "completed", "exit_reason": "the trainer ended the run after 60 frames", "frames": 60} | {
    **{"batches": 6, "wall_s": 9.0, "checkpoint_s": 0.5, "start_s": 1.0, "frames_per_s": 10.0, "mean_return": 6.0},
    **{"num_episodes": 260, "digest": None, "failures": []},
}


@pytest.mark.parametrize(
    ("name", "lines", "events", "result"),
    [
        ("complete", LINES, EVENTS, RESULT),
        ("one-batch", LINES[:1], [], None),
        ("two-batches", LINES[1:3], EVENTS[:1], RESULT | {"status": "failed", "start_s": None}),
        ("no-batch", [], EVENTS[:1], None),
        ("no-event", [], [], RESULT | {"status": "interrupted", "mean_return": None}),
    ],
)
def test_a_run_as_a_report_reads_it(tmp_path, expected, name, lines, events, result):
    lines = [each | {"batch": batch} for batch, each in enumerate(lines)]
    folder = write_run(tmp_path / "run", lines, events)
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    (run,) = read_runs([folder])
    assert run.curve("nothing", "frames") is None
    expected(f"read-{name}", facts(run))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["seed: 0", "seed: 1"], [("all", 2)]),
        (["seed: 0"], [("0", 1)]),
        (["a: {b: 1}", "a: {b: 2}", "a: {b: 2}\nseed: 1"], [("b=1", 1), ("b=2", 2)]),
        (["a: {b: 1}\nc: {b: 1}", "a: {b: 2}\nc: {b: 1}"], [("b=1", 1), ("b=2", 1)]),
        (["a: {b: 1}\nc: {b: 1}", "a: {b: 2}\nc: {b: 3}"], [("a.b=1, c.b=1", 1), ("a.b=2, c.b=3", 1)]),
        (["a: 1\nb: 1\nc: 1", "a: 2\nb: 2\nc: 2"], [("a=1, b=1, c=1", 1), ("a=2, b=2, c=2", 1)]),
        (["a: 1\nb: 1\nc: 1\nd: 1", "a: 2\nb: 2\nc: 2\nd: 2"], [("0", 1), ("1", 1)]),
        (["a: 1", "b: 2"], [("a=1", 1), ("b=2", 1)]),
        (["run: {x: 1}\ncheckpoint: {x: 1}", "run: {x: 2}\nlogger: {x: 1}"], [("all", 2)]),
    ],
)
def test_the_names_of_groups(tmp_path, options, names):
    for number, text in enumerate(options):
        folder = write_run(tmp_path / "sweep" / str(number), LINES)
        (folder / "snapshot" / "config.yaml").write_text(f"{text}\n")
    groups = groups_of(read_runs([tmp_path / "sweep"]))
    assert [(group.name, len(group.runs)) for group in groups] == names


@pytest.mark.parametrize(
    ("text", "keys", "short"),
    [
        ("Timeline of a/x.size=1,seed=0", (), "Timeline of a/size=1,seed=0"),
        ("x.size=1,y.size=2", (), "x.size=1,y.size=2"),
        ("x.size=1,size=2", (), "x.size=1,size=2"),
        ("x.size=1", ("y.size",), "x.size=1"),  # which differs too, but names no folder
        ("x.size=1,path=a.b", ("x.size", "x.other"), "size=1,path=a.b"),
    ],
)
def test_options_in_names_are_short_where_their_last_words_are_enough(text, keys, short):
    assert shortener([text], keys)(text) == short
    assert shortener([], keys)(text) == text


def test_several_runs_of_one_seed_count_once(tmp_path):
    """The one with the most frames."""
    written = {"first": (0, 2), "again": (0, 3), "other": (1, 1), "repeated": (1, 1)}
    for name, (seed, count) in written.items():
        folder = write_run(tmp_path / name, [line(n, float(n)) for n in range(count)])
        digest = "trainer: {digest: true}\n" if name == "again" else ""
        (folder / "snapshot" / "config.yaml").write_text(f"seed: {seed}\n{digest}")
    (group,) = groups_of(read_runs([tmp_path / name for name in written]))
    assert [run.name for run in group.runs] == ["again", "other"]
    assert [run.name for run in group.repeats] == ["first", "repeated"]


def test_the_average_of_seeds_is_named_after_none_of_them(tmp_path):
    many = "".join(f"{name}: {{number}}\n" for name in "abcd")
    for number, seed in itertools.product((1, 2), (0, 1)):
        folder = write_run(tmp_path / f"sweep/seed={seed},collector.num_workers={number}", LINES)
        options = many.format(number=number)
        (folder / "snapshot" / "config.yaml").write_text(f"seed: {seed}\n{options}")
    for name in ("seed=5", "alone"):
        folder = write_run(tmp_path / name, LINES)
        (folder / "snapshot" / "config.yaml").write_text(f"seed: 5\ne: {name}\n")
    groups = groups_of(read_runs([tmp_path]))
    assert {group.name for group in groups} == {"sweep/num_workers=1", "sweep/num_workers=2", "seed=5", "alone"}


@pytest.mark.parametrize(
    ("count", "points"), [(1, 1), (NUM_POINTS, NUM_POINTS), (NUM_POINTS + 1, NUM_POINTS), (3 * NUM_POINTS, NUM_POINTS)]
)
def test_each_point_of_a_thinned_curve_is_a_mean(tmp_path, count, points):
    (run,) = read_runs([write_run(tmp_path / "run", [line(n, float(n), mean_return=n**2) for n in range(count)])])
    places, values = run.curve("mean_return", "frames")
    assert len(places) == len(values) == points
    cuts = [count * n // points for n in range(points + 1)]
    parts = [range(begin, end) for begin, end in itertools.pairwise(cuts)]
    assert places.tolist() == pytest.approx([np.mean([10 * (n + 1) for n in part]) for part in parts])
    assert values.tolist() == pytest.approx([np.mean([n**2 for n in part]) for part in parts])
