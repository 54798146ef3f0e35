import io

import pytest
from rich.console import Console

from collectx.run.statistics import Statistics
from collectx.run.view import NUM_WORKERS_SHOWN, Sampler, clock, line, number, panel


def drawn(view):
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    console.print(panel(view))
    return console.file.getvalue()


@pytest.fixture
def statistics(part, delivery):
    made = Statistics(1000)
    made.add(delivery(0, [part(worker=0, frames=100, returns=[20.0])], version=3), 0.0)
    return made


def test_before_the_first_batch():
    view = Sampler(Statistics(1000), start_s=0.0).view(2.5)
    assert line(view) == "[0:02] waiting for the first batch"
    assert "waiting for the first batch" in drawn(view)


def test_now_is_over_the_last_seconds(statistics, part, delivery):
    sampler = Sampler(statistics, start_s=-1.0)
    assert sampler.view(0.0).now_per_s is None
    statistics.add(delivery(1, [part(worker=0, frames=100, timings=(0.0, 0.0, 1.0, 0.0))]), 1.0)
    view = sampler.view(1.0)
    assert (view.now_per_s, view.overall_per_s, view.elapsed_s) == (100.0, 100.0, 2.0)
    assert view.workers[0].frames_per_s == 100.0
    assert view.workers[0].shares == (0.0, 0.0, 1.0, 0.0)
    for second in range(2, 20):
        statistics.add(delivery(second, [part(worker=0, frames=10)]), float(second))
        view = sampler.view(float(second))
    assert view.now_per_s == 10.0
    assert view.overall_per_s == pytest.approx(280 / 19)
    assert view.left_s == (1000 - 380) / 10


def test_the_line_has_all_of_it(statistics):
    statistics.scalars = {"loss": 0.0123}
    text = line(Sampler(statistics, start_s=0.0).view(75.0))
    for piece in ("[1:15] 100/1,000 frames", "return 20 (1 episodes)", "lag 3.0", "wait 30%", "loss 0.0123"):
        assert piece in text


def test_the_panel_has_all_of_it(statistics, part, delivery):
    statistics.scalars = {"loss": 0.0123}
    parts = [part(worker=worker) for worker in range(NUM_WORKERS_SHOWN + 3)]
    statistics.add(delivery(1, parts, version=3), 1.0)
    text = drawn(Sampler(statistics, start_s=0.0).view(1.0))
    for piece in ("210 / 1,000 frames", "110/s overall", "return 20", "40%", "+ 3 more", "loss 0.0123", "left"):
        assert piece in text


def test_an_endless_run_has_no_end(statistics):
    statistics.total_frames = -1
    view = Sampler(statistics, start_s=0.0).view(1.0)
    assert view.left_s is None
    assert "left" not in line(view) + drawn(view)


@pytest.mark.parametrize(("value", "text"), [(59.9, "0:59"), (75, "1:15"), (3675, "1:01:15")])
def test_clock(value, text):
    assert clock(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (float("nan"), "-"), (12345.6, "12,346"), (3.14159, "3.14"), (0.00021, "0.00021")]
)
def test_number(value, text):
    assert number(value) == text
