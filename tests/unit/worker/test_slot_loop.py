"""What a worker tells the trainer about its end."""

import re
from types import SimpleNamespace

import pytest

from collectx.rollout.loop import RolloutStopped
from collectx.transport.base import Fill
from collectx.worker import slot_loop
from collectx.worker.slot_loop import run_until_stopped, run_worker_loop


class Recorder:
    """A link with one grant, and a source whose methods raise the errors that they are given; keeps what is called."""

    def __init__(self, making=None, filling=None, closing=None):
        self.calls, self._errors = [], {"make": making, "fill": filling, "close": closing}

    def _call(self, name):
        self.calls.append(name)
        if self._errors[name] is not None:
            raise self._errors[name]

    def make(self):
        self._call("make")
        return self

    def acquire(self):
        return None if "fill" in self.calls else Fill(0)

    def refresh(self):
        pass

    def fill(self, grant):
        self._call("fill")
        raise RolloutStopped

    def close(self):
        self._call("close")

    def fail(self, error):
        self.calls.append(error)


@pytest.mark.parametrize("closing", [None, OSError("not closed")])
@pytest.mark.parametrize("step", ["making", "filling"])
def test_an_error_is_reported_once_before_the_source_is_closed(step, closing):
    error = KeyError("gone wrong")
    worker = Recorder(**{step: error, "closing": closing})
    with pytest.raises(KeyError):
        run_until_stopped(worker, worker.make)
    assert worker.calls == {"making": ["make", error], "filling": ["make", "fill", error, "close"]}[step]
    assert error.is_reported


@pytest.mark.parametrize("step", ["making", "filling"])
def test_a_stop_iteration_is_an_error_that_says_where_it_was_raised(step):
    stop = StopIteration("no more levels")
    stop.add_note("raised in step() of env 3 (of 4)")
    worker = Recorder(**{step: stop})
    with pytest.raises(RuntimeError) as caught:
        run_until_stopped(worker, worker.make)
    assert caught.value in worker.calls
    where = r"raised StopIteration in .*test_slot_loop\.py, line \d+, in `raise self._errors"
    assert re.search(where, str(caught.value))
    assert caught.value.__notes__ == stop.__notes__
    assert caught.value.__cause__ is stop


def test_a_worker_that_is_stopped_reports_nothing():
    worker = Recorder()
    run_until_stopped(worker, worker.make)
    assert worker.calls == ["make", "fill", "close"]


def test_an_inline_worker_waits_with_closing_until_the_error_was_raised():
    error = KeyError("gone wrong")
    worker = Recorder(filling=error)
    loop = run_worker_loop(worker, worker.make)
    next(loop)
    assert worker.calls == ["make", "fill", error]
    with pytest.raises(KeyError):
        next(loop)
    assert worker.calls[-1] == "close"


def test_an_error_of_closing_at_the_end_is_raised_and_not_reported():
    error = OSError("not closed")
    worker = Recorder(closing=error)
    with pytest.raises(OSError, match="not closed"):
        run_until_stopped(worker, worker.make)
    assert worker.calls == ["make", "fill", "close"]


def test_a_report_tells_how_long_the_worker_waited_and_sent(monkeypatch):
    """The clock: a grant takes 100, a refresh 10, a batch 1000, its sending 1."""
    now, reports = [50_000.0], []

    def takes(seconds):
        now[0] += seconds

    class Timed(Recorder):
        def acquire(self):
            takes(100)
            return Fill(0) if len(reports) < 2 else None

        def refresh(self):
            takes(10)

        def fill(self, grant):
            takes(1000)
            return SimpleNamespace()

        def send(self, slot, report):
            takes(1)
            reports.append((report.wait_s, report.send_s))

    worker = Timed()
    monkeypatch.setattr(slot_loop, "perf_counter", lambda: now[0])
    run_until_stopped(worker, worker.make)
    # What a batch's sending took is known to the next one.
    assert reports == [(100, 10), (100, 1 + 10)]
