import io

import pytest
from rich.console import Console

from collectx.run.statistics import Statistics
from collectx.run.view import NUM_WORKERS_SHOWN, Sampler, line, panel


def drawn(statistics, now_s):
    """The line and the panel."""
    view, console = Sampler(statistics, start_s=0.0).view(now_s), Console(file=io.StringIO(), width=120)
    console.print(panel(view))
    return line(view), console.file.getvalue()


def test_before_the_first_batch():
    text, shown = drawn(Statistics(1000), 2.5)
    assert text == "[0:02] waiting for the first batch"
    assert "waiting for the first batch" in shown


def test_now_is_over_the_last_seconds(statistics, delivery):
    sampler = Sampler(statistics, start_s=-1.0)
    assert sampler.view(0.0).now_per_s is None
    statistics.add(delivery(1, {"frames": 100, "timings": (0.0, 0.0, 1.0, 0.0)}), 1.0)
    view = sampler.view(1.0)
    assert (view.now_per_s, view.overall_per_s, view.elapsed_s) == (100.0, 100.0, 2.0)
    assert view.workers[0].frames_per_s == 100.0
    assert view.workers[0].shares == (0.0, 0.0, 1.0, 0.0)
    for second in range(2, 20):
        statistics.add(delivery(second), float(second))
        view = sampler.view(float(second))
    assert view.now_per_s == 10.0
    assert view.overall_per_s == pytest.approx(280 / 19)
    assert view.left_s == (1000 - 380) / 10


def test_the_line_and_the_panel_have_all_of_it(statistics, delivery):
    statistics.scalars = {"loss": 0.0123}
    text, _ = drawn(statistics, 3675.0)
    for piece in ("[1:01:15] 100/1,000 frames", "-/s overall", "return 20 (1 episodes)", "wait 30%", "loss 0.0123"):
        assert piece in text
    statistics.add(delivery(1, *({"worker": worker} for worker in range(NUM_WORKERS_SHOWN + 3)), version=3), 1.0)
    text, shown = drawn(statistics, 75.0)
    assert "lag 3.0" in text
    for piece in ("210 / 1,000 frames", "110/s overall", "1:15", "return 20", "40%", "+ 3 more", "loss 0.0123", "left"):
        assert piece in shown


def test_an_endless_run_has_no_end(statistics, delivery):
    statistics.total_frames = -1
    statistics.add(delivery(1), 1.0)
    text, shown = drawn(statistics, 1.0)
    assert "left" not in text + shown
    assert "110 frames" in shown
