"""The thread that steps envs in the background."""

import math
import threading
import weakref

import pytest

from collectx.library.background import Background, StepThread


def test_timeouts_may_be_infinite(wait_until):
    """Python's own waits raise `OverflowError` for infinite timeouts; they only wait while a step is in progress."""
    thread, may_end, called = StepThread(), threading.Event(), []
    background = Background(thread)
    background.start(lambda: may_end.wait(60))
    held = threading.Event()

    def hold():
        with background.hold(math.inf):
            held.set()

    holder = threading.Thread(target=hold, name="collectx-holder")
    holder.start()
    wait_until(lambda: background._num_holders, what="the other thread")
    may_end.set()
    holder.join(60)
    assert held.is_set()
    background.stop(math.inf)
    thread.call_last(lambda: called.append(threading.current_thread().name), math.inf)
    assert called == ["collectx-background"]


def test_the_thread_ends_at_pythons_exit(monkeypatch):
    """It ends even while it calls a function again and again; finalizers do nothing then."""
    thread, called = StepThread(), []
    background = Background(thread)
    background.start(lambda: None)
    monkeypatch.setattr(weakref.finalize, "_shutdown", True)
    background.call_last(lambda: called.append(threading.current_thread().name), 60)
    assert called == ["collectx-background"]
    assert "collectx-background" not in {thread.name for thread in threading.enumerate()}


def test_a_step_that_takes_too_long_is_an_error():
    thread, may_end = StepThread(), threading.Event()
    background = Background(thread)
    background.start(lambda: may_end.wait(60))
    with pytest.raises(TimeoutError, match=r"timeout=0\.01\)"), background.hold(0.01):
        pass
    with pytest.raises(TimeoutError, match=r"timeout=0\.01\)"):
        background.stop(0.01)
    may_end.set()
    thread.call_last(lambda: None, 60)
