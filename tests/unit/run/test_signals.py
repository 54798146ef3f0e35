import gc
import itertools
import os
import pty
import random
import signal
import sys
import threading
import time
from contextlib import nullcontext, suppress

import pytest

from collectx.run import signals
from collectx.run.signals import Interrupted, RunStopped, Signals, ignore_requests

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


def test_in_nested_held_blocks_it_raises_at_the_end_of_the_outer_one():
    ended = []

    def nested():
        with signals.hold():
            with signals.hold():
                assert not raises(signal.SIGINT)
            ended.append("inner")
        ended.append("outer")

    with Signals() as signals, pytest.raises(RunStopped):
        nested()
    assert ended == ["inner"]


def test_held_in_a_block_that_fails_it_raises_once_in_check():
    with Signals() as signals:
        with suppress(OSError), signals.hold():
            assert not raises(signal.SIGINT)
            raise OSError("full")
        with pytest.raises(RunStopped):
            signals.check()
        with signals.hold():  # the last checkpoint
            pass


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
                assert (raises(number), signals.is_checkpoint_requested) == (False, True)
            assert not raises(number)
    finally:
        for number, handler in zip(requests, before, strict=True):
            signal.signal(number, handler)


@pytest.mark.parametrize(("earlier", "expected"), [(None, True), (signal.SIGTERM, False)])
def test_a_signal_for_which_the_process_has_a_handler_ends_the_run_before_it(earlier, expected):
    """submitit has such a handler, which requeues its job. A run that is ending already is not hurried."""
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
# How many of these signals end a helper of the trainer: `terminate()` sends one SIGTERM, an impatient user two SIGINTs.
@pytest.mark.parametrize(("number", "count"), [(signal.SIGTERM, 1), (signal.SIGHUP, 2)])
def test_a_signal_to_a_forked_process_ends_it_and_is_not_the_runs(number, count):
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with Signals() as signals:
            pid = os.fork()
            if pid == 0:
                with suppress(BaseException):
                    for _ in range(count):
                        os.kill(os.getpid(), number)
                os._exit(7)  # the signal was handled
            _, status = os.waitpid(pid, 0)
            assert signals.last is None
    finally:
        signal.signal(number, before)
    assert os.waitstatus_to_exitcode(status) == -number


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_helper_that_is_terminated_as_it_begins_ends(wait_until):
    read, write = os.pipe()
    with Signals() as signals:
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                with suppress(BaseException):
                    os.read(read, 1)  # waits for ever, as a helper of a Pool that is left to itself
                os._exit(7)
            os.kill(pid, signal.SIGTERM)  # mostly before the child has run
            ended = (0, 0)

            def has_ended(pid=pid):
                nonlocal ended
                ended = os.waitpid(pid, os.WNOHANG)
                return ended[0]

            try:
                wait_until(has_ended, 20, "the end of the helper")
            finally:
                if not ended[0]:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(ended[1]) == -signal.SIGTERM
        assert signals.last is None
    os.close(read)
    os.close(write)


class Model:
    """What the docstring of the module says of signals, in a few lines."""

    def __init__(self):
        self.count = self.raises_at = 0
        self.is_deferred = self.is_shielded = self.is_sealed = False

    def signal(self):
        self.count += 1
        if self.is_deferred and self.count == 1:
            return False
        is_raised = not self.is_sealed and self.count >= self.raises_at
        if is_raised:  # the next but one raises again
            self.raises_at = self.count + 2
        return is_raised

    def held(self):
        return self.signal()

    def check(self):
        is_raised = self.count > 0 and not self.is_shielded
        self.is_deferred &= not is_raised
        return is_raised

    def defer(self):
        self.is_deferred = True

    def shield(self):
        self.is_deferred, self.is_shielded, self.raises_at = False, True, max(self.raises_at, 3)

    def seal(self):
        self.is_shielded = self.is_sealed = True


def test_any_order_of_signals_and_states_against_a_model():
    draw = random.Random(0)
    kinds = ["signal", "signal", "signal", "held", "check", "defer", "shield", "seal"]
    for number in range(400):
        model = Model()
        with Signals() as real:

            def held():
                with real.hold():
                    os.kill(os.getpid(), signal.SIGINT)

            do = {
                "signal": lambda: os.kill(os.getpid(), signal.SIGTERM),
                "held": held,
                "defer": lambda: real.defer(100.0, lambda: None),
                **{name: getattr(real, name) for name in ("check", "shield", "seal")},
            }
            done = []
            for _ in range(9):
                done.append(draw.choice(kinds if number % 4 else kinds[:6]))
                with pytest.raises(RunStopped) if getattr(model, done[-1])() else nullcontext():
                    do[done[-1]]()


def test_the_time_of_grace_ends_with_a_signal_to_the_main_thread(wait_until):
    notes = []
    with Signals() as real:
        real.defer(0.3, lambda: notes.append(threading.current_thread().name))
        assert not raises(signal.SIGTERM)
        with pytest.raises(RunStopped, match="SIGTERM"):
            threading.Event().wait(20)
    assert notes == ["collectx-note"]


@pytest.mark.parametrize("grace_s", [0.1, 1e12])
def test_the_time_of_grace_may_end_early_or_never(grace_s):
    is_told = threading.Event()
    with Signals() as real:
        real.defer(grace_s, is_told.set)
        assert not raises(signal.SIGTERM)
        real.shield()
        assert is_told.wait(20)
        assert not threading.Event().wait(2 * min(grace_s, 0.1))  # nothing raises


def test_outside_of_the_main_thread_nothing_is_handled():
    before, found = [signal.getsignal(number) for number in ALL], []

    def run():
        with Signals():
            found.extend(signal.getsignal(number) for number in ALL)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == before


def test_output_to_a_closed_terminal_is_dropped():
    here, there = pty.openpty()
    file, kept = os.open(os.devnull, os.O_WRONLY), os.dup(there)
    os.dup2(file, kept)  # as after a hangup, it is no terminal any more
    signals._drop_output([there])
    assert os.isatty(there)
    descriptors = len(os.listdir("/proc/self/fd"))
    signals._drop_output([there, kept])
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert os.isatty(there)
    assert os.readlink(f"/proc/self/fd/{kept}") == os.devnull
    for descriptor in (here, there, file, kept):
        os.close(descriptor)


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


class Wait:
    """Waits for a signal when it is removed."""

    def __init__(self, send):
        self._send = send

    def __del__(self):
        self._send()
        threading.Event().wait(1)


def remove_and_wait(objects):
    objects.clear()
    gc.collect()
    threading.Event().wait(30)


@pytest.mark.parametrize("removed_by", ["reference", "collector"])
@pytest.mark.parametrize("number", [None, *ALL])
def test_a_signal_whose_exception_python_drops_is_sent_again(number, removed_by):
    with Signals() as signals:
        send = signals.interrupt if number is None else lambda: os.kill(os.getpid(), number)
        waiting = Wait(send)
        if removed_by == "collector":
            waiting.itself = waiting
        objects, began = [waiting], time.monotonic()
        del waiting
        with pytest.raises(Interrupted if number is None else RunStopped):
            remove_and_wait(objects)
        assert time.monotonic() - began < 5
        if number is not None:
            assert [raises(number) for _ in range(2)] == [False, True]  # as after any first signal


def test_other_exceptions_that_python_drops_are_told_as_before():
    class Broken:
        def __del__(self):
            raise ValueError("broken")

    hook, told = sys.unraisablehook, []
    sys.unraisablehook = lambda dropped: told.append(dropped.exc_value)
    try:
        with Signals():
            Broken()
            assert [str(error) for error in told] == ["broken"]
        Broken()
        assert len(told) == 2
    finally:
        sys.unraisablehook = hook
