"""What the user sees of a run that goes on: its numbers, a line or a panel of them, and the terminal left as it was."""

import io
import re
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from composed_overrides import composed
from rich.console import Console

from collectx.config.derived import expected_frames
from collectx.errors import DataError, WorkerDied, printable, text_of, worker_of
from collectx.run import RunFolder
from collectx.run.folder.result import ALL_DELIVERED, Failure, Result, Status, type_name
from collectx.run.statistics import Curve, PartRates, RateWindow, Statistics, View
from collectx.run.terminal import display, printing
from collectx.run.terminal.display import (
    DETAILS_EVERY,
    NUM_WORKERS_SHOWN,
    Point,
    Progress,
    charts_of,
    format_details,
    format_error,
    format_line,
    render_panel,
    title_of,
)

SHOW_CURSOR, HIDE_CURSOR, ERASE_LINE = "\x1b[?25h", "\x1b[?25l", "\x1b[2K"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(display, "REFRESH_S", 0.01)
    monkeypatch.setattr(display, "PLAIN_S", 0.01)
    monkeypatch.setattr(display, "POINT_S", 0.02)


@pytest.fixture
def statistics(batch_info):
    """Returns the statistics after 100 of 1,000 frames, which were one batch."""
    made = Statistics(1000)
    made.add(batch_info(0, {"frames": 100, "returns": [20.0]}, version=3), 0.0)
    return made


def test_now_is_over_the_last_seconds(statistics, batch_info):
    window = RateWindow(statistics, start_s=-1.0)
    assert window.view(0.0).now_per_s is None
    statistics.add(batch_info(1, {"frames": 100, "timings": (0.0, 0.0, 1.0, 0.0)}), 1.0)
    view = window.view(1.0)
    assert (view.now_per_s, view.numbers.frames_per_s, view.elapsed_s) == (100.0, 100.0, 2.0)
    assert view.workers[0].frames_per_s == 100.0
    assert view.workers[0].shares == (0.0, 0.0, 1.0, 0.0)
    for second in range(2, 20):
        statistics.add(batch_info(second), float(second))
        view = window.view(float(second))
    assert view.now_per_s == 10.0
    assert view.numbers.frames_per_s == pytest.approx(280 / 19)
    assert view.left_s == (1000 - 380) / 10


def test_two_views_of_one_moment_divide_by_no_time(statistics, batch_info):
    window = RateWindow(statistics, start_s=0.0)
    window.view(1.0)
    statistics.add(batch_info(1, {"frames": 100}), 1.0)
    view = window.view(1.0)
    assert (view.now_per_s, view.workers[0].frames_per_s, view.elapsed_s) == (100.0, 100.0, 1.0)


def test_the_rate_falls_while_no_batch_comes(statistics, batch_info):
    statistics.add(batch_info(1, {"frames": 100}), 1.0)
    late, window = RateWindow(statistics, start_s=0.0), RateWindow(statistics, start_s=0.0)
    late.view(1.0)  # it has never seen fewer frames
    assert late.view(1001.0).now_per_s == 0.2
    window.view(1.0)
    statistics.add(batch_info(2, {"frames": 100}), 2.0)
    rates = [window.view(float(second)).now_per_s for second in (2, 11, 101, 1001)]
    assert rates == [100.0, 10.0, 1.0, 0.1]
    statistics.add(batch_info(3, {"frames": 100}), 1001.5)
    assert window.view(1002.0).now_per_s == pytest.approx(0.1, rel=0.01)


def test_the_rate_begins_again_where_a_restarted_job_has_fewer_frames(statistics, batch_info):
    window = RateWindow(statistics, start_s=0.0)
    statistics.add(batch_info(1, {"frames": 900}), 1.0)
    assert [window.view(float(second)).now_per_s for second in (1, 2)] == [900.0, 900.0]
    resumed = Statistics(1000)
    resumed.add(batch_info(0, {"frames": 100}), 100.0)
    statistics.__dict__.update(resumed.__dict__)
    assert window.view(100.0).now_per_s is None
    statistics.add(batch_info(1, {"frames": 50}), 101.0)
    assert window.view(101.0).now_per_s == 50.0


def drawn(statistics, now_s, width=120):
    """The lines and the panel."""
    view, console = RateWindow(statistics, start_s=0.0).view(now_s), Console(file=io.StringIO(), width=width)
    console.print(render_panel(view, "a title", None, "a foot"))
    return "\n".join([format_line(view), *format_details(view)]), console.file.getvalue()


def numbers(total=1000, target=None, **fields):
    """Returns the numbers of two batches of 100 frames, one second apart."""
    made = Statistics(total, target)
    sums = {"frames": 200, "batches": 2, "first_s": 0.0, "last_s": 1.0, "started": (0.0, 0.0), "_first_frames": 100}
    vars(made).update(sums | fields)
    return made


def rates(*waits):
    """Returns the rates of workers that wait for these shares of the time, one worker for each."""
    parts = ((wait, (1 - wait) / 2, (1 - wait) / 4) for wait in waits)
    return tuple(
        PartRates(i, 50.0 * (i + 1), (most, less, wait, less), i) for i, (wait, most, less) in enumerate(parts)
    )


VIEWS = {
    "nothing yet": View(numbers(started=None), 75.2, None),
    "one batch": View(numbers(last_s=0.0), 3.0, None),
    "endless": View(numbers(-1, mean_return=12.5, best_return=20.0, num_episodes=3), 3675.0, 12345.6),
    "the trainer waits": View(
        numbers(1000, 475.0, checkpoint_s=0.5, version=3, lag=1.25, scalars={"loss": 0.0123, "kl\x1b": 2.0}),
        *(10.0, 100.0, 0.4, rates(0.1, 0.3)),
    ),
    "the workers wait": View(numbers(taking_part=(3, 4)), 10.0, 100.0, 0.6, rates(0.6)),
    "neither waits": View(numbers(), 10.0, 100.0, 0.59, rates(0.6)),
    "all frames": View(numbers(frames=1001), 10.0, 100.0, 1.0),
    "no frames are wanted": View(numbers(0), 10.0, 100.0),
    "eight workers": View(numbers(), 10.0, 100.0, None, rates(*[0.5] * 8)),
    "nine workers": View(numbers(), 10.0, 100.0, 0.0, rates(*[0.5] * 9)),
}


def test_panels_and_lines(expected, monkeypatch):
    texts = []
    for name, view in VIEWS.items():
        console = Console(file=io.StringIO(), width=80)
        stage = {"nothing yet": "importing an env", "all frames": "waiting for evaluations"}.get(name, "")
        console.print(render_panel(view, "a title", None, "a foot", stage))
        lines = [format_line(view, stage), *format_details(view)]
        texts += [f"--- {name}", *map(str.rstrip, console.file.getvalue().splitlines()), *map(printable, lines)]
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: 130.0))
    for name in ("nothing yet", "endless", "the workers wait"):
        texts.append(f"--- {name}, in a sweep")
        console = Console(file=io.StringIO(), width=80)
        console.print(render_panel(VIEWS[name], point=Point("seed=2", 3, 5, 0, True, 1, 3, 100.0)))
        texts += map(str.rstrip, console.file.getvalue().splitlines())
    title = "a title that is as long as that of a run in a deep folder"
    for name, width in (("all frames", 50), ("the trainer waits", 40), ("the workers wait", 56)):
        texts.append(f"--- {name}, {width} columns, no foot")
        console = Console(file=io.StringIO(), width=width)
        point = None if name == "all frames" else Point("seed=2", 3, 5, 0, True, 1, 3, 100.0)
        console.print(render_panel(VIEWS[name], title, point=point))
        texts += map(str.rstrip, console.file.getvalue().splitlines())
    expected("panels", "\n".join(texts))


def test_the_first_point_of_a_sweep_is_not_taken_for_one_that_imports_again(monkeypatch):
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: 20.0))
    view = View(numbers(frames=500), 10.0, 100.0, begin_s=5.0)
    _, (_, elapsed, left) = Point("seed=0", 1, 3, 0, True, 0, 3, 10.0).bar(view)
    # 5 s for this point, and 10 s for each of the others.
    assert (elapsed, left) == ("elapsed 0:10", "ETA 0:25")
    _, (*_, left) = Point("seed=1", 2, 3, 0, True, 1, 2, 0.0, 5.0).bar(view)
    # Two points take 15 s until now, and 5 s from now.
    assert left == "ETA 0:15"


def test_the_lines_and_the_panel_have_all_of_it(statistics, batch_info):
    statistics.scalars = {"loss": 0.0123}
    text, _ = drawn(statistics, 3675.0)
    line = "[1:01:15] 100/1,000 frames (10%)  return 20  best 20"
    assert text.splitlines() == [
        line,
        "  1 episode | policy version 3, lag 3.0 | workers: env 10%, policy 20%, wait 30%, send 40%",
        "  loss 0.0123",
    ]
    # Of the last worker nothing was measured.
    parts = [{"worker": worker} for worker in range(NUM_WORKERS_SHOWN + 2)]
    statistics.add(batch_info(1, *parts, {"worker": len(parts), "timings": [0.0] * 4}, version=3), 1.0)
    text, shown = drawn(statistics, 75.0)
    assert "lag 3.0" in text
    pieces = (
        "210 / 1,000 frames (21%)",
        "110 overall",
        "elapsed 1:15",
        "return 20",
        "40%",
        "+ 3 more",
        "loss 0.0123",
        "ETA",
    )
    for piece in pieces:
        assert piece in shown
    first, *_, last = shown.splitlines()
    assert (first.strip(), last.strip()) == ("a title", "a foot")


def test_the_panel_and_the_lines_of_a_long_run_fit_in_80_columns(batch_info):
    statistics = Statistics(20_000_000, 475.0)
    for index in range(3):
        part = {"frames": 4_111_222, "returns": [-12345.678] * 200}
        statistics.add(batch_info(index, part, {"worker": 1, **part}, version=123_456), 10_000.0 * index)
    _, shown = drawn(statistics, 20_000.0, width=80)
    text = format_line(RateWindow(statistics, start_s=0.0).view(20_000.0))
    assert "frames (100%)  elapsed 5:33:20" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert len(text) < 100
    assert len(shown.splitlines()) == 9


def test_the_title_names_what_was_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["run", "experiment=cartpole_ppo", "seed=3"]
    assert title_of(composed("seed=3"), tmp_path / "a" / "b", argv) == "cartpole_ppo  CartPole-v1, ppo  seed 3  a/b"
    assert title_of(composed(), tmp_path.parent, []) == f"CartPole-v1, ppo  seed 0  {tmp_path.parent}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("collector.total_frames=1000", 1024),
        ("collector.total_frames=1024", 1024),
        ("collector.total_frames=1000 run.max_batches=1", 512),
        ("collector.total_frames=-1 run.max_batches=3", 1536),
        ("collector.total_frames=-1", -1),
    ],
)
def test_the_total_is_the_one_that_will_be_collected(words, expected):
    assert expected_frames(composed(f"{words} collector.frames_per_batch=512")) == expected


def test_the_best_return_is_of_complete_windows(batch_info):
    statistics, best = Statistics(-1), []
    for index, (count, value) in enumerate([(1, 500.0), (99, 20.0), (100, 60.0), (100, 10.0)]):
        statistics.add(batch_info(index, {"returns": [value] * count}), float(index))
        best.append(statistics.best_return)
    assert best == [500.0, 24.8, 60.0, 60.0]
    resumed = Statistics(-1)
    resumed.load(statistics.state(), 0.0)
    assert resumed.best_return == 60.0


def test_curves_are_drawn_where_there_is_room(statistics, batch_info):
    curve = Curve()
    curve.add(statistics)
    curve.add(statistics)
    statistics.add(batch_info(1, {"frames": 100}), 1.0)
    curve.add(statistics)
    assert curve == [(0.0, 100, 20.0), (1.0, 200, 20.0)]
    view = RateWindow(statistics, start_s=0.0).view(1.0)
    for width, height, is_drawn in ((80, 24, True), (80, 12, False), (56, 24, False), (56, 30, True)):
        console = Console(file=io.StringIO(), width=width, height=height)
        assert (charts_of(curve, console, view) is not None) == is_drawn


def test_a_resumed_run_starts_its_workers_before_it_shows_numbers(statistics):
    resumed = Statistics(1000)
    resumed.load(statistics.state(), 0.0)
    for text in drawn(resumed, 2.0):
        assert "waiting for the first batch" in text
        assert "100" not in text


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        (None, "waiting for the first batch\n"),
        ((1, 2), "waiting for the first batch (1 of 2 workers have stepped)\n"),
        ((2, 2), "collecting the first batch\n"),
    ],
)
def test_how_many_workers_step_before_the_first_batch(ready, words, wait_until):
    out = io.StringIO()
    progress = Progress(Statistics(1000), console=Console(file=out, width=80))
    progress.count_stepping = lambda: ready
    with progress:
        wait_until(lambda: words in out.getvalue())


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
def test_the_trainers_share_of_the_time_and_which_side_waits(batch_info, waited_s, timings, share, words):
    statistics = Statistics(1000)
    for index in range(3):
        batch = batch_info(index, {"timings": timings}, {"worker": 1, "timings": timings})
        # The first batch waits for the start of the workers, too.
        statistics.add(replace(batch, waited_s=waited_s if index else 100.0), 10.0 * index)
    for text in drawn(statistics, 30.0):
        assert re.search(rf"trainer.*\b{share}%", text)
        assert ("bottleneck" in text) == (words is not None)
        assert (words or "") in text


def test_waits_for_other_learners_are_neither_learning_nor_waits_for_workers(batch_info):
    statistics = Statistics(1000)
    window = RateWindow(statistics, 0.0)
    for index in range(3):
        # Of 10 s, the first learner waits 1 for its workers and 6 for the other one.
        batch = batch_info(index, {"timings": WAITING}, {"worker": 1, "timings": WAITING})
        learners = ((1.0, 6.0), (2.0, 7.0)) if index else ((0.0, 0.0), (0.0, 0.0))
        statistics.add(replace(batch, waited_s=1.0, learners=learners), 10.0 * index)
        view = window.view(10.0 * index)
    for seen in (view, window.summary(20.0)):
        (line,) = [line for line in format_details(seen) if "trainer: " in line]
        assert "trainer: learn 30% | bottleneck: learners wait for each other (65%)" in line


def test_waits_for_evaluations_are_not_waits_for_workers(batch_info):
    statistics = Statistics(1000)
    window = RateWindow(statistics, 0.0)
    for index in range(3):
        # Of 10 s, the trainer waits 8 for an evaluation and 1 for the batch.
        statistics.evaluation_s += 8.0 * (index > 0)
        statistics.add(replace(batch_info(index), waited_s=1.0), 10.0 * index)
        view = window.view(10.0 * index)
    statistics.evaluation_s += 20.0  # after the last batch
    for seen, learn, waits in ((view, 10, 80), (window.summary(40.0), 5, 90)):
        (line,) = [line for line in format_details(seen) if "trainer: " in line]
        assert f"trainer: learn {learn}% | bottleneck: evaluations (trainer waits {waits}%)" in line


@pytest.mark.parametrize(
    ("total_frames", "num_batches", "piece", "other"),
    [(1000, 0, "waiting for the first batch", "frames"), (-1, 2, "20 frames", "ETA")],
    ids=["before the first batch", "endless"],
)
def test_what_is_not_known_is_not_shown(batch_info, total_frames, num_batches, piece, other):
    statistics = Statistics(total_frames)
    for index in range(num_batches):
        statistics.add(batch_info(index), float(index))
    for text in drawn(statistics, 2.5):
        assert piece in text
        assert other not in text


def test_plain_lines_where_there_is_no_terminal(statistics, wait_until):
    out = io.StringIO()
    with Progress(statistics, console=Console(file=out, width=20)):
        wait_until(lambda: out.getvalue().count("\n") >= DETAILS_EVERY + 3)
    lines = out.getvalue().splitlines()
    # The details follow every tenth line, and the last one.
    details = [index for index, line in enumerate(lines) if line.startswith("  1 episode")]
    assert details[0] == DETAILS_EVERY
    assert details[-1] == len(lines) - 1
    assert all("100/1,000 frames" in line for index, line in enumerate(lines) if index not in details)
    assert "\x1b" not in out.getvalue()


def test_the_cursor_is_back_after_an_error(statistics, wait_until):
    out = io.StringIO()
    display = Progress(statistics, console=Console(file=out, width=100, force_terminal=True, color_system=None))
    with pytest.raises(KeyboardInterrupt), display:  # noqa: PT012, the block is what is tested
        wait_until(lambda: "100 / 1,000 frames" in out.getvalue())
        raise KeyboardInterrupt
    assert -1 < out.getvalue().rfind(HIDE_CURSOR) < out.getvalue().rfind(SHOW_CURSOR)
    assert "collectx-progress" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_happens_after_a_signal_is_said_below_the_display(statistics, wait_until, is_terminal):
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=is_terminal, color_system=None)
    with Progress(statistics, console=console) as progress:
        wait_until(lambda: "100/1,000" in out.getvalue() or "Ctrl-C saves and stops" in out.getvalue())
        progress.say_below("stopping")
        wait_until(lambda: "stopping" in out.getvalue())
    assert ("collectx: stopping\n" in out.getvalue()) == (not is_terminal)
    assert "Ctrl-C" not in out.getvalue().partition("stopping")[2]


@pytest.mark.parametrize("point", [None, Point("seed=2", 3)])
def test_the_picture_of_a_point_does_not_stay(statistics, point):
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    with Progress(statistics, console=console, point=point):
        pass
    # Removed lines are erased from below.
    assert (ERASE_LINE in out.getvalue().rpartition("frames/s")[2]) == (point is not None)


def test_a_point_that_takes_long_prints_lines_with_its_name(statistics, wait_until):
    out = io.StringIO()
    point = Point("seed=2", 3, 12, width=8)
    with Progress(statistics, console=Console(file=out), point=point) as progress:
        wait_until(lambda: "\n" in out.getvalue())
        progress.say("worker 1 was restarted")
        with printing.telling_once():
            for _ in range(2):
                progress.explain("all points share this")
    lines = out.getvalue().splitlines()
    assert re.fullmatch(r"\[ 3/12\] seed=2    \[0:00\] 100/1,000 frames .*", lines[0])
    assert "collectx: seed=2: worker 1 was restarted" in lines
    assert lines.count("collectx: all points share this") == 1


def test_points_that_run_at_the_same_time_share_a_terminal(statistics, monkeypatch):
    monkeypatch.setattr(display, "POINT_S", 60.0)
    out = io.StringIO()
    with Progress(statistics, console=Console(file=out, force_terminal=True), point=Point("0", 1, is_alone=False)):
        pass
    assert out.getvalue() == ""


def test_a_closed_pipe_ends_the_display_and_not_the_run(statistics, wait_until, capsys):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError("closed")

    with Progress(statistics, console=Console(file=Closed(), width=100)):
        wait_until(lambda: "the progress display stopped" in capsys.readouterr().err)


def test_an_error_with_a_note_shows_the_line_that_raised_it():
    try:
        {}["level_path"]
    except KeyError as raised:
        raised.add_note(
            "raised while Level() was making an env in this process, to learn its observation and action spaces"
        )
        lines = format_error(raised).splitlines()
    assert lines[:2] == [
        "KeyError: 'level_path'",
        "  raised while Level() was making an env in this process, to learn its observation and action spaces",
    ]
    assert lines[2].startswith(f"  raised in {__file__}:")


def test_an_error_outside_of_the_users_code_shows_its_notes_only():
    """A line of torch or of collectx says nothing to the user; the trainer's log has it."""
    try:
        torch.nn.Linear(3, 2)(torch.zeros(2, 4))
    except RuntimeError as raised:
        raised.__traceback__ = raised.__traceback__.tb_next  # without the frame of this file
        raised.add_note("raised when the policy was called once: observation [2, 4]")
        lines = format_error(raised).splitlines()
    assert lines[1:] == ["  raised when the policy was called once: observation [2, 4]"]


def test_errors_of_collectx_are_named_without_their_module():
    assert format_error(DataError("3 numbers")) == "DataError: 3 numbers"
    assert format_error(io.UnsupportedOperation("no pipe")) == "io.UnsupportedOperation: no pipe"
    ours = Path(display.__file__).parents[2] / "env" / "gym.py"
    error = OSError("no license")
    error.add_note(
        f'raised in worker 1\nTraceback (most recent call last):\n  File "{ours}", line 7, in step\n    step(action)\n'
        '  File "/mine/env.py", line 3, in step\n    raise OSError\n    ^^^^^^^\nOSError: no license\n'
    )
    theirs = '    File "/mine/env.py", line 3, in step\n      raise OSError'
    assert format_error(error) == f"OSError: no license\n  raised in worker 1\n{theirs}"


def ended(folder, status, reason, batches=1, errors=(), wall_s=5.25):
    numbers = {"frames": 1234, "batches": batches, "wall_s": wall_s, "checkpoint_s": 0.0, "start_s": 1.0}
    numbers |= {"frames_per_s": 617.0, "mean_return": None, "num_episodes": 0, "digest": None}
    return Result(
        status,
        reason,
        **numbers,
        failures=tuple(Failure(type_name(each), text_of(each), worker_of(each)) for each in errors),
        folder=folder,
    )


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_what_is_printed_at_the_end_of_a_run(tmp_path, monkeypatch, capsys, expected, has_checkpoint):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RunFolder, "has_checkpoint", has_checkpoint)
    folder, texts = tmp_path / "my run", []
    failures = [DataError("3 numbers"), WorkerDied("worker 0 is gone")]
    for status, reason, batches, errors in (
        (Status.COMPLETED, ALL_DELIVERED, 3, []),
        (Status.COMPLETED, "enough", 3, []),
        (Status.INTERRUPTED, "interrupted by SIGINT", 3, []),
        (Status.INTERRUPTED, "interrupted by SIGINT", 0, []),
        (Status.FAILED, "DataError: 3 numbers", 3, failures),
        (Status.FAILED, "DataError: 3 numbers", 0, failures[:1]),
    ):
        # How to save checkpoints helps only a run of more than a minute.
        wall_s = 75.25 if status is Status.INTERRUPTED else 5.25
        result = ended(folder, status, reason, batches, errors, wall_s)
        display.print_result(result, errors, folder / "trainer.log")
        out, err = capsys.readouterr()
        texts += [f"--- {status}, {batches} batches: {reason}", err.strip("\n"), out.strip("\n")]
    point = Point("seed=2", 3, 12, width=8)
    for status, reason, errors in (
        (Status.COMPLETED, "3 batches delivered (run.max_batches=3)", []),
        (Status.COMPLETED, "enough", []),
        (Status.INTERRUPTED, "interrupted by SIGINT", []),
        (Status.FAILED, "DataError: 3 numbers", failures[:1]),
    ):
        display.print_result(ended(folder, status, reason, 3, errors), errors, folder / "trainer.log", point)
        out, err = capsys.readouterr()
        texts += [f"--- a point, {status}: {reason}", err + out.rstrip("\n")]
    display.print_completed(ended(folder, Status.COMPLETED, ALL_DELIVERED), (), point)
    texts += ["--- what was printed of completed runs", capsys.readouterr().out.rstrip("\n")]
    for reason in (ALL_DELIVERED, "3 batches delivered (run.max_batches=3)"):
        display.print_completed(ended(folder, Status.COMPLETED, reason))
        texts.append(capsys.readouterr().err.strip("\n"))
    expected(
        f"ends-{'with' if has_checkpoint else 'without'}-checkpoint", "\n".join(texts).replace(str(tmp_path), "CWD")
    )


def test_errors_are_appended_to_the_log(tmp_path, capsys):
    log = tmp_path / "trainer.log"
    display.log_errors([], log)
    assert not log.exists()
    for message in ("one", "two"):
        display.log_errors([ValueError(message), KeyError(message)], log)
    assert log.read_text().splitlines() == ["ValueError: one", "KeyError: 'one'", "ValueError: two", "KeyError: 'two'"]
    display.log_errors([ValueError("three")], tmp_path)
    assert capsys.readouterr().err.startswith(f"collectx: cannot write {tmp_path}: [Errno 21] Is a directory")
