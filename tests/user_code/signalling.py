"""An env that installs signal handlers when it is made, as simulators and robotics libraries do."""

import signal

import gymnasium


def make(**kwargs):
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(signum, lambda *_: print("the env has taken a signal", flush=True))
    return gymnasium.make("CartPole-v1", **kwargs)
