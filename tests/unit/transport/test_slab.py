"""The slab: one memory for all, seen alike from both ends, without a name, and weights that are never torn."""

from __future__ import annotations

import os
import pickle
import tempfile
from multiprocessing.connection import Pipe

import pytest
import torch
from worlds.toyworker import NUMBER, slab_spec, writer

from collectx.transport.slab import Slab


def test_slots_of_one_region_each_do_not_overlap():
    slab = Slab(slab_spec(num_workers=3, num_slots=2), shared=False)
    for worker in range(3):
        for index in range(2):
            slab.slot(worker, index).tensors[NUMBER].fill_(10 * worker + index)
    for worker in range(3):
        for index in range(2):
            assert slab.slot(worker, index).tensors[NUMBER].eq(10 * worker + index).all()


def test_a_joined_region_holds_all_workers_rows_in_order():
    slab = Slab(slab_spec(num_workers=3, num_slots=2, joined=True, rows=2), shared=False)
    for worker in range(3):
        slab.slot(worker, 1).tensors[NUMBER].fill_(worker)
    joined = slab.region_layout.slot(slab.region(0, 1)).tensors[NUMBER]
    assert joined.shape == (6, 3, 2)
    assert joined[:, 0, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert slab.region(0, 1).data_ptr() == slab.region(2, 1).data_ptr()
    assert not slab.region(0, 0).any()


def test_slots_do_not_reach_into_weights_or_header():
    slab = Slab(slab_spec(weights_nbytes=100), shared=False)
    slab.publish(writer(7))
    slab.publish(writer(8))
    for worker in range(2):
        for index in range(2):
            slab.region(worker, index).fill_(255)
    seen = torch.zeros(100, dtype=torch.uint8)
    assert slab.refresh(seen.copy_, -1) == 1
    assert seen.eq(8).all()
    assert slab.stop[0] == 0


def test_versions_count_from_zero_and_refresh_reads_only_what_is_new():
    slab = Slab(slab_spec(weights_nbytes=8), shared=False)
    calls = []

    def read(buffer):
        calls.append(int(buffer[0]))

    assert slab.refresh(read, -1) == -1
    assert [slab.publish(writer(value)) for value in (5, 6)] == [0, 1]
    assert slab.refresh(read, 0) == 1
    assert slab.refresh(read, 1) == 1
    assert calls == [6]
    empty = Slab(slab_spec(weights_nbytes=0), shared=False)
    assert [empty.publish(lambda buffer: None), empty.refresh(lambda buffer: None, -1)] == [0, 0]


def test_a_refresh_that_is_overtaken_reads_again():
    slab = Slab(slab_spec(weights_nbytes=8), shared=False)
    slab.publish(writer(1))
    seen = []

    def read(buffer):
        seen.append(int(buffer[0]))
        if len(seen) == 1:
            slab.publish(writer(2))

    assert slab.refresh(read, -1) == 1
    assert seen == [1, 2]


def test_a_private_slab_refuses_to_travel():
    with pytest.raises(TypeError, match="a private slab cannot be sent"):
        pickle.dumps(Slab(slab_spec(), shared=False))


@pytest.mark.parametrize("has_memfd", [True, False])
def test_shared_memory_is_an_anonymous_file_which_other_processes_map(has_memfd, tmp_path, monkeypatch):
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    slab = Slab(slab_spec(), shared=True)
    assert list(tmp_path.iterdir()) == []
    here, there = Pipe()  # as processes do that are being started
    with here, there:
        there.send(slab)
        other = here.recv()
    slab.slot(1, 0).tensors[NUMBER].fill_(7)
    assert other.slot(1, 0).tensors[NUMBER].eq(7).all()
    assert slab.publish(writer(3)) == other.version == 0
    slab.close_descriptor()
    slab.close_descriptor()
