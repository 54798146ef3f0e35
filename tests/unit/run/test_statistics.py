"""Sums and rates of a run, from deliveries whose times are given."""

import json
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest

from collectx.run import statistics
from collectx.run.folder.batch_line import PartTotals
from collectx.run.statistics import Curve, MetricsTail, RateWindow, Statistics, View, bootstrap_interval, earlier_curve


def part(worker=0, frames=4, version=0, returns=(), times=(1.0, 2.0, 3.0, 4.0), metrics=None):
    env_s, policy_s, wait_s, send_s = times
    report = {"frames": frames, "policy_version": version, "returns": np.array(returns, float), "metrics": metrics}
    report |= {"env_s": env_s, "policy_s": policy_s, "wait_s": wait_s, "send_s": send_s}
    return SimpleNamespace(worker=worker, report=SimpleNamespace(**report))


def batch_info(*parts, version=0, waited_s=0.0):
    return SimpleNamespace(
        frames=sum(each.report.frames for each in parts), parts=parts, version=version, waited_s=waited_s, learners=()
    )


def rounded(value):
    """Returns the values without the last digits of floats."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, PartTotals):
        return rounded([value.spent_s, value.frames, value.lag, value.episodes, value.total_return])
    return [*map(rounded, value)] if isinstance(value, list | tuple) else value


_SHOWN = (
    *("frames", "batches", "num_episodes", "waited_s", "first_s", "last_s", "rate", "mean_return", "best_return"),
    *("version", "lag", "started", "taking_part", "frames_per_s", "metrics", "scalars", "workers"),
)


def shown(numbers):
    """All that a `Statistics` says, but what it was made with."""
    return rounded({name: getattr(numbers, name) for name in _SHOWN})


def test_a_run_of_two_processes_batch_by_batch(expected):
    """The two workers end many episodes or none, with pauses in which no batch comes."""
    draw, now_s = random.Random(1), 10.0
    one = Statistics(4000, 50.0, ("success", "speed"))
    rows, sampler = [shown(one), rounded(one.state())], RateWindow(one, 8.0)
    for number in range(24):
        if number == 16:  # a resume
            state = json.loads(json.dumps(one.state()))
            state["workers"] = {int(worker): totals for worker, totals in state["workers"].items()}
            rows.append(rounded(state | {"returns": [len(state["returns"]), sum(state["returns"])]}))
            one = Statistics(4000, 50.0, ("success", "speed"))
            one.load(state, now_s := now_s + 50.0)
            sampler = RateWindow(one, now_s)
            rows.append(shown(one))
        parts = []
        for worker in range(2 if number % 5 else 1):
            returns = [float(draw.randint(0, 100)) for _ in range(draw.choice([0, 1, 70]))]
            metrics = np.array([[sum(returns), 5.0], [len(returns), number == 3]])
            times = [draw.choice([0.0, 0.25, 1.0]) for _ in range(4)]
            parts.append(part(worker, draw.choice([10, 50]), number - draw.randint(0, 2), returns, times, metrics))
        one.add(batch_info(*parts, version=number, waited_s=draw.choice([0.0, 0.5])), now_s)
        view = sampler.view(now_s)
        late = sampler.view(now_s := now_s + draw.choice([0.0, 0.5, 9.0]))
        rates = [[each.worker, each.frames_per_s, each.shares, each.lag] for each in late.workers]
        facts = [(each.elapsed_s, each.now_per_s, each.trainer_share, each.left_s) for each in (view, late)]
        rows += [shown(one) if number % 6 == 0 else shown(one)["metrics"], rounded([*facts, rates])]
        now_s = now_s + draw.choice([0.0, 0.25, 1.0, 10.0])
    expected("batches", rows)


LINE = {"batch": 0, "time": 100.0, "frames": 40, "frames_per_s": None, "waited_s": 0.5, "version": 0, "lag": 0.0}
TIMES = {"env_s": 1.0, "policy_s": 2.0, "wait_s": 3.0, "send_s": 4.0}
LINES = [
    LINE,
    LINE | {"batch": 1, "frames": 80, "frames_per_s": 10.0, "version": 2, "lag": 0.25, "scalars": {"loss": 0.5}},
    LINE
    | {"batch": 2, "frames": 100, "frames_per_s": 20.0, "episodes": 3, "num_episodes": 3}
    | {"return": 4.0, "mean_return": 4.0},
    LINE
    | {"batch": 3, "frames": 140, "frames_per_s": 20.0, "num_episodes": 120, "mean_return": 3.0}
    | {
        "workers": [
            {"worker": 1, "policy_version": 0, "lag": 2, "frames": 60, **TIMES, "episodes": 4, "return": 2.5},
            {"worker": 0, "policy_version": 0},
        ]
    },
    LINE
    | {"batch": 4, "frames": 180, "frames_per_s": None, "num_episodes": 120, "mean_return": None, "resumed": True}
    | {"workers": [{"worker": 1, "policy_version": 0, "lag": 1, "frames": 20, **TIMES, "episodes": 0, "return": None}]},
    LINE | {"batch": 5, "frames": 220, "frames_per_s": 40.0, "num_episodes": 220, "mean_return": 2.0},
    LINE | {"batch": 6, "frames": 260, "frames_per_s": 40.0, "taking_part": [2, 3], "scalars": {"kl": 1.0}},
]


def test_a_file_of_batches_line_by_line(tmp_path, expected):
    tail, rows = MetricsTail(tmp_path / "metrics.jsonl", 1000, 50.0, 900), []
    assert (tail.update(), tail.total_frames, tail.target_return, tail.expected_frames) == (False, 1000, 50.0, 900)
    for line in LINES:
        with open(tmp_path / "metrics.jsonl", "a") as file:
            file.write(f"{json.dumps(line)}\n")
        assert (tail.update(), tail.update()) == (True, False)
        rows.append(shown(tail))
    expected("lines", [*rows, rounded(list(tail.curve))])


def test_rates_begin_with_the_second_delivery_of_a_process():
    one = Statistics(100)
    rates = []
    for now_s, frames in ((10.0, 8), (12.0, 4), (12.0, 4), (13.0, 6)):
        one.add(batch_info(part(frames=frames), waited_s=0.5), now_s)
        rates.append((one.rate, one.frames_per_s))
    assert rates == [(None, None), (2.0, 2.0), (2.0, 4.0), (6.0, 14 / 3)]
    assert (one.frames, one.batches, one.waited_s, one.started) == (22, 4, 2.0, (10.0, 0.5))
    # It is resumed: the time until its first delivery is no time of the run, nor are its frames in the rate.
    again = Statistics(100)
    again.load(one.state(), 1000.0)
    assert (again.last_s - again.first_s, again.started, again.frames_per_s) == (3.0, None, 14 / 3)
    again.add(batch_info(part(frames=5), waited_s=0.25), 1060.0)
    assert (again.frames_per_s, again.rate, again.started) == (14 / 3, None, (1060.0, 2.25))
    again.add(batch_info(part(frames=7)), 1061.0)
    assert (again.frames_per_s, again.rate, again.frames, again.batches) == (21 / 4, 7.0, 34, 6)


def test_a_run_that_is_resumed_before_its_first_batch_has_no_times():
    again = Statistics(100)
    again.load(Statistics(100).state(), 5.0)
    assert (again.first_s, again.last_s, again.frames_per_s) == (None, None, None)


def test_lags_times_and_returns_are_summed_by_worker():
    one = Statistics(100)
    parts = part(1, 6, version=3, returns=[2.0, 4.0]), part(0, 2, version=1)
    one.add(batch_info(*parts, version=5), 0.0)
    assert (one.lag, one.version, one.num_episodes, one.mean_return) == ((2 * 6 + 4 * 2) / 8, 5, 2, 3.0)
    one.add(batch_info(part(1, 6, version=6, times=(1.0, 1.0, 1.0, 1.0)), version=6), 1.0)
    assert one.lag == 0.0
    assert one.workers == {
        1: PartTotals((2.0, 3.0, 4.0, 5.0), 12, 0, 2, 6.0),
        0: PartTotals((1.0, 2.0, 3.0, 4.0), 2, 4),
    }
    assert one.workers[1].shares() == tuple(each / 14 for each in (2, 3, 4, 5))
    assert one.workers[1].since(one.workers[0]).spent_s == (1.0, 1.0, 1.0, 1.0)
    assert PartTotals().shares() == (0.0,) * 4
    one.add(batch_info(part(1, 0)), 2.0)
    assert one.lag == 0.0


def test_the_best_mean_is_of_a_complete_window(monkeypatch):
    one = Statistics(-1)
    means = []
    for returns in ([9.0] * 60, [1.0] * 40, [2.0] * 100, [0.0] * 50, []):
        one.add(batch_info(part(returns=returns)), float(len(means)))
        means.append((one.mean_return, one.best_return))
    assert means == [(9.0, 9.0), (5.8, 5.8), (2.0, 5.8), (1.0, 5.8), (1.0, 5.8)]
    assert math.isnan(Statistics(-1).mean_return)


@pytest.mark.parametrize(
    ("means", "has_fallen"),
    [
        ((20.0, 390.0, 120.0), True),
        ((20.0, 390.0, 250.0), False),  # less than half of what it rose by
        ((20.0, 120.0, 390.0), False),
        ((-1500.0, -200.0, -1200.0), True),
        ((-200.0, -900.0, -1500.0), True),
        ((-1500.0, -900.0, -200.0), False),
        ((22.0, 25.0, 21.0), False),  # less than episodes differ by
        ((20.0,), False),
        ((20.0, 390.0, -math.inf), False),  # of no known deviation
    ],
)
def test_a_mean_far_below_the_best_has_fallen(means, has_fallen):
    one = Statistics(-1)
    assert not one.has_fallen
    for mean in means:
        one.add(batch_info(part(returns=[mean - 5.0, mean + 5.0] * 50)), 0.0)
    assert (one.has_fallen, one.best_frames) == (has_fallen, 4 * (1 + np.argmax(means)))
    again = Statistics(-1)
    again.load(json.loads(json.dumps(one.state() | {"workers": {}})), 0.0)
    again.curve = one.curve
    assert (again.has_fallen, again.best_frames) == (has_fallen, one.best_frames)


def test_a_metric_is_the_mean_of_the_last_hundred_values_by_whole_batches():
    one = Statistics(-1, metrics=("success", "speed"))
    found = []
    for total, count in ((30.0, 60), (10.0, 39), (1.0, 1), (50.0, 50), (0.0, 0), (100.0, 100)):
        one.add(batch_info(part(metrics=np.array([[total, 0.0], [count, 0]]))), 0.0)
        found.append(one.metrics["success"])
    assert found == pytest.approx([0.5, 40 / 99, 0.41, 91 / 150, 91 / 150, 1.0])
    assert one.scalars == one.metrics == {"success": 1.0}
    again = Statistics(-1, metrics=("success", "new"))
    again.load(one.state(), 0.0)
    assert (again.metrics, again.scalars) == ({"success": 1.0}, {"success": 1.0})
    again.add(batch_info(part(metrics=np.array([[0.0, 3.0], [100, 2]]))), 0.0)
    assert again.metrics == {"success": 0.0, "new": 1.5}


@pytest.mark.parametrize(
    ("expected", "frames", "now", "overall", "left_s"),
    [
        (100, 40, 6.0, 3.0, 10.0),
        (100, 40, None, 3.0, 20.0),
        (100, 40, 0.0, 3.0, 20.0),
        (100, 40, None, None, None),
        (-1, 40, 6.0, 3.0, None),
        (100, 100, 6.0, 3.0, 0.0),
        (100, 112, 6.0, 3.0, 0.0),
        (0, 0, 6.0, 3.0, 0.0),
    ],
)
def test_the_time_that_is_left(expected, frames, now, overall, left_s):
    numbers = SimpleNamespace(expected_frames=expected, frames=frames, frames_per_s=overall)
    assert View(numbers, 0.0, now).left_s == left_s


def test_current_rates_are_those_of_the_last_seconds():
    one = Statistics(-1)
    window, seen = RateWindow(one, 90.0), []
    view = window.view(95.0)
    assert (view.elapsed_s, view.now_per_s, view.trainer_share, view.workers) == (5.0, None, None, ())
    # A batch each second, of which the trainer waits for a quarter; from 115 s on, none comes.
    for now_s in range(100, 130):
        if now_s < 115:
            one.add(batch_info(part(now_s % 2, 10), waited_s=0.25), float(now_s))
        seen.append(window.view(now_s + 0.5))
    assert [view.now_per_s for view in seen[:4]] == [None, 10.0, 10.0, 10.0]
    assert [view.now_per_s for view in seen[14:17]] == pytest.approx([10.0, 100 / 11, 100 / 12], rel=0.2)
    rates = [view.now_per_s for view in seen[14:]]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 10 / 16
    assert seen[0].trainer_share is None
    assert {view.trainer_share for view in seen[1:]} == {0.75}
    assert [(each.worker, each.frames_per_s, each.lag) for each in seen[14].workers] == [(0, 5.0, 0), (1, 5.0, 0)]
    assert seen[14].workers[0].shares == (0.1, 0.2, 0.3, 0.4)
    assert seen[14].numbers.frames == 150
    # The end has the figures of the whole run.
    end = window.summary(130.5)
    assert (end.elapsed_s, end.rate, end.trainer_share) == (40.5, 10.0, 0.75)
    assert [each.frames_per_s for each in end.workers] == pytest.approx([10 * 80 / 150, 10 * 70 / 150])
    assert window.summary(130.5, 7.0).elapsed_s == 7.0
    # A job that was restarted goes on from an earlier checkpoint.
    one.frames, one.rate = 40, None
    assert window.view(131.0).now_per_s is None


def test_a_curve_is_thinned_and_has_each_batch_once(monkeypatch):
    monkeypatch.setattr(statistics, "_MAX_POINTS", 4)
    one, curve = Statistics(-1), Curve()
    curve.add(one)
    assert curve == []
    for number in range(6):
        one.add(batch_info(part(frames=2, returns=[float(number)])), 10.0 + number)
        curve.add(one)
        curve.add(one)
    assert [(seconds, frames) for seconds, frames, _ in curve] == [(0.0, 2), (2.0, 6), (4.0, 10), (5.0, 12)]


def test_an_interval_holds_95_percent_of_the_draws():
    values = np.arange(1000.0)
    low, high = bootstrap_interval(values, lambda each: each[0], 4000)
    assert (low, high) == (pytest.approx(25, abs=10), pytest.approx(975, abs=10))


def test_a_second_reader_shows_the_same_rate_at_once(tmp_path, monkeypatch):
    """One reads from the first line on, the other all lines at the end. Only every seventh line has totals of the
    workers; in between, too, the rates of the workers add up to the run's."""
    line = {"waited_s": 0.0, "version": 0, "lag": 0.0, "mean_return": None, "workers": []}
    began_s, metrics = 1e9, tmp_path / "metrics.jsonl"
    first = MetricsTail(metrics, -1)
    window, views = RateWindow(first, 0.0), []
    with open(metrics, "w") as file:
        for batch in range(60):
            # Every third batch takes twice as long as the two others together.
            passed_s, frames_per_s = ((0.5, 80.0), (1.0, 80.0), (3.0, 20.0))[batch % 3]
            now_s = 3.0 * (batch // 3) + passed_s
            numbers = {"frames": 40 * (batch + 1), "frames_per_s": frames_per_s, "time": began_s + now_s}
            numbers |= {"batch": batch}
            if batch % 7 == 0:
                totals = {"policy_version": 0, "lag": 0, "frames": 140, **TIMES, "episodes": 0, "return": None}
                numbers |= {"workers": [{"worker": worker} | totals for worker in range(2)]}
            file.write(json.dumps(line | numbers) + "\n")
            file.flush()
            monkeypatch.setattr(statistics, "time", SimpleNamespace(time=lambda now_s=now_s: began_s + now_s))
            first.update()
            views.append(window.view(now_s))
            rates = [worker.frames_per_s for worker in views[-1].workers]
            assert sum(rates) == pytest.approx(views[-1].now_per_s or 0.0)
    second = MetricsTail(metrics, -1)
    second.update()
    view = RateWindow(second, 0.0).view(60.0)
    assert view.now_per_s == pytest.approx(views[-1].now_per_s, rel=0.25)
    assert view.begin_s == pytest.approx(views[-1].begin_s, abs=1.0)
    second.forget_rate()
    assert RateWindow(second, 0.0).view(60.0).now_per_s is None


def test_a_resumed_run_goes_on_with_its_curve(tmp_path):
    line = {"waited_s": 0.0, "version": 0, "lag": 0.0, "frames_per_s": 10.0, "workers": []}
    numbers = [{"batch": batch, "time": float(batch), "frames": 10 * (batch + 1)} for batch in range(5)]
    metrics = tmp_path / "metrics.jsonl"
    lines = [json.dumps(line | each | {"mean_return": 1.0}) + "\n" for each in numbers]
    metrics.write_text("".join(lines) + '{"batch')  # the run was killed while it wrote
    assert [point[1] for point in earlier_curve(metrics, 30)] == [10, 20, 30]
    assert earlier_curve(tmp_path / "none.jsonl", 30) == []
