"""The slab: one memory for all, seen alike from both ends, without a name, and weights that are never torn."""

from __future__ import annotations

import os
import pickle
from multiprocessing import Pipe

import pytest
import torch
from worlds.toyworker import LEAVES, NUMBER, read_versions, slab_spec, writer

from collectx.launcher.local import LocalLauncher
from collectx.transport.shared_memory import SharedMemoryLink
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


def test_weights_of_no_bytes_have_versions_too():
    slab = Slab(slab_spec(weights_nbytes=0), shared=False)
    assert slab.publish(lambda buffer: None) == 0
    assert slab.refresh(lambda buffer: None, -1) == 0


def test_a_private_slab_refuses_to_travel():
    with pytest.raises(TypeError, match="a private slab cannot be sent"):
        pickle.dumps(Slab(slab_spec(), shared=False))


def test_shared_memory_has_no_name_in_the_file_system():
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    slab = Slab(slab_spec(), shared=True)
    link = os.readlink(f"/proc/self/fd/{slab._descriptor}")
    assert "(deleted)" in link
    assert not {name for name in os.listdir("/dev/shm") if "collectx" in name} - before
    slab.close_descriptor()
    slab.close_descriptor()


def test_the_leaves_are_those_of_the_spec():
    assert set(Slab(slab_spec(), shared=False).slot(0, 0).tensors) == {leaf.key for leaf in LEAVES}


@pytest.mark.parametrize("nbytes", [64, 4_000_000])
def test_weights_are_never_torn_while_another_process_reads(nbytes):
    slab = Slab(slab_spec(num_workers=1, num_slots=1, weights_nbytes=nbytes), shared=True)
    last = 2000 if nbytes < 1000 else 300
    ours, theirs = Pipe()
    link_end, unused = Pipe()
    link = SharedMemoryLink(slab, 0, link_end)
    reader = LocalLauncher(1).start(read_versions, (link, last, theirs), 0)
    theirs.close()
    slab.close_descriptor()
    version = slab.publish(writer(0))
    assert ours.poll(60), "the reader did not see the first version"
    assert ours.recv() == "reading"
    while version < last:
        version = slab.publish(writer((version + 1) % 251))
    assert ours.poll(60), "the reader did not see the last version"
    state = ours.recv()
    reader.join(60)
    for end in (ours, link_end, unused):
        end.close()
    assert (state["torn"], state["wrong"]) == (0, 0)
    assert state["seen"] > 1
