"""The search of `collectx tune`, with measurements by a function and a clock that they advance."""

import itertools
import random
from dataclasses import replace

import pytest
from batch_lines import batch_line
from composed_overrides import composed

from collectx import tune
from collectx.cli import tune as command
from collectx.config.schema.run import TuneConfig
from collectx.errors import ConfigError
from collectx.run import cores

OPTIONS = TuneConfig(minutes=5.0, seconds=2.0, warmup_s=1.0, exact=None)
POINTS = [{"collector.num_workers": workers, "env.num_envs": envs} for workers in (2, 1, 4, 8) for envs in (8, 4, 16)]


class Machine:
    """Measures `speed(values)` with a spread, 6 s for each; `said` has the points in the order of measurement."""

    def __init__(self, speed, spread=0.02):
        self.speed, self.spread = speed, spread
        self.now_s = 0.0
        self.said = []
        self._random = random.Random(1)

    def __call__(self, values):
        self.now_s += 6.0
        self.said.append(tuple(values.items()))
        return self.speed(values) * self._random.uniform(1 - self.spread, 1 + self.spread)

    def search(self, options=OPTIONS, is_valid=lambda values: True, points=POINTS):
        return tune.search(points, is_valid, self, options, lambda line: None, lambda: self.now_s)


def workers_and_envs(values):
    return 1000.0 * values["collector.num_workers"] + 10 * values["env.num_envs"]


def test_the_fastest_point_is_found_and_measured_beside_the_configuration_as_given():
    machine = Machine(workers_and_envs)
    found = machine.search()
    assert found.best.values == {"collector.num_workers": 8, "env.num_envs": 16}
    assert found.chosen is found.best
    mean, low, high = found.gain
    assert low < 8160 / 2080 < high
    assert 1 < low < mean
    last = [dict(values) for values in machine.said[-6:]]
    assert sorted(last[::2] + last[1::2], key=str) == sorted([POINTS[0], found.best.values] * 3, key=str)
    assert machine.now_s <= 60 * OPTIONS.minutes


def test_each_round_keeps_the_faster_half_and_measures_its_points_in_turns():
    machine = Machine(workers_and_envs)
    found = machine.search()
    dropped = [point for point in found.points if point.status == "dropped"]
    assert len(dropped) == len(POINTS) - 2  # all but the fastest and your settings
    assert [len(point.rates) for point in dropped].count(2) == len(POINTS) / 2
    assert min(len(point.rates) for point in dropped) == 2
    for point in dropped:
        turns = [index for index, said in enumerate(machine.said) if dict(said) == point.values]
        assert all(second > first + 1 for first, second in itertools.pairwise(turns[:2]))


def test_a_grid_for_which_there_is_no_time_is_tried_in_part():
    workers = range(1, 101)
    points = [{"collector.num_workers": count, "env.num_envs": envs} for count in workers for envs in (1, 2, 4)]
    machine = Machine(workers_and_envs)
    found = machine.search(points=points)
    # 5 minutes are 50 measurements: 6 at the end, and half of the rest in the first round.
    assert 20 <= len(found.points) <= 25
    assert found.best.values["collector.num_workers"] > 80
    assert machine.now_s <= 60 * OPTIONS.minutes + 6


def test_a_gain_within_the_noise_is_not_taken():
    found = Machine(lambda values: 1000.0, spread=0.3).search()
    assert found.gain is None or found.gain[1] < 1
    assert found.chosen is found.points[0]
    assert found.chosen.values == POINTS[0]


def test_points_that_fail_or_break_a_rule_are_left_out():
    def speed(values):
        if values["collector.num_workers"] == 8:
            raise tune.Failed("no memory")
        return workers_and_envs(values)

    asked = []

    def is_valid(values):
        asked.append(values)
        return values["env.num_envs"] != 16

    machine = Machine(speed)
    found = machine.search(is_valid=is_valid)
    assert found.best.values == {"collector.num_workers": 4, "env.num_envs": 8}
    assert {point.status for point in found.points if point.values["collector.num_workers"] == 8} == {
        "failed: no memory"
    }
    assert all(dict(said)["env.num_envs"] != 16 for said in machine.said)
    assert len(asked) == len(POINTS) - 1  # all but the first, each once
    with pytest.raises(ConfigError, match="your settings cannot be measured: no memory"):
        machine.search(points=POINTS[::-1])


@pytest.mark.parametrize("measurement", [2, 3, 4])
def test_settings_that_fail_when_they_are_measured_again_are_not_kept(measurement):
    measured = []

    def speed(values):
        measured.append(values)
        if values == POINTS[0] and measured.count(values) == measurement:
            raise tune.Failed("no memory")
        return workers_and_envs(values)

    found = Machine(speed).search()
    assert found.points[0].status == "failed: no memory"
    assert found.chosen is found.best is not found.points[0]
    assert command._verdict(found).startswith(
        "your settings failed when they were measured again (failed: no memory), so "
    )


def test_little_time_is_enough_for_the_configuration_as_given_and_one_other():
    machine = Machine(workers_and_envs)
    found = machine.search(replace(OPTIONS, minutes=0.01))
    assert len(found.points) > 1
    assert len(machine.said) in (2, 8)
    assert found.best is found.points[0] or found.gain is not None


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(cores, "num_cores", lambda: 8)


@pytest.mark.usefixtures("eight_cores")
def test_an_exact_search_keeps_rows_and_lag():
    cfg = composed("collector=multi_sync")
    points = tune.space(cfg, [], exact=True)
    assert points[0] == {
        **{"env.num_envs": 8, "collector.num_workers": 2, "launcher.num_threads": 1, "inference": "local"},
    }
    assert {point["env.num_envs"] * point["collector.num_workers"] for point in points} == {16}
    assert {point["collector.num_workers"] for point in points} == {1, 2, 4, 8, 16}
    assert [tune.changes(cfg, point) for point in points if tune.changes(cfg, point)] == []
    wide = tune.space(cfg, [], exact=False)
    assert {point["collector.overlap"] for point in wide} == {0, 1}
    assert all(512 % (point["env.num_envs"] * point["collector.num_workers"]) == 0 for point in wide)
    changed = {"env.num_envs": 16, "collector.num_workers": 4, "collector.overlap": 1}
    assert tune.changes(cfg, changed) == [
        "a batch has 64 rows of 8 steps, instead of 16 of 32",
        "the lag of a batch is 1, instead of 0",
    ]


@pytest.mark.usefixtures("eight_cores")
def test_the_options_of_async_workers():
    cfg = composed("collector=multi_async trainer=impala")
    assert {point["collector.num_slots"] for point in tune.space(cfg, [], exact=False)} == {1, 2, 4}
    exact = tune.space(cfg, [], exact=True)
    assert {*exact[0]} == {"collector.num_workers", "launcher.num_threads", "inference"}
    assert "in flight" in tune.changes(cfg, {"collector.num_workers": 4})[0]


@pytest.mark.usefixtures("eight_cores")
def test_what_the_user_gives_is_not_searched():
    cfg = composed("collector=multi_sync collector.num_workers=4 inference=server collector.frames_per_batch=1024")
    points = tune.space(cfg, ["collector", "collector.num_workers", "inference"], exact=False)
    assert {*points[0]} == {"env.num_envs", "launcher.num_threads", "collector.overlap"}
    # Two threads for each core are tried at most.
    few = composed("collector=multi_sync collector.num_workers=4 launcher.num_threads=1")
    threads = {point["launcher.num_threads"] for point in tune.space(few, ["collector.num_workers"], exact=True)}
    assert threads == {1, 2, 4}
    many = composed("collector=multi_sync collector.num_workers=64 launcher.num_threads=4")
    fixed = tune.space(many, ["collector.num_workers"], exact=True)
    assert {(point["launcher.num_threads"], point["inference"]) for point in fixed} == {
        (4, "local"),
        (1, "local"),
        (1, "server"),
    }
    with pytest.raises(ConfigError, match=r"nothing is left to search: .*num_envs.*tune.exact=false to also"):
        tune.space(composed("collector=single"), ["env.num_envs"], exact=True)
    with pytest.raises(
        ConfigError, match=r"tune cannot use launcher=slurm, because it measures on the machine where it runs"
    ):
        tune.space(composed("launcher=slurm"), [], exact=True)


def test_the_window_of_a_measurement():
    lines = [batch_line(time=100 + 0.5 * index, frames=64 * (index + 1) + 1000 * (index > 1)) for index in range(8)]
    assert tune.window_rate(lines, 1.0, 2.0) == 128.0
    assert tune.window_rate(lines, 1.0, 2.6) is None
    assert tune.window_rate(lines[:4], 1.0, 0.0) is None  # only one batch later
    assert tune.window_rate([], 1.0, 0.0) is None


SPACES = [
    ("collector=multi_sync", [], True),
    ("collector=multi_sync env.num_envs=3 collector.num_workers=3 collector.frames_per_batch=9", [], True),
    ("collector=multi_sync trainer=meter policy=random", ["env.num_envs"], False),
    (
        "collector=multi_sync launcher.num_threads=3 collector.frames_per_batch=48",
        ["inference", "collector.overlap"],
        False,
    ),
    (
        "collector=multi_async trainer=impala env.num_envs=2 collector.num_slots=3",
        ["launcher.num_threads", "inference"],
        False,
    ),
    ("collector=multi_async trainer=impala env.num_envs=1", ["inference", "launcher.num_threads"], True),
    ("collector=single trainer=meter policy=random env.num_envs=4 collector.frames_per_batch=12", [], False),
    ("launcher=inline trainer=meter policy=random", [], False),
    ("collector=distributed_sync", ["collector.num_workers"], False),
    ("collector=multi_sync env.num_envs=1 collector.num_workers=1 collector.frames_per_batch=1", [], False),
    ("collector=single", [], True),
    ("collector=multi_sync", ["env.num_envs", "collector.num_workers", "launcher.num_threads", "inference"], True),
    ("launcher=inline trainer=meter policy=random", ["env.num_envs", "collector.num_workers"], False),
    ("launcher=submitit", [], True),
]


@pytest.mark.parametrize("num_cores", [1, 4])
def test_whole_spaces(num_cores, expected, monkeypatch):
    """Each with the values that a point changes for the trainer, in the words of the verdict."""
    monkeypatch.setattr(cores, "num_cores", lambda: num_cores)
    text = []
    for line, fixed, exact in SPACES:
        cfg = composed(line)
        text.append(f"{line}, without {fixed}{', exact' if exact else ''}")
        try:
            points = tune.space(cfg, fixed, exact)
        except ConfigError as error:
            text.append(f"  ! {error}")
            continue
        text.append(f"  {' '.join(tune.words(points[0]))}")
        text.append("  " + " | ".join(" ".join(map(str, point.values())) for point in points))
        text += sorted({f"  {each}" for point in points for each in tune.changes(cfg, point)})
    expected(f"spaces of {num_cores} cores", "\n".join(text))


def test_whole_searches(expected):
    """The test compares what is said about each measurement, in its order, and the result."""
    grid = [{"collector.num_workers": workers, "env.num_envs": envs} for workers in (2, 1, 4) for envs in (8, 4, 16)]

    def slow(values):
        return 6.0 - values["collector.num_workers"]

    def fails_late(values):
        if values["env.num_envs"] == 16 and machine.said.count(tuple(values.items())) > 2:
            raise tune.Failed("the run ended with status 1")
        return workers_and_envs(values)

    def fails(values):
        if values != grid[0]:
            raise tune.Failed("no memory")
        return 1000.0

    cases = {
        "everything": (workers_and_envs, grid, 5.0, None),
        "one more than yours": (workers_and_envs, grid[:2], 5.0, None),
        "nothing but yours": (workers_and_envs, grid[:1], 5.0, None),
        "yours are the fastest": (slow, grid[3:5] + grid[:3], 1.0, None),
        "little time": (workers_and_envs, grid, 1.5, None),
        "hardly any time": (workers_and_envs, grid, 0.05, None),
        "the best fails beside yours": (fails_late, grid, 5.0, None),
        "all others fail": (fails, grid, 5.0, None),
        "all others are refused": (workers_and_envs, grid, 5.0, grid[0]),
    }
    text = []
    for name, (speed, points, minutes, only) in cases.items():
        machine, said = Machine(speed, spread=0.0), []
        result = tune.search(
            points,
            lambda values, only=only: only is None or values == only,
            machine,
            replace(OPTIONS, minutes=minutes),
            said.append,
            lambda machine=machine: machine.now_s,
        )
        assert result.num_refused == (0 if only is None else len(points) - 1)
        gain = result.gain and [round(each, 4) for each in result.gain]
        text += [f"=== {name}", *said, f"best {result.best}, gain {gain}, chosen {result.chosen}"]
        text += [f"  {point}: {point.status}, {len(point.rates)} measurements" for point in result.points]
    expected("searches", "\n".join(text))


@pytest.mark.parametrize(
    ("times", "warmup_s", "seconds", "rate"),
    [
        ([0, 1, 2], 0.0, 2.0, 10.0),
        ([0, 1, 2], 0.0, 2.1, None),
        ([0, 1, 2], 0.5, 0.5, None),
        ([0, 1, 2, 3], 1.0, 2.0, 10.0),
        ([0, 1, 2, 3], 1.1, 1.0, None),
        ([0, 1, 2, 4], 0.0, 4.0, 7.5),
        ([5, 6, 8], 0.0, 3.0, 20 / 3),
        ([5], 0.0, 0.0, None),
    ],
)
def test_rates_at_the_limits_of_the_window(times, warmup_s, seconds, rate):
    lines = [batch_line(time=time, frames=10 * (index + 3)) for index, time in enumerate(times)]
    assert tune.window_rate(lines, warmup_s, seconds) == (rate and pytest.approx(rate))
