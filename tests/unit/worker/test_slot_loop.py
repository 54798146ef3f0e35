"""What a worker tells the trainer about its end."""

import pytest

from collectx.rollout.loop import RolloutStopped
from collectx.transport.base import Fill
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
