"""Jobs that are followed to their end, with a stand-in for SLURM: requeued ones, what Ctrl-C and SIGTERM do, and what
is shown of several runs."""

import itertools
import json
import os
import re
import signal
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from composed_overrides import composed
from stand_in_slurm import start

from collectx.jobs import watcher
from collectx.jobs.status import NamedRun, RunStatus
from collectx.jobs.watcher import RunsDisplay, WatchedRun
from collectx.run import Status, statistics
from collectx.run.folder.files import write_json
from collectx.run.statistics import RateWindow


def test_a_requeued_job_is_followed_to_its_last_end(queue, monkeypatch):
    lives = iter(["COMPLETING", "COMPLETING", "PENDING", "RUNNING", "RUNNING", "COMPLETED"])

    def next_life(seconds: float) -> None:
        queue.states["100"] = next(lives, "COMPLETED")
        queue.write_result(Path("point0"), "completed" if queue.states["100"] == "COMPLETED" else "interrupted")

    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=next_life))
    assert [ended.status for ended in start("launcher.requeue=true seed=2").results] == ["completed"]


def test_the_progress_of_a_requeued_job_begins_again(queue, monkeypatch, capsys):
    lives, begun = iter(["RUNNING", "RUNNING", "PENDING", "RUNNING", "COMPLETED"]), []

    def sampler(statistics, start_s):
        begun.append(start_s)
        return RateWindow(statistics, start_s)

    def next_life(seconds: float) -> None:
        queue.states["100"] = next(lives, "COMPLETED")
        if queue.states["100"] == "COMPLETED":
            queue.write_result(Path("point0"), "completed")

    queue.is_held = True
    monkeypatch.setattr(watcher, "PLAIN_S", 0)
    monkeypatch.setattr(watcher, "RateWindow", sampler)
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=next_life))
    assert [ended.status for ended in start("launcher.requeue=true").results] == ["completed"]
    # When the job was submitted, has started, waited again, and started again.
    assert len(begun) == 4
    assert begun == sorted(set(begun))
    lines = capsys.readouterr().out.splitlines()
    waiting = [index for index, line in enumerate(lines) if line == "[0:00] waiting for the first batch"]
    changes = [index for index, line in enumerate(lines) if line.startswith("collectx: job 100 is ")]
    assert [lines[index].split()[4] for index in changes] == ["queued", "running", "queued", "running"]
    # There is no progress of a job in the queue.
    assert [sum(first < index < last for index in waiting) for first, last in itertools.pairwise(changes)] == [0, 2, 0]


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
@pytest.mark.parametrize("points", [1, 2])
def test_a_damaged_file_of_a_run_is_told_once_and_all_runs_are_followed(queue, monkeypatch, capsys, name, points):
    ticks, damaged = iter(range(100)), Path("point0", name)

    def look_on(seconds: float) -> None:
        tick = next(ticks)
        if tick < 2:
            queue.states |= dict.fromkeys(queue.states, "RUNNING")
            with open(damaged, "a") as file:
                file.write('{"event": "worker_joined"}\n{"frames": 1, "bat\0\0\n{}\n')
        else:
            for job, folder in queue.folders.items():
                queue.states[job] = "COMPLETED"
                queue.write_result(folder, "completed")

    queue.is_held = True
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=look_on))
    options = "collector.on_worker_failure=restart"
    assert [ended.status for ended in start(*[options] * points).results] == ["completed"] * points
    assert capsys.readouterr().out.count(f"{damaged.absolute()} is damaged: line 2 is not JSON") == 1


def test_a_damaged_run_without_a_result_is_shown_without_numbers(queue, monkeypatch, capsys):
    def end(seconds: float) -> None:
        Path("point0", "metrics.jsonl").write_text("{}\n")
        queue.states["100"] = "CANCELLED"

    queue.is_held = True
    monkeypatch.setattr(watcher, "_SETTLE_S", 0.0)
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=end))
    assert [ended.status for ended in start("").results] == ["interrupted"]
    assert "a line has no 'batch'; collectx keeps following the run" in capsys.readouterr().out


def test_a_requeued_job_has_no_rate_before_its_next_batch(tmp_path):
    line = {"time": 0.0, "frames_per_s": 2000.0, "waited_s": 0.0, "version": 0, "lag": 0.0, "mean_return": None}
    run = watcher.WatchedRun(NamedRun("run", tmp_path, composed()), "100")

    def deliver(batch: int) -> None:
        with open(run.run_folder.metrics, "a") as file:
            file.write(f"{json.dumps(line | {'batch': batch, 'frames': 100 * (batch + 1)})}\n")

    deliver(0)
    run.begin(10.0, is_restart=True)
    assert run.window.view(11.0).now_per_s is None
    deliver(1)
    run.statistics.update()
    assert run.window.view(12.0).now_per_s == 100.0


@pytest.mark.parametrize("batches", [0, 1])
def test_a_terminal_shows_the_queue_then_the_progress(queue, monkeypatch, capsys, batches):
    monkeypatch.setenv("TERM", "xterm")
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    lives = iter(["PENDING", "RUNNING", "RUNNING", "COMPLETED"])
    line = {"batch": 0, "time": 0.0, "frames": 321, "frames_per_s": None, "waited_s": 0.0, "version": 0, "lag": 0.0}

    def next_life(seconds: float) -> None:
        queue.states["100"] = next(lives, "COMPLETED")
        if queue.states["100"] == "RUNNING":
            Path("point0", "metrics.jsonl").write_text(f"{json.dumps(line | {'mean_return': None})}\n" * batches)
        if queue.states["100"] == "COMPLETED":
            queue.write_result(Path("point0"), "completed")

    queue.is_held = True
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=next_life))
    assert [ended.status for ended in start("").results] == ["completed"]
    out = capsys.readouterr().out
    parts = ["job 100 has been in the queue for 0:00", "321" if batches else "waiting for the first batch", "completed"]
    assert [out.find(part) for part in parts] == sorted(out.find(part) for part in parts)
    assert min(out.find(part) for part in parts) >= 0
    assert "Ctrl-C asks whether to cancel" in out


def test_an_old_result_of_a_requeued_job_is_no_reason_to_ask_at_every_refresh(queue, monkeypatch):
    asked, ticks, result = [], iter(range(100)), Path("point0", "result.json")

    def look_on(seconds: float) -> None:
        tick = next(ticks)
        if tick in (0, 8):
            queue.states["100"] = "COMPLETED" if tick else "PENDING"
            queue.write_result(Path("point0"), "completed" if tick else "interrupted")
            os.utime(result, ns=(tick, tick))
        assert tick < 10

    squeue = queue.squeue
    monkeypatch.setattr(queue, "squeue", lambda command: asked.append(command) or squeue(command))
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=look_on))
    for name in ("_MIN_QUERY_S", "_MAX_QUERY_S"):
        monkeypatch.setattr(watcher, name, 3600.0)
    queue.is_held = True
    assert [ended.status for ended in start("launcher.requeue=true").results] == ["completed"]
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("number", "answer", "state"),
    [(signal.SIGINT, "y", "CANCELLED"), (signal.SIGINT, "n", "RUNNING"), (signal.SIGTERM, "n", "CANCELLED")],
)
def test_an_interruption_cancels_unless_the_user_says_no(queue, monkeypatch, number, answer, state):
    def interrupted(seconds: float) -> None:
        if "RUNNING" in queue.states.values():
            signal.raise_signal(number)

    questions = []
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupted))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda question: questions.append(question) or answer)
    done = start("seed=2")
    assert [ended.status for ended in done.results] == ["interrupted"]
    assert queue.states == {"100": state}
    assert done.is_detached == (state == "RUNNING")
    assert len(questions) == (number == signal.SIGINT)


def test_an_interruption_ends_the_points_that_run_and_those_that_wait(queue, monkeypatch, capsys):
    signals = iter([signal.SIGTERM])

    def interrupted(seconds: float) -> None:
        for number in signals:
            queue.states["100_1"] = "PENDING"
            signal.raise_signal(number)

    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupted))
    assert [ended.status for ended in start("seed=2", "seed=2 trainer.gamma=0.5").results] == ["interrupted"] * 2
    assert queue.states == {"100_0": "CANCELLED", "100_1": "CANCELLED"}
    err = capsys.readouterr().err
    assert "saving a checkpoint and ending 2 jobs, within" in err
    assert "not ended" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("grace_s", [0.0, 1000.0])
def test_a_job_that_does_not_end_is_cancelled_by_the_second_signal_or_after_its_grace(
    queue, monkeypatch, grace_s, number
):
    presses = iter([number] * (1 if grace_s == 0 else 2))
    queue.deaf = {"100"}
    monkeypatch.setattr(NamedRun, "grace_s", grace_s)

    def interrupted(seconds: float) -> None:
        for number in itertools.islice(presses, 1):
            signal.raise_signal(number)

    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=interrupted))
    assert [ended.status for ended in start("seed=2").results] == ["interrupted"]
    assert queue.states == {"100": "CANCELLED"}


def test_equal_failures_of_a_sweep_are_told_once(queue, capsys):
    assert [ended.status for ended in start("seed=1", "seed=1", "seed=0").results] == ["failed", "failed", "completed"]
    err = capsys.readouterr().err
    assert err.count("LeverError: stuck\n  full traceback: ") == 1
    assert "point0: LeverError: stuck" in err


@pytest.fixture
def clock(queue, monkeypatch):
    """`clock(at)` calls `at(now_s)` at each refresh of a watcher, a quarter of a second after the other."""
    seconds = itertools.count(0, 0.25)

    def follow(at):
        now = [next(seconds)]

        def sleep(refresh_s: float) -> None:
            assert now[0] < 2000
            now[0] = next(seconds)
            at(now[0])

        monkeypatch.setattr(
            watcher, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0], sleep=sleep)
        )
        monkeypatch.setattr(statistics, "time", SimpleNamespace(time=lambda: now[0]))
        return now

    for name, value in {"_MIN_QUERY_S": 1, "_MAX_QUERY_S": 10, "_SETTLE_S": 5}.items():
        monkeypatch.setattr(watcher, name, value)
    return follow


def test_slurm_is_asked_often_at_first_and_until_an_end_is_certain(queue, monkeypatch, clock):
    asked, squeue = [], queue.squeue

    def at(now_s):
        queue.states["100"] = "PENDING" if now_s < 300 else "RUNNING" if now_s < 600 else "FAILED"

    now = clock(at)
    monkeypatch.setattr(queue, "squeue", lambda command: asked.append(now[0]) or squeue(command))
    queue.is_held = True
    assert [ended.status for ended in start("").results] == ["failed"]
    pauses = {second: second - first for first, second in itertools.pairwise(asked)}
    # The job waits: the pause is a tenth of the time, from 1 to 10 s. Then it runs, and later it has ended.
    for begin_s in (0, 300):
        waited = {at_s - begin_s: pause_s for at_s, pause_s in pauses.items() if begin_s + 11 < at_s < begin_s + 300}
        assert max(pause_s for at_s, pause_s in waited.items() if at_s < 20) <= 2.25
        assert all(10 <= pause_s <= 10.25 for at_s, pause_s in waited.items() if at_s > 130)
    assert [*pauses.values()][-5:] == [1] * 5
    assert 605 <= asked[-1] <= 616


def test_who_waits_for_a_job_that_slurm_does_not_end_may_leave(queue, monkeypatch, clock, capsys):
    """A minute and a half after it was cancelled."""

    def at(now_s):
        if now_s == 1:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(NamedRun, "grace_s", 20.0)
    monkeypatch.setattr(queue, "scancel", lambda command: cancelled.append(now[0]) or "")
    cancelled, now = [], clock(at)
    assert [ended.status for ended in start("seed=2").results] == ["interrupted"]
    assert cancelled[0] == 1
    assert 21 <= cancelled[-1] <= 22
    assert 111 <= now[0] <= 112
    err = capsys.readouterr().err
    assert err.count("cancelling job 100; this may take SLURM half a minute") == 1
    assert "stopped watching; SLURM is still ending job 100" in err


@pytest.mark.parametrize("has_answer", [True, False])
def test_after_a_question_that_was_not_answered_ctrl_c_ends_the_job(queue, monkeypatch, has_answer):
    """The first Ctrl-C asks; Enter keeps watching. Another one, or the end of the input, ends the job."""
    questions = []

    def answer(question):
        questions.append(question)
        if not has_answer:
            raise EOFError
        return ""

    monkeypatch.setattr(
        watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: signal.raise_signal(signal.SIGINT))
    )
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", answer)
    done = start("seed=2")
    assert ([ended.status for ended in done.results], done.is_detached) == (["interrupted"], False)
    assert (len(questions), queue.states["100"]) == (1, "CANCELLED")


def test_who_only_watches_leaves_with_ctrl_c(queue, monkeypatch, capsys):
    queue.states = {"7": "RUNNING"}
    monkeypatch.setattr(
        watcher, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: signal.raise_signal(signal.SIGINT))
    )
    run = NamedRun("run", Path("run").absolute(), composed("launcher=slurm"))
    watched = watcher.Watcher([(run, "7")], is_owner=False)
    assert [ended.status for ended in watched.watch()] == ["interrupted"]
    assert (watched.is_detached, queue.states) == (True, {"7": "RUNNING"})
    assert "stopped watching; job 7 continues" in capsys.readouterr().err


def test_the_clock_of_a_watched_process_is_the_runs(tmp_path):
    began = datetime.now().astimezone() - timedelta(seconds=75)
    (tmp_path / "snapshot").mkdir()
    meta = {"time": began.strftime("%Y-%m-%dT%H:%M:%S%z"), "argv": ["run", "experiment=cartpole_ppo"]}
    (tmp_path / "snapshot" / "meta.json").write_text(json.dumps(meta))
    run = watcher.WatchedRun(NamedRun("run", tmp_path, composed()), None)
    assert 75 <= run.window.view(time.monotonic()).elapsed_s < 80
    assert run.title.startswith("cartpole_ppo  CartPole-v1, ppo  seed 0  ")
    (tmp_path / "result.json").write_text('{"status": "completed", "wall_s": 55.4}')
    run.status = RunStatus(Status.COMPLETED)
    assert run.view(time.monotonic()).elapsed_s == 55.4


def add_line(path, **fields):
    with open(path, "a") as file:
        file.write(f"{json.dumps(fields)}\n")


@pytest.mark.parametrize("points", [1, 2])
def test_what_is_told_of_jobs_second_by_second(queue, monkeypatch, clock, capsys, expected, points):
    """They wait, run, lose workers, are requeued, and end."""
    asked, squeue, first = [], queue.squeue, "100_0" if points > 1 else "100"
    batch = {"frames_per_s": 10.0, "waited_s": 0.0, "version": 0, "lag": 0.0}

    def at(now_s):
        events, metrics = Path("point0", "events.jsonl"), Path("point0", "metrics.jsonl")
        if now_s == 3:
            queue.states[first] = "RUNNING"
        elif now_s in (6, 8, 9):
            add_line(metrics, batch=int(now_s) % 6, time=now_s, frames=int(10 * now_s), **batch)
        elif now_s in (10, 11):
            for worker in range(int(now_s) - 9):
                failure = {"type": "WorkerDied", "message": f"killed by signal {worker}"}
                add_line(events, time=now_s, event="worker_failed", worker=worker, **failure)
            add_line(events, time=now_s, event="workers_started", num_workers=2)
        elif now_s == 14:
            queue.write_result(Path("point0"), "interrupted", "interrupted by SIGTERM")
            queue.states[first] = "COMPLETING"
        elif now_s == 20:
            queue.states[first] = "PENDING"
        elif now_s == 30:
            queue.states[first] = "RUNNING"
            Path("point0", "result.json").unlink()
        elif now_s == 40:
            queue.states[first] = "COMPLETED"
            queue.write_result(Path("point0"), "completed", "all frames delivered")
        elif now_s == 43 and points > 1:
            queue.error = "Unable to contact slurm controller"
        elif now_s == 50:
            queue.error = ""
            queue.states["100_1"] = "FAILED"

    now = clock(at)
    monkeypatch.setattr(queue, "squeue", lambda command: asked.append(now[0]) or squeue(command))
    queue.is_held = True
    words = "launcher.requeue=true collector.on_worker_failure=restart"
    done = start(*[words] * points)
    out, err = (text.replace(str(Path.cwd()), "CWD").splitlines() for text in capsys.readouterr())
    ended = [each.status for each in done.results]
    expected(
        f"watched-{points}", {"ended": ended, "asked": " ".join(f"{each:g}" for each in asked), "out": out, "err": err}
    )


# --- views ---


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Three runs at 1000 s: one has run for 65 s, one waits, one has completed."""
    monkeypatch.setattr(watcher, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    monkeypatch.setattr(watcher, "PLAIN_S", -1.0)
    runs = [
        WatchedRun(NamedRun(f"point{n}", tmp_path / str(n), composed()), job) for n, job in enumerate((None, "7", "8"))
    ]
    states = (Status.RUNNING, ""), (Status.QUEUED, "Resources: no node"), (Status.COMPLETED, "")
    for number, (run, state) in enumerate(zip(runs, states, strict=True)):
        run.status, run.since_s = RunStatus(*state), 935.0
        run.statistics.frames = 1500 * number
    return runs


def begin_terminal(monkeypatch):
    """Makes standard output a terminal."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in {"TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)


def test_a_table_has_a_row_for_each_run(runs, capsys, monkeypatch):
    begin_terminal(monkeypatch)
    with RunsDisplay(runs, "", ["point3"]) as display:
        display.draw()
        text = re.sub(r"\x1b\[[?\d;]*\w", "", capsys.readouterr().out)
    states, head, *rows = [line.split() for line in text.splitlines() if line.strip()]
    assert " ".join(states) == "1 running, 1 queued, 1 completed, 1 not started"
    assert head[:7] == ["point", "job", "status", "for", "frames", "frames/s", "return"]
    assert rows[0][:4] == ["point0", "running", "1:05", "0"]
    assert rows[1][:6] == ["point1", "7", "queued", "(Resources)", "1:05", "1,500"]
    assert rows[2][:4] == ["point2", "8", "completed", "3,000"]
    assert rows[3] == ["point3", "not", "started"]


def test_a_sweep_that_runs_one_point_after_another_has_a_remaining_time(runs, capsys):
    (done, now) = runs = runs[2], runs[0]
    done.job = None
    done.run_folder.begin()
    write_json(done.run_folder.result, {"status": "completed", "wall_s": 35.0})
    now.window.start_s = 935.0
    now.statistics.frames = now.statistics.expected_frames // 2
    RunsDisplay(runs, "", ["point3"]).draw()
    # One and a half points took 100 s, and as many are left.
    assert capsys.readouterr().out.startswith("1 completed, 1 running, 1 not started, ETA 1:40; ")


def test_elsewhere_a_line_counts_the_runs(runs, capsys):
    RunsDisplay(runs).draw()
    assert capsys.readouterr().out == "1 running, 1 queued, 1 completed; 4,500 frames\n"


@pytest.mark.parametrize(("num_runs", "batches", "stays"), [(1, 1, True), (1, 0, False), (3, 1, False)])
def test_the_last_progress_of_one_run_stays_on_a_terminal(runs, capsys, monkeypatch, num_runs, batches, stays):
    begin_terminal(monkeypatch)
    runs[0].statistics.batches = batches
    with RunsDisplay(runs[:num_runs]) as display:
        display.draw()
        capsys.readouterr()
    _, _, rest = capsys.readouterr().out.rpartition("\x1b[2K")
    assert ("\n" in rest) is stays  # otherwise the lines are erased at last
