"""Control messages as plain bytes: what travels beside the frames. Nothing is unpickled that
comes over a network.

trainer -> worker    GRANT   | slot, order, least version to act with (int64)
                     WEIGHTS | version (int64)
worker -> trainer    FULL    | slot, version, steps, seconds (4 float64) | returns (float64) | lengths (int64)
                     HAVE    | version (int64)
                     FAILED  | what the transport makes of an error
between processes of one machine    ASK | pickled question        ANSWER | pickled answer
"""

from __future__ import annotations

import struct

import numpy as np

from collectx.transport.base import Tally

FULL, FAILED, GRANT, WEIGHTS, HAVE, ASK, ANSWER = (bytes([number]) for number in range(7))
# In the place of a number of steps.
_ALL = -1
_NUMBERS = struct.Struct("<cqqq")
_FULL = struct.Struct("<cqqqdddd")


def pack_grant(slot: int, order: int, least_version: int = 0) -> bytes:
    """A grant of `slot`, to be filled with weights of `least_version` or newer."""
    return _NUMBERS.pack(GRANT, slot, order, least_version)


def pack_weights(version: int) -> bytes:
    """The weights of `version` are on their way."""
    return _NUMBERS.pack(WEIGHTS, version, 0, 0)


def pack_have(version: int) -> bytes:
    """The weights of `version` are here, whole."""
    return _NUMBERS.pack(HAVE, version, 0, 0)


def unpack(message: bytes) -> tuple[bytes, int, int, int]:
    """Kind and numbers of a message that has no more than these; all but the first number are those of a grant."""
    kind, number, order, least_version = _NUMBERS.unpack(message)
    return kind, number, order, least_version


def pack_full(slot: int, tally: Tally) -> bytes:
    """What a worker says when it has filled `slot`."""
    times = (tally.env_s, tally.policy_s, tally.wait_s, tally.send_s)
    steps = _ALL if tally.steps is None else tally.steps
    head = _FULL.pack(FULL, slot, tally.policy_version, steps, *times)
    return head + tally.returns.tobytes() + tally.lengths.tobytes()


def unpack_full(message: bytes) -> tuple[int, Tally]:
    """The slot and the tally of `pack_full`; the arrays are views of `message`."""
    _, slot, version, steps, env_s, policy_s, wait_s, send_s = _FULL.unpack_from(message)
    episodes = (len(message) - _FULL.size) // 16
    returns = np.frombuffer(message, np.float64, episodes, _FULL.size)
    lengths = np.frombuffer(message, np.int64, episodes, _FULL.size + 8 * episodes)
    times = env_s, policy_s, wait_s, send_s
    return slot, Tally(version, *times, returns, lengths, None if steps == _ALL else steps)
