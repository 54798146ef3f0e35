"""A worker without env or policy, for tests of transports: fills a slot with (worker, count, weights it read)."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import torch

from collectx.batch import Leaf
from collectx.transport.base import SlabSpec, Tally

NUMBER = ("number",)
LEAVES = (Leaf(NUMBER, (2,), torch.int64), Leaf(("small",), (3,), torch.uint8))
WEIGHTS_NBYTES = 4096


def slab_spec(num_workers=2, num_slots=2, joined=False, rows=2, steps=3, weights_nbytes=WEIGHTS_NBYTES):
    return SlabSpec(LEAVES, rows, steps, num_workers, num_slots, joined, weights_nbytes)


def writer(value):
    return lambda buffer: buffer.fill_(value)


def work(worker, link, fault=None):
    """Yields after each batch; the third one goes wrong as `fault` says."""
    seen = np.zeros(1, np.int64)

    def read(buffer):
        assert len(set(buffer.tolist())) <= 1, "two versions of the weights are mixed"
        seen[0] = int(buffer[0])

    version, count = -1, 0
    while (slot := link.acquire()) is not None:
        if count == 2 and fault is not None:
            go_wrong(fault)
        version = link.refresh(read, version)
        link.slots[slot].tensors[NUMBER][...] = torch.tensor([worker, count])
        link.send(slot, Tally(version, 0.0, 0.0, 0.0, 0.0, ((float(seen[0]), count),)))
        count += 1
        yield


def serve(worker, link, fault=None):
    try:
        for _ in work(worker, link, fault):
            pass
    except BaseException as error:
        link.fail(error)
        raise


def go_wrong(fault):
    if fault == "raise":
        raise KeyError("gone wrong")
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "exit":
        os._exit(3)
    if fault == "hang":
        time.sleep(1000)


def read_versions(link, wanted, connection):
    """Refreshes until version `wanted`, asserting in `read` order; reports how many versions were seen and any torn."""
    state = {"torn": 0, "seen": 0, "wrong": 0}
    held = torch.zeros(link._slab.spec.weights_nbytes, dtype=torch.uint8)
    version = -1
    while version < wanted:
        newest = link.refresh(held.copy_, version)
        if newest != version:
            state["seen"] += 1
            first = int(held[0])
            state["torn"] += int((held != first).any())
            state["wrong"] += int(first != newest % 251)
            assert newest > version
        version = newest
    connection.send(state)
    connection.close()
