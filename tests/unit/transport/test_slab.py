"""The slab: one memory for all, seen alike from both ends, without a name, and weights that are never torn."""

import os
import random
import tempfile
from dataclasses import replace
from multiprocessing.connection import Pipe

import pytest
import torch
from user_code.toyworker import NUMBER, batch_spec, writer

from collectx.transport.base import Arrival
from collectx.transport.slab import NO_WORKER, Slab, SlabLink


@pytest.mark.parametrize("individual", [False, True])
def test_weights_that_are_read_while_newer_ones_are_written_are_whole(individual):
    slab, read = Slab(batch_spec(weights_nbytes=8), shared=False), []

    def publish(write):
        return slab.publish({0 if individual else None: write})

    for number in range(5):

        def write(buffer, number=number):
            for half in (slice(0, 4), slice(4, 8)):
                buffer[half] = number
                if number:
                    version = slab.refresh(lambda seen: read.append(seen.tolist()), -1, 0)
                    assert (version, read[-1]) == (number - 1, [number - 1] * 8)

        assert publish(write) == number
    assert len(read) == 8


@pytest.mark.parametrize("has_memfd", [True, False])
def test_shared_memory_is_an_anonymous_file_which_other_processes_map(has_memfd, tmp_path, monkeypatch):
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    slab = Slab(batch_spec(), shared=True)
    assert list(tmp_path.iterdir()) == []
    here, there = Pipe()  # as processes do that are being started
    with here, there:
        there.send(slab)
        other = here.recv()
    slab.slot(1, 0).tensors[NUMBER].fill_(7)
    assert other.slot(1, 0).tensors[NUMBER].eq(7).all()
    assert slab.publish({None: writer(3)}) == other.version == 0
    slab.close_descriptor()
    slab.close_descriptor()


@pytest.mark.parametrize("seed", range(3))
def test_a_walk_of_weights(seed):
    """Each of three workers, and the inference server, reads the newest weights that are its own, once."""
    draw, slab = random.Random(seed), Slab(replace(batch_spec(3, weights_nbytes=9), first_version=5), shared=False)
    links = {worker: SlabLink(slab, worker) for worker in (0, 1, 2, NO_WORKER)}
    newest = dict.fromkeys(links, (4, None))
    known = dict(newest)
    for number in range(200):
        if draw.random() < 0.5:
            chosen = draw.choice([[None], [draw.randrange(3)], draw.sample(range(3), 2)])
            version = slab.publish(dict.fromkeys(chosen, writer(number)))
            assert version == slab.version == max(number for number, _ in newest.values()) + 1
            newest |= dict.fromkeys(links if None in chosen else chosen, (version, [number] * 9))
        worker, read = draw.choice([*links]), []
        before, value = known[worker]
        version = links[worker].refresh(lambda buffer, read=read: read.append(buffer.tolist()), before)
        assert read == ([] if newest[worker][0] == before else [newest[worker][1]])
        known[worker] = (version, read[0] if read else value)
        assert known[worker] == newest[worker]
    assert slab.newest_weights().tolist() == newest[NO_WORKER][1]


@pytest.mark.parametrize("seed", range(3))
def test_a_walk_of_named_weights(seed):
    """Two batches are filled at a time, each with the version of its grant; others are published meanwhile."""
    draw, spec = random.Random(seed), replace(batch_spec(2, weights_nbytes=9), grants_name_version=True)
    slab = Slab(spec, shared=False)
    links, granted, read = [SlabLink(slab, worker) for worker in range(2)], [], []
    slab.publish({None: writer(0)})
    for number in range(1, 200):
        version = slab.publish({None: writer(number)})
        assert version == slab.version == number
        granted = granted[-1:]  # nothing is published while a worker needs the version before
        if draw.random() < 0.5:
            granted.append((version, slab.pointer_to(version)))
            assert [slab.pointer_to(version) for version, _ in granted] == [pointer for _, pointer in granted]
        for link in links:
            # The older batch until the worker has begun the other.
            link.pointer = granted[draw.randrange(len(granted))][1] if granted else link.pointer
            before = draw.choice([-1, link.pointer >> 1])
            assert link.refresh(lambda buffer: read.append(buffer.tolist()), before) == max(before, link.pointer >> 1)
            assert read == ([] if before == link.pointer >> 1 else [[link.pointer >> 1] * 9])
            read.clear()


@pytest.mark.parametrize(("stacked", "shared"), [(False, False), (True, False), (False, True)])
def test_a_walk_of_leased_batches(stacked, shared):
    """Kept batches do not change. As many batches are leased as regions are spare; the others are copies."""
    draw, lacks = random.Random(0), []
    slab = Slab(replace(batch_spec(2, 2), stacked=stacked, num_spare=2), shared)
    slab.leases.on_lack = lambda: lacks.append(1)
    kept = {}  # by number: the memory, whether it is leased, and its bytes
    for number in range(150):
        slot = draw.randrange(2)
        workers = (0, 1) if stacked else (draw.randrange(2),)
        parts = [Arrival(worker, slot, None) for worker in workers]
        for worker in workers:
            region = slab.region_of(worker, slot)
            assert slab.slot_in(worker, region) == slot
            slab.slot(worker, region).tensors[NUMBER].fill_(10 * number + worker)
        memory, num_leased = slab.lease(parts), sum(is_leased for _, is_leased, _ in kept.values())
        assert (memory is None) is (num_leased == 2)
        is_leased = memory is not None
        if not is_leased:
            memory = slab.gather(parts, copy=True)
        kept[number] = memory, is_leased, memory.clone()
        rows = slab.spec.layout(len(parts)).slot(memory).tensors[NUMBER].reshape(len(parts), -1)
        assert rows.unique(dim=1).tolist() == [[10 * number + worker] for worker in workers]
        del memory, rows
        slab.release(parts)
        for each in draw.sample(sorted(kept), draw.randrange(min(3, len(kept) + 1))):
            assert torch.equal(kept[each][0], kept.pop(each)[2])
    assert len(lacks) == 1
    slab.close_descriptor()
