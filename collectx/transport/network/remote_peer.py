"""The trainer's record of a worker that it reaches over a network."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from collectx.transport.network.p2p import Pair, PendingReceive, PendingSend
from collectx.transport.peer import Peer


@dataclass(eq=False)
class Weights:
    """The bytes of one weight version.

    Attributes:
        buffer: the bytes, stamped with `version + 1`.
        num_users: number of workers to which they are being sent.
        is_needed: whether this is the newest version of some worker, or one of the last two that were granted.
    """

    buffer: torch.Tensor
    version: int = -1
    num_users: int = 0
    is_needed: bool = False


@dataclass(eq=False)
class RemotePeer(Peer):
    """The trainer's record of a worker that it reaches over a network; see `Peer`.

    Attributes:
        info: what the worker told when it connected: host, pid, job.
        is_making_pair: whether the worker has begun to make its end of the pair.
        pair: the pair for slots and weights; None until it has been made.
        queued_before_join: functions that send earlier grants and requests, called in order when the worker joins.
        incoming: the receives that were posted, by slot.
        weights_version: the weight version that is being sent, or was sent last.
        versions: with `SlotSpec.grants_name_version`, the weights that grants name and that are still to be sent.
    """

    make_spec: Callable[[], dict[str, Any]] = dict
    info: dict[str, Any] = field(default_factory=dict)
    is_making_pair: bool = False
    pair: Pair | None = None
    queued_before_join: list[Callable[[], None]] = field(default_factory=list)
    incoming: dict[int, PendingReceive] = field(default_factory=dict)
    weights_version: int = -1
    sending: tuple[PendingSend, Weights] | None = None
    versions: deque[Weights] = field(default_factory=deque)
