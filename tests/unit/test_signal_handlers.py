"""Handlers that user code replaces are put back, and that is said once for each maker."""

import signal
import threading
from contextlib import suppress

import pytest

from collectx import process


def ours(signum, frame):
    """Stands in for a run's handler."""


def theirs(signum, frame):
    """Stands in for the handler of an env."""


@pytest.fixture
def said():
    earlier = {signum: signal.getsignal(signum) for signum in (signal.SIGUSR1, signal.SIGUSR2)}
    notes = []
    for signum in earlier:
        signal.signal(signum, ours)
    process.keep_handlers(dict.fromkeys(earlier, ours), notes.append)
    yield notes
    process.keep_handlers({}, print)
    for signum, handler in earlier.items():
        signal.signal(signum, handler)


def test_replaced_handlers_are_put_back_and_noted_once(said):
    rule = "The run needs its own, so it restored them."
    for maker, replaced, wanted in (
        ("env.id=A", [], []),
        ("env.id=A", [signal.SIGUSR1], [f"env.id=A replaced the handlers of SIGUSR1. {rule}"]),
        ("env.id=A", [signal.SIGUSR1], []),
        ("env.id=A", [signal.SIGUSR1, signal.SIGUSR2], [f"env.id=A replaced the handlers of SIGUSR1, SIGUSR2. {rule}"]),
        ("env.id=B", [signal.SIGUSR2], [f"env.id=B replaced the handlers of SIGUSR2. {rule}"]),
    ):
        for signum in replaced:
            signal.signal(signum, theirs)
        process.restore_handlers(maker)
        assert [signal.getsignal(signum) for signum in (signal.SIGUSR1, signal.SIGUSR2)] == [ours, ours]
        assert said == wanted
        said.clear()
    process.keep_handlers({signal.SIGUSR1: ours}, said.append)
    signal.signal(signal.SIGUSR1, theirs)
    process.restore_handlers("env.id=B")
    assert len(said) == 1
    signal.signal(signal.SIGUSR2, theirs)
    process.restore_handlers("env.id=B")
    assert signal.getsignal(signal.SIGUSR2) is theirs


def test_other_threads_change_no_handler(said):
    signal.signal(signal.SIGUSR1, theirs)
    thread = threading.Thread(target=process.restore_handlers, args=["env.id=A"])
    thread.start()
    thread.join()
    assert (signal.getsignal(signal.SIGUSR1), said) == (theirs, [])


def in_this_thread(function, *arguments):
    function(*arguments)


def in_another_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    thread.join()


@pytest.mark.parametrize(("call", "handler"), [(in_this_thread, theirs), (in_another_thread, ours)])
def test_a_block_has_handlers_of_its_own_in_the_main_thread(said, call, handler):
    seen = []

    def block():
        with suppress(OSError), process.handling({signal.SIGUSR1: theirs}):
            seen.append(signal.getsignal(signal.SIGUSR1))
            raise OSError

    call(block)
    assert seen == [handler]
    assert signal.getsignal(signal.SIGUSR1) is ours
