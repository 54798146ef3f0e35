import math

import pytest
import torch
from torch import nn

from collectx.run.collection import RunCollection
from collectx.run.digest import Digest
from collectx.run.events import EventLog
from collectx.run.statistics import Statistics


def test_batches_lines_and_sums(folder, part, delivery, fake_collector, clock):
    deliveries = [
        delivery(0, [part(0, returns=[3.0]), part(1, returns=[5.0])], version=0),
        delivery(1, [part(0, policy_version=1), part(1, policy_version=0)], version=1),
    ]
    events = EventLog(folder)
    statistics = Statistics(7)
    collection = RunCollection(fake_collector(deliveries, 40), folder, statistics, events=events, clock=clock)
    assert collection.total_frames == statistics.total_frames == 40
    assert math.isnan(collection.mean_return)
    seen = []
    for batch in collection:
        seen.append((int(batch["observation"][0, 0]), collection.frames, collection.num_episodes))
        collection.log(loss=torch.tensor(0.5) + len(seen))
        collection.log(entropy=1)
        assert len(list(folder.read_metrics())) == len(seen) - 1
        assert collection.publish(nn.Linear(1, 1)) == len(seen)
    collection.close()
    events.close()
    assert seen == [(0, 20, 2), (1, 40, 2)]
    assert collection.mean_return == 4.0
    assert statistics.scalars == {"loss": 2.5, "entropy": 1.0}
    first, second = folder.read_metrics()
    assert first["return"] == first["mean_return"] == second["mean_return"] == 4.0
    assert second["return"] is None
    assert first["scalars"] == {"loss": 1.5, "entropy": 1.0}
    assert (first["frames_per_s"], second["frames_per_s"]) == (None, 20.0)
    assert (second["batch"], second["frames"], second["batch_frames"], second["lag"]) == (1, 40, 20, 0.5)
    assert second["workers"][1] == {
        "worker": 1,
        "policy_version": 0,
        "lag": 1,
        "frames": 10,
        "env_s": 1.0,
        "policy_s": 2.0,
        "wait_s": 3.0,
        "send_s": 4.0,
        "episodes": 0,
        "return": None,
    }
    assert "digest" not in first
    assert [(line["event"], line["version"], line["frames"]) for line in folder.read_events()] == [
        ("publish", 1, 20),
        ("publish", 2, 40),
    ]


def test_digests_are_in_the_lines(folder, part, delivery, fake_collector):
    digest = Digest()
    collection = RunCollection(
        fake_collector([delivery(i, [part()]) for i in range(2)]), folder, Statistics(-1), digest
    )
    again = Digest()
    expected = [again.add(batch) for batch in collection]
    collection.close()
    assert [line["digest"] for line in folder.read_metrics()] == expected
    assert digest.total == again.total


def test_the_last_line_is_written_when_the_trainer_raises(folder, part, delivery, fake_collector):
    collection = RunCollection(fake_collector([delivery(0, [part()])]), folder, Statistics(-1))
    next(collection)
    collection.log(loss=float("nan"))
    collection.close()
    collection.close()
    (line,) = folder.read_metrics()
    assert line["scalars"] == {"loss": None}


def test_a_lost_signal_stops_at_the_next_batch(folder, part, delivery, fake_collector):
    def check():
        raise KeyboardInterrupt

    collection = RunCollection(fake_collector([delivery(0, [part()])]), folder, Statistics(-1), check=check)
    with pytest.raises(KeyboardInterrupt):
        next(collection)
    collection.close()


def test_iteration_goes_on_where_it_stopped(folder, part, delivery, fake_collector):
    collection = RunCollection(fake_collector([delivery(i, [part()]) for i in range(3)]), folder, Statistics(-1))
    for _ in collection:
        break
    assert [int(batch["observation"][0, 0]) for batch in collection] == [1, 2]
    collection.close()
