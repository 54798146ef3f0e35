"""Envs that keep their process: a thread that is no daemon, constructors and a `close` that never return."""

import contextlib
import threading

import gymnasium


def threaded():
    threading.Thread(target=threading.Event().wait, name="telemetry").start()
    return gymnasium.make("CartPole-v1")


def never_made():
    threading.Event().wait()


def never_interrupted():
    while True:
        with contextlib.suppress(BaseException):
            threading.Event().wait()


class NeverClosed(gymnasium.Wrapper):
    """The first one of a process, whose spaces are read, can be closed."""

    num_closed = 0

    def close(self):
        NeverClosed.num_closed += 1
        if NeverClosed.num_closed > 1:
            threading.Event().wait()


def never_closed():
    return NeverClosed(gymnasium.make("CartPole-v1"))
