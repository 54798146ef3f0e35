"""Batches on their way to the trainer: what is counted, measured and written down, and read by who looks on."""

import json
import math
from contextlib import closing
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from composed_overrides import composed
from tensordict import TensorDict
from torch import nn

from collectx.collector.collector import ExclusiveUse
from collectx.collector.worker_record import Settings
from collectx.run import RunFolder, execute
from collectx.run.batches import RunBatches
from collectx.run.context import RunContext
from collectx.run.digest import Digest
from collectx.run.folder.batch_line import PartTotals
from collectx.run.folder.result import ResultBuilder
from collectx.run.signals import Signals
from collectx.run.statistics import MetricsTail, RateWindow, Statistics


def test_the_totals_of_a_worker():
    totals = PartTotals()
    assert (totals.frames, totals.lag, totals.episodes, totals.total_return) == (0, 0, 0, 0.0)
    assert totals.shares() == (0.0,) * 4
    totals.add(PartTotals((1.0, 2.0, 0.0, 0.5), 10, 3, 2, 5.0))
    before = replace(totals)
    totals.add(PartTotals((2.0, 0.0, 1.0, 1.0), 20, 1, 0, 0.0))
    assert totals == PartTotals((3.0, 2.0, 1.0, 1.5), 30, 1, 2, 5.0)
    assert totals.since(before) == PartTotals((2.0, 0.0, 1.0, 1.0), 20, 1, 0, 0.0)
    assert totals.since(before).shares() == (0.5, 0.0, 0.25, 0.25)


class FakeCollector:
    """Delivers these deliveries, each with a batch whose observation is its index. All workers take part, but in the
    last one."""

    assembler = None

    def __init__(self, *deliveries):
        self.deliveries, self._versions = deliveries, count(1)
        self.exclusive_use, self.settings = ExclusiveUse(), Settings()
        self._batches = self._deliver()

    def __next__(self):
        return next(self._batches)

    def _deliver(self):
        for each in self.deliveries:
            self.last_batch_info = each
            self.pool = SimpleNamespace(ready_of_started=(2, 4) if each is self.deliveries[-1] else None)
            yield TensorDict({"observation": torch.full([each.frames], each.index)}, [each.frames])

    def grant_next_batch(self):
        pass

    def publish(self, policy):
        return next(self._versions)


def taken(collector, folder, statistics, digest=None, words=(), log=None, **options):
    """Returns the batches of a collector, in a run that begins with these statistics. `words` are overrides."""
    cfg, signals = composed(" ".join(["collector=single", *words])), Signals()
    record = ResultBuilder(cfg, signals)
    record.statistics, record.digest = statistics, digest
    run = RunContext(cfg, folder, signals, record)
    run.log = log or run.log
    return RunBatches(run, collector, **options)


def test_batches_lines_and_sums(folder, batch_info):
    collector = FakeCollector(
        batch_info(0, {"worker": 0, "returns": [3.0]}, {"worker": 1, "returns": [5.0]}),
        batch_info(1, {"worker": 0, "policy_version": 1, "frames": 35}, {"worker": 1, "frames": 5}, version=1),
    )
    statistics, digest, again = Statistics(60), Digest(), Digest()
    collection = taken(collector, folder, statistics, digest, clock=count(100).__next__)
    assert collection.total_frames == statistics.total_frames == 60
    assert math.isnan(collection.mean_return)
    seen, digests = [], []
    for batch in collection:
        seen.append((int(batch["observation"][0]), collection.frames, collection.num_episodes))
        digests.append(again.add(batch))
        collection.log(loss=torch.tensor(0.5) + len(seen))
        collection.log(entropy=1, frames=123456789, rate=0.123456789)
        assert len(list(folder.read_metrics())) == len(seen) - 1
        assert collection.publish(nn.Linear(1, 1)) == len(seen)
    collection.close()
    assert seen == [(0, 20, 2), (1, 60, 2)]
    assert collection.mean_return == 4.0
    assert statistics.scalars == {"loss": 2.5, "entropy": 1.0, "frames": 123456789, "rate": 0.123456789}
    # After the first batch.
    assert (statistics.frames_per_s, statistics.first_s, statistics.last_s) == (40.0, 100, 101)
    first, second = folder.read_metrics()
    first, second = first.to_json(), second.to_json()
    assert (first.get("taking_part"), second["taking_part"]) == (None, [2, 4])
    assert first["return"] == first["mean_return"] == 4.0
    assert second["mean_return"] == 4.0
    assert not {"episodes", "return", "length"} & second.keys()
    assert first["scalars"] == {"loss": 1.5, "entropy": 1.0, "frames": 123456789, "rate": 0.1234568}
    assert (first["frames_per_s"], second["frames_per_s"]) == (None, 40.0)
    assert (second["batch"], second["frames"], second["lag"]) == (1, 60, 0.125)
    told = {"worker": 1, "policy_version": 0, "lag": 1, "frames": 5, "episodes": 0, "return": None}
    assert second["workers"][1] == told | {"env_s": 1.0, "policy_s": 2.0, "wait_s": 3.0, "send_s": 4.0}
    assert ([first["digest"], second["digest"]], digest.total) == (digests, again.total)
    # Who reads the folder has the same numbers.
    replay = MetricsTail(folder.metrics, 60)
    assert replay.update()
    assert replay.scalars == first["scalars"] | {"loss": 2.5}
    same = "frames batches num_episodes waited_s rate mean_return version lag workers"
    for name in same.split():
        assert getattr(replay, name) == getattr(statistics, name), name


def test_the_trainers_share_after_a_resume_is_without_the_start_of_the_process(folder, batch_info):
    def collect(statistics, times_s, waited_s):
        deliveries = [replace(batch_info(index), waited_s=s) for index, s in enumerate(waited_s, statistics.batches)]
        clock = iter(times_s).__next__
        with closing(taken(FakeCollector(*deliveries), folder, statistics, clock=clock)) as collection:
            for _ in collection:
                yield

    old, resumed = Statistics(1000), Statistics(1000)
    list(collect(old, [0.0, 10.0], [50.0, 5.0]))
    resumed.load(old.state(), 100.0)
    replay = MetricsTail(folder.metrics, 1000)
    replay.update()
    live, read = RateWindow(resumed, 100.0), RateWindow(replay, 100.0)
    assert (live.view(100.0).trainer_share, read.view(100.0).trainer_share) == (None, 0.5)
    # The workers start for 60 s, after this process has imported what it needs for 40 s.
    collected, shares = collect(resumed, [200.0, 210.0, 220.0], [60.0, 1.0, 1.0]), []
    for now_s in (200.0, 210.0, 220.0):
        next(collected)
        shares.append(live.view(now_s).trainer_share)
    assert shares == [None, 0.9, 0.9]
    list(collected)
    replay.update()
    assert read.view(220.0).trainer_share == 0.9
    assert [line.resumed for line in folder.read_metrics()] == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("hello", "an object of type str"),
        ([1, 2], "an object of type list"),
        (torch.zeros(2, requires_grad=True), r"values of shape \[2\]"),
        (None, "an object of type NoneType"),
    ],
)
def test_what_is_no_number_is_not_logged_and_said_so(folder, batch_info, value, what):
    with closing(taken(FakeCollector(batch_info(0)), folder, Statistics(-1))) as collection:
        next(collection)
        words = rf"^collection\.log\(note=\.\.\.\) got {what}\. Pass a number, or a tensor"
        with pytest.raises(TypeError, match=words):
            collection.log(loss=1.0, note=value)


@pytest.mark.parametrize(
    ("value", "what"), [(torch.nn.Linear(2, 2).state_dict(), "its state dict"), ("mine", "an object of type str")]
)
def test_what_is_no_module_is_not_published(folder, batch_info, value, what):
    with closing(taken(FakeCollector(batch_info(0)), folder, Statistics(-1))) as collection:
        next(collection)
        with pytest.raises(TypeError, match=rf"^publish takes .*, not {what}\. Write collection.publish\(policy\)\.$"):
            collection.publish(value)


def test_fast_batches_have_the_workers_times_once_a_second_and_their_sums(folder, batch_info):
    statistics, clock = Statistics(-1), (0.375 * index for index in count(10))
    deliveries = [batch_info(index, {"worker": 3, "policy_version": index, "returns": [index]}) for index in range(18)]
    with closing(taken(FakeCollector(*deliveries), folder, statistics, clock=clock.__next__)) as collection:
        list(collection)
    entries = [line.workers[0] for line in folder.read_metrics()]
    assert [(entry.worker, entry.policy_version) for entry in entries] == [(3, index) for index in range(18)]
    sums = {index: entry.totals.frames for index, entry in enumerate(entries) if entry.totals is not None}
    # A run that ends within the first seconds has the times of most batches.
    assert sums == {0: 10, 1: 10, 2: 10, 3: 10, 4: 10, 6: 20, 8: 20, 11: 30, 14: 30, 17: 30}
    assert entries[17].totals.total_return == 15 + 16 + 17
    replay = MetricsTail(folder.metrics, -1)
    replay.update()
    assert replay.workers == statistics.workers


def test_mean_return_is_over_the_last_episodes(batch_info):
    statistics, means = Statistics(-1), []
    for returns in ([1000.0] * 10, [], [1.0] * 60 + [3.0] * 40):
        statistics.add(batch_info(0, {"returns": returns}), 0.0)
        means.append(statistics.mean_return)
    assert means == [1000.0, 1000.0, pytest.approx(1.8)]
    assert statistics.num_episodes == 110


@pytest.mark.parametrize(
    ("version", "words", "is_said"), [(1, (), True), (0, (), False), (1, ["checkpoint.keep_best=mean_return"], False)]
)
def test_a_return_that_fell_is_said_where_a_trainer_learns_and_keeps_no_best(
    folder, batch_info, version, words, is_said
):
    returns = (20.0, 390.0, 120.0)
    infos = [batch_info(i, {"returns": [mean] * 100}, version=version) for i, mean in enumerate(returns)]
    said = []
    collection = taken(
        FakeCollector(*infos), folder, Statistics(-1), words=words, log=lambda name, **fields: said.append(fields)
    )
    frames = [len(batch) for batch in collection]
    collection.close()
    assert said == ([{"best": 390.0, "frames": sum(frames[:2]), "last": 120.0}] if is_said else [])


def test_the_line_of_a_batch_is_written_while_the_next_one_is_filled(folder, batch_info):
    class Watched(FakeCollector):
        def grant_next_batch(self):
            numbers.append(len([*folder.read_metrics()]))

    numbers = []
    with closing(taken(Watched(*map(batch_info, range(3))), folder, Statistics(-1))) as collection:
        next(collection)
        next(collection)
        assert (numbers, len([*folder.read_metrics()])) == ([0, 0], 1)
        next(collection)
        assert (numbers, len([*folder.read_metrics()])) == ([0, 0, 1], 2)


def test_the_line_of_a_batch_is_written_before_a_checkpoint(folder, batch_info):
    def check(complete):
        complete()
        numbers.append(len([*folder.read_metrics()]))

    numbers = []
    with closing(taken(FakeCollector(*map(batch_info, range(2))), folder, Statistics(-1), check=check)) as collection:
        list(collection)
    assert numbers == [0, 1, 2]


def test_a_lost_signal_stops_at_the_next_batch(folder, batch_info):
    check = Mock(side_effect=KeyboardInterrupt)
    collection = taken(FakeCollector(batch_info(0)), folder, Statistics(-1), check=check)
    with closing(collection), pytest.raises(KeyboardInterrupt):
        next(collection)


def test_iteration_goes_on_where_it_stopped(folder, batch_info):
    with closing(taken(FakeCollector(*map(batch_info, range(3))), folder, Statistics(-1))) as collection:
        for _ in collection:
            break
        assert [int(batch["observation"][0]) for batch in collection] == [1, 2]


@pytest.mark.parametrize(
    ("words", "is_said"),
    [
        ("policy=mlp trainer.target=user_code.several_learners:TooEarly", True),
        ("policy=random trainer.target=user_code.several_learners:TooEarly", False),  # nothing to publish
        ("policy=mlp trainer.target=collectx.trainer.base:MeterTrainer run.max_batches=1", False),
        ("policy=mlp trainer.target=user_code.several_learners:Publishing", False),
    ],
)
def test_a_trainer_that_publishes_no_weights_is_said(words, is_said, tmp_path, capsys):
    base = "collector=single env=cartpole collector.frames_per_batch=16 collector.total_frames=32 trainer=custom"
    assert execute(composed(f"{base} {words}"), tmp_path / "run", []).status == "completed"
    assert ("Call collection.publish(policy) after each update." in capsys.readouterr().out) is is_said


def test_lines_are_taken_in_as_they_come_and_a_run_begun_anew_from_its_beginning(cfg, tmp_path):
    folder = RunFolder(tmp_path)
    execute(cfg, folder.path, [])
    first, second, third, *_ = folder.metrics.read_bytes().splitlines(keepends=True)
    folder.metrics.unlink()
    replay, seen = MetricsTail(folder.metrics, 100), []
    assert not replay.update()
    for text in (first, second + third[:9], b"", third[9:]):
        with open(folder.metrics, "ab") as file:
            file.write(text)
        seen.append((replay.update(), replay.frames))
    assert seen == [(True, 20), (True, 40), (False, 40), (True, 60)]
    assert [frames for _, frames, _ in replay.curve] == [20, 40, 60]
    folder.metrics.rename(tmp_path / "old")
    folder.metrics.write_bytes(first)
    assert replay.update()
    assert (replay.frames, replay.batches, replay.num_episodes, replay.total_frames) == (20, 1, 0, 100)
    assert len(replay.curve) == 1


def test_the_curve_of_a_long_run_is_thinned_from_its_first_batch_to_its_last(tmp_path):
    line = {"time": 5.0, "frames_per_s": 10.0, "waited_s": 0.0, "version": 0, "lag": 0.0, "mean_return": 1.0}
    lines = (json.dumps(line | {"batch": batch, "frames": 10 * (batch + 1)}) for batch in range(9001))
    (tmp_path / "metrics.jsonl").write_text("".join(f"{each}\n" for each in lines))
    replay = MetricsTail(tmp_path / "metrics.jsonl", -1)
    replay.update()
    assert 1000 <= len(replay.curve) <= 2000
    assert replay.curve[0] == (0.0, 10, 1.0)
    assert replay.curve[-1] == (pytest.approx(9000.0), 90010, 1.0)
    assert replay.curve == sorted(replay.curve)
