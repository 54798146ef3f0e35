"""Which weights each remote worker is sent, and from which memory. Pairs are stand-ins."""

import random
from dataclasses import replace

import pytest
from user_code.toyworker import batch_spec, writer

from collectx.transport.messages import unpack_version
from collectx.transport.network import weight_sync
from collectx.transport.network.admission import RemotePeer
from collectx.transport.network.p2p import stamp_of
from collectx.transport.network.weight_sync import WeightSync
from collectx.transport.peer import JoinState

SPEC = batch_spec(4, weights_nbytes=8)


class Channel:
    """A pair to a worker that may still receive everything that it was sent: `sent` has each buffer, and a copy of its
    bytes."""

    def __init__(self):
        self.sent = []

    def send(self, buffer):
        self.sent.append((buffer, buffer.clone()))
        return self

    def wait(self):
        """Completes the transfer, which is the only one in progress."""
        self.sent.clear()


@pytest.mark.parametrize("most_sending", [1, 2, 100])
def test_a_buffer_is_not_written_to_before_it_is_received(monkeypatch, most_sending):
    """Four workers, one of which leaves and never receives; versions for all and for some, in any order."""
    monkeypatch.setattr(weight_sync, "_MIN_CONCURRENT", most_sending)
    monkeypatch.setattr(weight_sync, "_TRANSFER_BYTES", 0)
    workers = {index: RemotePeer(index, state=JoinState.JOINED, pair=Channel()) for index in range(4)}
    sync, draw, buffers, expected = WeightSync(SPEC, workers, lambda *message: None), random.Random(0), set(), {}

    def check():
        num_sending = sum(bool(each.sending) for each in workers.values() if each.state is JoinState.JOINED)
        assert num_sending <= most_sending
        for worker in workers.values():
            for buffer, copy in worker.pair.sent:
                assert buffer.equal(copy)
                buffers.add(buffer.data_ptr())

    for number in range(1, 300):
        sending = [worker for worker in workers.values() if worker.sending and worker.state is JoinState.JOINED]
        if number > 100 and workers[3] in sending:
            workers[3].state = JoinState.GONE
            sync.remove(workers[3])
        elif sending and draw.random() < 0.5:
            sync.acknowledge(draw.choice(sending))
        elif draw.random() < 0.5:
            expected = dict.fromkeys(workers, sync.publish({None: writer(number % 256)}))
        else:
            chosen = draw.sample(sorted(workers), 2)
            expected |= dict.fromkeys(chosen, sync.publish(dict.fromkeys(chosen, writer(number % 256))))
        check()
    for _ in range(2 * len(workers)):
        for worker in workers.values():
            if worker.state is JoinState.JOINED and worker.sending:
                assert stamp_of(worker.pair.sent[0][0]) == worker.weights_version + 1
                sync.acknowledge(worker)
    assert all(workers[index].weights_version == expected[index] for index in range(3))
    assert len(buffers) < 12  # each is used again


def test_named_versions_are_sent_one_after_the_other_and_once(monkeypatch):
    """One transfer at a time: worker 1 is granted three slots before its first weights can be sent."""
    monkeypatch.setattr(weight_sync, "_MIN_CONCURRENT", 1)
    monkeypatch.setattr(weight_sync, "_TRANSFER_BYTES", 0)
    workers = {index: RemotePeer(index, state=JoinState.JOINED, pair=Channel()) for index in range(2)}
    told = []
    spec = replace(SPEC, grants_name_version=True)
    sync = WeightSync(spec, workers, lambda peer, message: told.append((peer.index, unpack_version(message))))
    for version, granted in ((0, [0, 1, 1]), (1, [1])):
        assert sync.publish({None: writer(version)}) == version
        sync.keep(version)
        for index in granted:
            sync.send_version(workers[index], version)
    assert [weights.version for weights in workers[1].versions] == [0, 1]
    for index in (0, 1, 1):
        assert workers[index].pair.sent[-1][1][0] == workers[index].weights_version
        sync.acknowledge(workers[index])
    assert told == [(0, 0), (1, 0), (1, 1)]
    sync.send_version(workers[1], 1)
    assert told[3:] == []
    with pytest.raises(ValueError, match="HAVE without WEIGHTS"):
        sync.acknowledge(workers[0])
