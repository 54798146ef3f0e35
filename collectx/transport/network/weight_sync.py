"""Sends weights to remote workers: one transfer per worker at a time, few workers at a time. Sends the newest version
only or, with `SlotSpec.grants_name_version`, the versions that the worker's grants name.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable

import torch

from collectx.transport import messages
from collectx.transport.base import SlotSpec, WeightWriter, WeightWriters, keep_granted
from collectx.transport.network.admission import RemotePeer, Weights
from collectx.transport.network.p2p import message_buffer, set_stamp

# Number of concurrent transfers that is always allowed. More are allowed if their total size is below
# `_TRANSFER_BYTES`.
_MIN_CONCURRENT = 4
_TRANSFER_BYTES = 2**28


class WeightSync:
    """Sends weights, and tracks which worker has received which version. `version` is the newest version;
    `SlotSpec.first_version - 1` before the first."""

    def __init__(
        self,
        spec: SlotSpec,
        workers: dict[int, RemotePeer],
        send_message: Callable[[RemotePeer, bytes], None],
    ):
        self.version = spec.first_version - 1
        self._nbytes = nbytes = spec.weights_nbytes
        self._grants_name_version = spec.grants_name_version
        self._workers = workers
        self._send_message = send_message
        # The newest weights for all workers; and, by worker, individual ones that are newer. Workers need not have
        # joined.
        self._shared: Weights | None = None
        self._individual: dict[int | None, Weights] = {}
        # With `SlotSpec.grants_name_version`: the weights of the last two versions that were granted.
        self._granted: dict[int, Weights] = {}
        self._spare: list[Weights] = []
        # Limited, because transfers share the network card: many at a time would all end late.
        self._num_sending = 0
        self._max_concurrent = max(_MIN_CONCURRENT, _TRANSFER_BYTES // max(1, nbytes))
        self._queued: OrderedDict[RemotePeer, None] = OrderedDict()

    def publish(self, writes: WeightWriters) -> int:
        """Publishes a new version, and sends it to the workers that need it; see `Transport.publish`."""
        filled = {index: self._fill(write) for index, write in writes.items()}
        self.version += 1
        if None in filled:
            previous = [self._shared, *self._individual.values()]
            self._shared, self._individual = filled[None], {}
            chosen = list(self._workers.values())
        else:
            previous = [self._individual.get(index) for index in filled]
            self._individual |= filled
            chosen = [peer for index, peer in self._workers.items() if index in filled]
        for weights in previous:
            if weights not in self._granted.values():
                self._retire(weights)
        for peer in chosen:
            self.send(peer)
        return self.version

    def keep(self, version: int) -> None:
        """Keeps the weights that a grant names: the newest, or one of the last two versions that were granted."""
        assert self._shared is not None
        assert version in self._granted or version == self._shared.version
        for weights in keep_granted(self._granted, version, self._shared):
            self._retire(weights)

    def send_version(self, peer: RemotePeer, version: int) -> None:
        """Sends weights that `keep` kept, unless an earlier grant of the worker named the same version."""
        last = peer.versions[-1].version if peer.versions else peer.weights_version
        if last != version:
            peer.versions.append(self._granted[version])
            self.send(peer)

    def newest_weights(self) -> torch.Tensor:
        """Returns a copy of the newest weights that were published for all workers."""
        assert self._shared is not None
        return self._shared.buffer[: self._nbytes].clone()

    def newest_version(self, index: int) -> int:
        """Returns the version of a worker's newest weights; -1 before the first."""
        weights = self._individual.get(index, self._shared)
        return -1 if weights is None else weights.version

    def _fill(self, write: WeightWriter) -> Weights:
        """Returns the weights of the next version, which `write` writes."""
        weights = self._spare.pop() if self._spare else Weights(message_buffer(self._nbytes))
        write(weights.buffer[: self._nbytes])
        weights.version, weights.is_needed = self.version + 1, True
        set_stamp(weights.buffer, weights.version + 1)
        return weights

    def _retire(self, weights: Weights | None) -> None:
        """Marks weights as no longer needed, because newer ones replace them."""
        if weights is not None:
            weights.is_needed = False
            self._release(weights)

    def _release(self, weights: Weights) -> None:
        """Reuses the buffer for another version, unless the weights are still needed or being sent."""
        if not weights.num_users and not weights.is_needed:
            self._spare.append(weights)

    def acknowledge(self, peer: RemotePeer) -> None:
        """Notes that a worker has received its weights, and sends it newer ones, if any. Raises `ValueError` if nothing
        was being sent to the worker."""
        if peer.sending is None:
            raise ValueError("HAVE without WEIGHTS")
        work, weights = peer.sending
        peer.sending = None
        self._num_sending -= 1
        with contextlib.suppress(RuntimeError):
            work.wait()
        weights.num_users -= 1
        self._release(weights)
        self._send_queued()
        self.send(peer)

    def remove(self, peer: RemotePeer) -> None:
        """Removes a worker that is gone."""
        self._queued.pop(peer, None)
        if peer.sending is not None:
            # The buffer may be read until the pair is closed, so it is not reused.
            self._num_sending -= 1
            self._send_queued()

    def send(self, peer: RemotePeer) -> None:
        """Sends a worker its next weights, if it has joined and lacks them; queues it if too many transfers are in
        progress."""
        if self._grants_name_version:
            weights = peer.versions[0] if peer.versions else None
        else:
            weights = self._individual.get(peer.index, self._shared)
        if not peer.has_joined or weights is None:
            return
        if peer.sending is not None or peer.weights_version == weights.version:
            return
        if self._num_sending >= self._max_concurrent:
            self._queued[peer] = None
            return
        assert peer.pair is not None
        try:
            peer.sending = peer.pair.send(weights.buffer), weights
        except RuntimeError:
            return  # the connection is broken as well
        self._num_sending += 1
        weights.num_users += 1
        if self._grants_name_version:
            peer.versions.popleft()
        peer.weights_version = weights.version
        self._send_message(peer, messages.pack_version(messages.WEIGHTS, weights.version))

    def _send_queued(self) -> None:
        while self._queued and self._num_sending < self._max_concurrent:
            self.send(self._queued.popitem(last=False)[0])
