"""What the user sees of a run that goes on: its numbers, a line or a panel of them, and the terminal left as it was."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from collectx.run.statistics import Sampler, Statistics
from collectx.run.terminal import display
from collectx.run.terminal.display import NUM_WORKERS_SHOWN, Progress, format_line, render_panel

SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(display, "REFRESH_S", 0.01)
    monkeypatch.setattr(display, "PLAIN_S", 0.01)


@pytest.fixture
def statistics(delivery):
    """Of one batch of 100 frames out of 1000."""
    made = Statistics(1000)
    made.add(delivery(0, {"frames": 100, "returns": [20.0]}, version=3), 0.0)
    return made


def test_now_is_over_the_last_seconds(statistics, delivery):
    sampler = Sampler(statistics, start_s=-1.0)
    assert sampler.view(0.0).now_per_s is None
    statistics.add(delivery(1, {"frames": 100, "timings": (0.0, 0.0, 1.0, 0.0)}), 1.0)
    view = sampler.view(1.0)
    assert (view.now_per_s, view.numbers.frames_per_s, view.elapsed_s) == (100.0, 100.0, 2.0)
    assert view.workers[0].frames_per_s == 100.0
    assert view.workers[0].shares == (0.0, 0.0, 1.0, 0.0)
    for second in range(2, 20):
        statistics.add(delivery(second), float(second))
        view = sampler.view(float(second))
    assert view.now_per_s == 10.0
    assert view.numbers.frames_per_s == pytest.approx(280 / 19)
    assert view.left_s == (1000 - 380) / 10


def test_two_views_of_one_moment_divide_by_no_time(statistics, delivery):
    sampler = Sampler(statistics, start_s=0.0)
    sampler.view(1.0)
    statistics.add(delivery(1, {"frames": 100}), 1.0)
    view = sampler.view(1.0)
    assert (view.now_per_s, view.workers[0].frames_per_s, view.elapsed_s) == (100.0, 0.0, 1.0)


def test_the_rate_falls_while_no_batch_comes(statistics, delivery):
    statistics.add(delivery(1, {"frames": 100}), 1.0)
    late, sampler = Sampler(statistics, start_s=0.0), Sampler(statistics, start_s=0.0)
    late.view(1.0)  # it has never seen fewer frames
    assert late.view(1001.0).now_per_s == 0.2
    sampler.view(1.0)
    statistics.add(delivery(2, {"frames": 100}), 2.0)
    rates = [sampler.view(float(second)).now_per_s for second in (2, 11, 101, 1001)]
    assert rates == [100.0, 10.0, 1.0, 0.1]
    statistics.add(delivery(3, {"frames": 100}), 1001.5)
    assert sampler.view(1002.0).now_per_s == pytest.approx(0.1, rel=0.01)
    assert len(sampler._samples) < 6


def test_the_rate_begins_again_where_a_restarted_job_has_fewer_frames(statistics, delivery):
    sampler = Sampler(statistics, start_s=0.0)
    statistics.add(delivery(1, {"frames": 900}), 1.0)
    assert [sampler.view(float(second)).now_per_s for second in (1, 2)] == [900.0, 900.0]
    resumed = Statistics(1000)
    resumed.add(delivery(0, {"frames": 100}), 100.0)
    statistics.__dict__.update(resumed.__dict__)
    assert sampler.view(100.0).now_per_s is None
    statistics.add(delivery(1, {"frames": 50}), 101.0)
    assert sampler.view(101.0).now_per_s == 50.0


def drawn(statistics, now_s):
    """The line and the panel."""
    view, console = Sampler(statistics, start_s=0.0).view(now_s), Console(file=io.StringIO(), width=120)
    console.print(render_panel(view))
    return format_line(view), console.file.getvalue()


def test_the_line_and_the_panel_have_all_of_it(statistics, delivery):
    statistics.scalars = {"loss": 0.0123}
    text, _ = drawn(statistics, 3675.0)
    for piece in ("[1:01:15] 100/1,000 frames", "-/s overall", "return 20 (1 episodes)", "wait 30%", "loss 0.0123"):
        assert piece in text
    # Of the last worker nothing was measured.
    parts = [{"worker": worker} for worker in range(NUM_WORKERS_SHOWN + 2)]
    statistics.add(delivery(1, *parts, {"worker": len(parts), "timings": [0.0] * 4}, version=3), 1.0)
    text, shown = drawn(statistics, 75.0)
    assert "lag 3.0" in text
    for piece in ("210 / 1,000 frames", "110/s overall", "1:15", "return 20", "40%", "+ 3 more", "loss 0.0123", "left"):
        assert piece in shown


WAITING, WORKING = (1.0, 1.0, 8.0, 0.0), (9.0, 0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("waited_s", "timings", "share", "words"),
    [
        (1.0, WAITING, 90, "bottleneck: trainer (workers idle 80%)"),
        (8.0, WORKING, 20, "bottleneck: workers (trainer idle 80%)"),
        (5.0, WORKING, 50, None),  # no side dominates
        (5.0, WAITING, 50, None),  # the workers wait for each other
    ],
)
def test_the_trainers_share_of_the_time_and_which_side_waits(delivery, waited_s, timings, share, words):
    statistics = Statistics(1000)
    for index in range(3):
        batch = delivery(index, {"timings": timings}, {"worker": 1, "timings": timings})
        # The first batch waits for the start of the workers, too.
        statistics.add(replace(batch, waited_s=waited_s if index else 100.0), 10.0 * index)
    for text in drawn(statistics, 30.0):
        assert re.search(rf"trainer .*\b{share}%", text)
        assert ("bottleneck" in text) == (words is not None)
        assert (words or "") in text


def test_a_return_that_may_end_the_run_makes_the_time_left_the_longest(delivery):
    for target, said in {None: "0:04 left", 475.0: "at most 0:04 left (until target_return=475)"}.items():
        statistics = Statistics(60, target)
        for index in range(2):
            statistics.add(delivery(index), float(index))
        for text in drawn(statistics, 1.0):
            assert said in text
            assert ("at most" in text) == (target is not None)


def test_how_many_workers_take_part_is_shown_where_not_all_do(statistics):
    assert not any("workers" in text for text in drawn(statistics, 1.0))
    statistics.taking_part = 3, 4
    assert all("3 of 4 workers" in text for text in drawn(statistics, 1.0))


@pytest.mark.parametrize(
    ("total_frames", "num_batches", "piece", "other"),
    [(1000, 0, "waiting for the first batch", "frames"), (-1, 2, "20 frames", "left")],
    ids=["before the first batch", "endless"],
)
def test_what_is_not_known_is_not_shown(delivery, total_frames, num_batches, piece, other):
    statistics = Statistics(total_frames)
    for index in range(num_batches):
        statistics.add(delivery(index), float(index))
    for text in drawn(statistics, 2.5):
        assert piece in text
        assert other not in text


def test_plain_lines_where_there_is_no_terminal(statistics, wait_until):
    out = io.StringIO()
    with Progress(statistics, Console(file=out, width=20)):
        wait_until(lambda: out.getvalue().count("\n") >= 2)
    assert all("100/1,000 frames" in line for line in out.getvalue().splitlines())
    assert "\x1b" not in out.getvalue()


def test_the_cursor_is_back_after_an_error(statistics, wait_until):
    out = io.StringIO()
    display = Progress(statistics, Console(file=out, width=100, force_terminal=True, color_system=None))
    with pytest.raises(KeyboardInterrupt), display:  # noqa: PT012, the block is what is tested
        wait_until(lambda: "100 / 1,000 frames" in out.getvalue())
        raise KeyboardInterrupt
    assert -1 < out.getvalue().rfind(HIDE_CURSOR) < out.getvalue().rfind(SHOW_CURSOR)
    assert not display._thread.is_alive()


def test_a_closed_pipe_ends_the_display_and_not_the_run(statistics, wait_until, capsys):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError("closed")

    with Progress(statistics, Console(file=Closed(), width=100)):
        wait_until(lambda: "progress display stopped" in capsys.readouterr().err)
