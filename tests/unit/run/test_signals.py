import os
import signal
from contextlib import nullcontext, suppress

import pytest

from collectx.run import signals
from collectx.run.signals import RunStopped, Signals, ignore_requests

pytestmark = pytest.mark.usefixtures("hangups")
ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def raises(number) -> bool:
    """Whether that signal to this process raises."""
    try:
        os.kill(os.getpid(), number)
    except RunStopped as stopped:
        return stopped.signal == signal.Signals(number).name
    return False


@pytest.mark.parametrize(
    # The second must not tear what the first set going.
    ("state", "expected"),
    [(None, [True, False, True]), ("shield", [False, False, True]), ("seal", [False] * 5)],
)
@pytest.mark.parametrize("first", ALL)
def test_which_signals_raise(first, state, expected):
    before = [signal.getsignal(number) for number in ALL]
    with Signals() as signals:
        signals.check()
        if state is not None:
            getattr(signals, state)()
        numbers = [first, *ALL, *ALL][: len(expected)]
        assert [raises(number) for number in numbers] == expected
        # An exception that was lost is found.
        with nullcontext() if state else pytest.raises(RunStopped):
            signals.check()
    assert [signal.getsignal(number) for number in ALL] == before


def test_held_it_raises_at_the_end_of_the_block():
    with Signals() as signals:
        with pytest.raises(RunStopped), signals.hold():
            assert not raises(signal.SIGINT)
        with signals.hold():
            assert not raises(signal.SIGINT)  # the second one only counts, here too


def test_deferred_the_first_only_counts_and_the_second_raises():
    with Signals() as signals:
        signals.defer(100.0, lambda: None)
        assert [raises(signal.SIGTERM), raises(signal.SIGINT)] == [False, True]
        with pytest.raises(RunStopped, match="SIGINT"):
            signals.check()


def test_requests_never_end_the_process_and_count_during_a_run():
    requests = (signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in requests]
    try:
        for number in requests:
            ignore_requests()
            assert not raises(number)
            with Signals() as signals:
                with signals.ignored_by_children():
                    assert {signal.getsignal(each) for each in (*ALL, *requests)} == {signal.SIG_IGN}
                assert (raises(number), signals.is_checkpoint_requested) == (False, True)
            assert not raises(number)
    finally:
        for number, handler in zip(requests, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize(("earlier", "expected"), [(None, True), (signal.SIGTERM, False)])
def test_a_signal_for_which_the_process_has_a_handler_ends_the_run_before_it(earlier, expected):
    """As submitit has one that requeues its job. A run that is ending already is not hurried."""
    requeued = []
    before = signal.signal(signal.SIGUSR2, lambda signum, frame: requeued.append(signum))
    try:
        with Signals() as signals:
            signals.defer(100.0, lambda: None)
            assert not (earlier and raises(earlier))
            assert not raises(signal.SIGUSR2)
            assert (signals.last == signal.SIGUSR2, requeued) == (expected, [])
            with pytest.raises(RunStopped):
                signals.check()
        assert requeued == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_when_the_grace_is_over_it_raises_also_in_a_system_call():
    read, write = os.pipe()
    with Signals() as signals:
        signals.defer(0.05, lambda: None)
        assert not raises(signal.SIGTERM)
        with pytest.raises(RunStopped, match="SIGTERM"):
            os.read(read, 1)
    os.close(read)
    os.close(write)


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Signals():
        raised = raises(signal.SIGINT)
    assert signal.signal(signal.SIGINT, before) is signal.SIG_IGN
    assert not raised


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_handler_in_c_which_python_cannot_set_again_stays(number, within):
    before = signal.signal(number, handler := lambda signum, frame: None)
    try:
        # The result for a handler that was there before Python.
        within(signals, "signal", getsignal=lambda each: None if each == number else signal.getsignal(each))
        with Signals():
            assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_a_forked_process_ends_it_and_is_not_the_runs(number):
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with Signals() as signals:
            pid = os.fork()
            if pid == 0:
                with suppress(BaseException):
                    os.kill(os.getpid(), number)
                os._exit(7)  # the signal was handled
            _, status = os.waitpid(pid, 0)
            assert signals.last is None
    finally:
        signal.signal(number, before)
    assert os.waitstatus_to_exitcode(status) == -number
