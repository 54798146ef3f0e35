"""Takes seconds to import, and as long to make an env."""

import time

import gymnasium

PART_S = 4.0
time.sleep(PART_S)


def make():
    time.sleep(PART_S)
    return gymnasium.make("CartPole-v1")
