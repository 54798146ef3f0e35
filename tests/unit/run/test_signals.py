import contextlib
import os
import signal
import threading

import pytest

from collectx.run.signals import Signals, Stopped


def send(signum):
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_raises_and_the_old_handler_comes_back(signum):
    before = signal.getsignal(signum)
    with Signals():
        with pytest.raises(Stopped) as caught:
            send(signum)
        assert caught.value.signal == signal.Signals(signum).name
    assert signal.getsignal(signum) is before


def test_the_second_does_not_tear_what_the_first_set_going():
    with Signals():
        with pytest.raises(Stopped):
            send(signal.SIGINT)
        send(signal.SIGINT)
        with pytest.raises(Stopped):
            send(signal.SIGINT)


def test_behind_the_shield_only_the_third_raises():
    with Signals() as signals:
        signals.shield()
        send(signal.SIGINT)
        send(signal.SIGTERM)
        signals.check()
        with pytest.raises(Stopped):
            send(signal.SIGINT)


def test_held_it_raises_at_the_end_of_the_block():
    done = []
    with Signals() as signals:
        with pytest.raises(Stopped), signals.hold():  # noqa: PT012, the block is what is tested
            send(signal.SIGINT)
            done.append("all")
        with signals.hold():
            send(signal.SIGINT)  # the second one only counts, here too
    assert done == ["all"]


def test_sealed_nothing_raises():
    with Signals() as signals:
        signals.seal()
        for _ in range(5):
            send(signal.SIGINT)


def test_a_lost_exception_is_found():
    with Signals() as signals:
        signals.check()
        with contextlib.suppress(Stopped):
            send(signal.SIGTERM)
        with pytest.raises(Stopped):
            signals.check()


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Signals():
            send(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_it_does_nothing():
    errors = []

    def use():
        try:
            with Signals() as signals:
                signals.check()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert not errors
