"""The slab: one memory for all, seen alike from both ends, without a name, and weights that are never torn."""

import os
import tempfile
from multiprocessing.connection import Pipe

import pytest
import torch
from user_code.toyworker import NUMBER, batch_spec, writer

from collectx.transport.slab import Slab


def test_slots_do_not_reach_into_others_weights_or_header():
    slab = Slab(batch_spec(weights_nbytes=100), shared=False)
    slab.publish({None: writer(7)})
    slab.publish({None: writer(8)})
    places = [slab.region_of(worker, slot) for worker in range(2) for slot in range(2)]
    for number, place in enumerate(places, 1):
        slab.region(place).fill_(number)
    assert [slab.region(place).unique().tolist() for place in places] == [[1], [2], [3], [4]]
    seen = torch.zeros(100, dtype=torch.uint8)
    assert slab.refresh(seen.copy_, -1, 0) == 1
    assert seen.eq(8).all()
    for worker in (0, 1):
        slab.publish({worker: writer(10 + worker)})
    assert [slab.refresh(seen.copy_, 1, worker) for worker in (0, 1)] == [2, 3]
    assert seen.eq(11).all()
    assert [slab.region(place).unique().tolist() for place in places] == [[1], [2], [3], [4]]
    assert slab.stop[0] == 0


def test_a_refresh_reads_what_is_new_and_again_where_it_is_overtaken():
    slab, seen = Slab(batch_spec(weights_nbytes=8), shared=False), []

    def read(buffer):
        seen.append(int(buffer[0]))
        if len(seen) == 1:
            slab.publish({None: writer(2)})

    assert slab.refresh(read, -1, 0) == -1
    assert slab.publish({None: lambda buffer: seen.append(slab.version)}) == 0
    assert seen.pop() == -1  # the number comes after the bytes
    slab.publish({None: writer(1)})
    assert [slab.refresh(read, version, 0) for version in (0, 2)] == [2, 2]
    assert seen == [1, 2]


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
