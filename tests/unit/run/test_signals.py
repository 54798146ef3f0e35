"""Signals while handlers of other libraries raise."""

import itertools
import os
import signal
import sys

import pytest

from collectx.run.signals import RunStopped, Signals


class OfDataLoader(RuntimeError):
    """What a DataLoader's handler raises when one of its processes ends."""


@pytest.mark.parametrize("grace_s", [0, 60])
def test_a_signal_counts_wherever_another_handler_interrupts_that_of_the_run(grace_s):
    def raise_error(signum, frame):
        raise OfDataLoader

    earlier = signal.signal(signal.SIGCHLD, raise_error)
    try:
        # Python calls handlers when a function begins, and after calls. Nothing can be done where the run's begins.
        for call in itertools.count(1):
            calls = itertools.count()

            def interrupt(frame, event, argument, call=call, calls=calls):
                if frame.f_globals["__name__"] == Signals.__module__ and next(calls) == call:
                    os.kill(os.getpid(), signal.SIGCHLD)

            with Signals() as signals:
                signals.defer(grace_s, lambda: None)
                raised = None
                sys.setprofile(interrupt)
                try:
                    os.kill(os.getpid(), signal.SIGTERM)
                except (OfDataLoader, RunStopped) as error:
                    raised = error
                finally:
                    sys.setprofile(None)
                if next(calls) <= call:
                    break
                assert signals.last == signal.SIGTERM, call
                assert raised is not None
                with pytest.raises(RunStopped):
                    signals.check()
    finally:
        signal.signal(signal.SIGCHLD, earlier)
    assert call > 3
