"""Weights on their way to workers of other hosts: each is sent the newest, one version at a time, some workers at once.
In the trainer's process.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from collectx.transport import messages
from collectx.transport.base import Write
from collectx.transport.network.p2p import Outgoing, Pair, set_stamp
from collectx.transport.network.worker import weights_buffer

# Weights are sent to so many workers at a time, and to more while they are no more bytes than these together.
_LEAST_TRANSFERS = 4
_TRANSFER_BYTES = 2**28


@dataclass(eq=False)
class _Weights:
    """One version's bytes, stamped with the version plus one.

    Attributes:
        num_users: to how many workers they are under way.
        is_newest: whether they are the newest of some worker.
    """

    buffer: torch.Tensor
    version: int = -1
    num_users: int = 0
    is_newest: bool = False


@dataclass
class _Receiver:
    """A worker: the version that is being sent, or was sent last, and what of it is still under way."""

    pair: Pair
    version: int = -1
    sending: tuple[Outgoing, _Weights] | None = None


class WeightSync:
    """Which workers have which version.

    Args:
        nbytes: of the weights.
        say: `say(worker, message)` sends a control message.

    Attributes:
        version: the newest, whoever it is for; -1 before the first.
    """

    def __init__(self, nbytes: int, say: Callable[[int, bytes], None]):
        self.version = -1
        self._nbytes = nbytes
        self._say = say
        self._receivers: dict[int, _Receiver] = {}
        self._newest: _Weights | None = None
        # Newer than those, of single workers, which may not have joined yet.
        self._individual: dict[int, _Weights] = {}
        self._spare: list[_Weights] = []
        # Transfers share the network card: many at a time would all end late.
        self._num_sending = 0
        self._most_sending = max(_LEAST_TRANSFERS, _TRANSFER_BYTES // max(1, nbytes))
        self._due: OrderedDict[int, None] = OrderedDict()

    def publish(self, write: Write) -> int:
        """Sends a newer version, which `write` fills in, to whom none is under way; returns its number."""
        before, self._newest = [self._newest, *self._individual.values()], self._fill(write)
        self._individual.clear()
        self.version += 1
        for weights in before:
            self._replaced(weights)
        for worker in self._receivers:
            self._push(worker)
        return self.version

    def publish_to(self, writes: Mapping[int, Write]) -> int:
        """As `publish`, to some workers, each its own."""
        filled = {worker: self._fill(write) for worker, write in writes.items()}
        self.version += 1
        for worker, weights in filled.items():
            before, self._individual[worker] = self._individual.get(worker), weights
            self._replaced(before)
            if worker in self._receivers:
                self._push(worker)
        return self.version

    def version_of(self, worker: int) -> int:
        """Of a worker's newest weights; -1 where there are none."""
        weights = self._newest_of(worker)
        return -1 if weights is None else weights.version

    def _newest_of(self, worker: int) -> _Weights | None:
        return self._individual.get(worker, self._newest)

    def _fill(self, write: Write) -> _Weights:
        """Weights of the next version."""
        weights = self._spare.pop() if self._spare else _Weights(weights_buffer(self._nbytes))
        write(weights.buffer[: self._nbytes])
        weights.version, weights.is_newest = self.version + 1, True
        set_stamp(weights.buffer, weights.version + 1)
        return weights

    def _replaced(self, weights: _Weights | None) -> None:
        """There are newer ones."""
        if weights is not None:
            weights.is_newest = False
            self._release(weights)

    def _release(self, weights: _Weights) -> None:
        """Keeps the buffer for another version once nobody needs these."""
        if not weights.num_users and not weights.is_newest:
            self._spare.append(weights)

    def joined(self, worker: int, pair: Pair) -> None:
        """Sends the newest weights to a new worker."""
        self._receivers[worker] = _Receiver(pair)
        self._push(worker)

    def arrived(self, worker: int) -> None:
        """The worker has what it was sent: sends what is newer."""
        receiver = self._receivers[worker]
        assert receiver.sending is not None
        work, weights = receiver.sending
        receiver.sending = None
        self._num_sending -= 1
        with contextlib.suppress(RuntimeError):
            work.wait()
        weights.num_users -= 1
        self._release(weights)
        self._push_due()
        self._push(worker)

    def left(self, worker: int) -> None:
        """Forgets a worker that is gone."""
        self._due.pop(worker, None)
        if self._receivers.pop(worker).sending is not None:
            # Its bytes may be read until the pair is gone: they are not used again.
            self._num_sending -= 1
            self._push_due()

    def _push(self, worker: int) -> None:
        """Sends the newest weights, unless they were sent or others are under way; later, where enough others are."""
        receiver, weights = self._receivers[worker], self._newest_of(worker)
        if receiver.sending is not None or weights is None or receiver.version == weights.version:
            return
        if self._num_sending >= self._most_sending:
            self._due[worker] = None
            return
        try:
            receiver.sending = receiver.pair.send(weights.buffer), weights
        except RuntimeError:
            return  # the connection is broken as well
        self._num_sending += 1
        weights.num_users += 1
        receiver.version = weights.version
        self._say(worker, messages.pack_weights(weights.version))

    def _push_due(self) -> None:
        while self._due and self._num_sending < self._most_sending:
            self._push(self._due.popitem(last=False)[0])
