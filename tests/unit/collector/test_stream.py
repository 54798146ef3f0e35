"""The batches of a collector as its consumer gets them."""

import os
import threading
from types import SimpleNamespace

import pytest
import torch
from configurations import config
from tensordict import TensorDict

from collectx.batch import POLICY_VERSION, SETTINGS_VERSION
from collectx.collector import WrittenBatch, stream
from collectx.collector.collector import ExclusiveUse
from collectx.collector.stream import Stream


class Core:
    """Yields batches of two parts with three steps."""

    filled_steps = (3, 1)
    env_of = None

    def __init__(self, *batches, settings=()):
        self.batches, self.last_batch_info, self.calls = [*batches], SimpleNamespace(settings=settings), []

    def __next__(self):
        return self.batches.pop(0)

    def state(self, wait):
        return f"state {wait}"

    def load(self, state, seed):
        self.calls.append((state, seed))
        return {1: "a lock"}


def batch():
    return TensorDict({"collector": {"policy_version": torch.tensor([[4] * 3, [5] * 3])}}, [2, 3])


@pytest.mark.parametrize(
    ("knobs", "offset", "settings", "is_concatenated", "versions", "has_mask"),
    [
        ({}, 0, (), False, [[4] * 3, [5] * 3], False),
        ({}, 3, (), False, [[7] * 3, [8] * 3], False),
        ({}, 0, (1, 2), False, [[4] * 3, [5] * 3], False),
        ({"preemptive_threshold": 0.5}, 0, (), False, [[4] * 3, [5] * 3], True),
        ({"preemptive_threshold": 0.5}, 1, (0, 7), True, [[5] * 3, [6] * 3], False),
    ],
)
def test_what_is_added_to_batches(knobs, offset, settings, is_concatenated, versions, has_mask, monkeypatch):
    masked = []
    monkeypatch.setattr(stream, "add_mask", lambda batch, steps: masked.append(steps))
    core = Core(batch(), batch(), WrittenBatch(6), settings=settings)
    made = Stream(core, config(**knobs).collector, is_concatenated=is_concatenated)
    made.version_offset = offset
    for collect in (made.collect, lambda: made.next(made.collect)):
        found = collect()
        assert found[POLICY_VERSION].tolist() == versions
        assert SETTINGS_VERSION in found.keys(True) if settings else SETTINGS_VERSION not in found.keys(True)
        if settings:
            assert found[SETTINGS_VERSION].tolist() == [[each] * 3 for each in settings]
            found[SETTINGS_VERSION][0, 0] += 1  # of one frame alone
            assert found[SETTINGS_VERSION][0].tolist() == [settings[0] + 1, settings[0], settings[0]]
    assert made.collect() == WrittenBatch(6)
    made.mark_gaps(batch(), (2, 3))
    assert masked == ([(3, 1), (3, 1), (2, 3)] if has_mask else [])
    made.forget()
    assert made.state(False) == {"collector": "state False", "assembler": None}
    assert made.load({"collector": "kept", "assembler": {"a": 1}}, 7) == {1: "a lock"}
    assert core.calls == [("kept", 7)]


def test_trajectories_are_joined_from_as_many_batches_as_they_take(monkeypatch):
    calls, ready = [], [None, None, "trajectories"]

    class Assembler:
        def __init__(self, *arguments):
            calls.append(("made", *arguments[:3], arguments[5]))

        def take(self):
            return ready.pop(0)

        def __getattr__(self, name):
            return lambda *arguments: calls.append((name, *arguments)) or name

    monkeypatch.setattr(stream, "Assembler", Assembler)
    for ends_with_batch in (False, True):
        options = config(trajs_per_batch=3, reset_at_each_iter=ends_with_batch).collector
        made = Stream(Core(), options, prefix="collector.")
        assert calls.pop() == ("made", 3, options.traj_format, ends_with_batch, "collector.")
    numbers = iter("ab")
    assert made.next(lambda: next(numbers)) == "trajectories"
    made.forget()
    assert made.state() == {"collector": "state True", "assembler": "state"}
    made.load({"collector": "kept", "assembler": None}, 7)
    made.load({"collector": "kept", "assembler": "saved"}, 7)
    assert calls == [("add", "a"), ("add", "b"), ("forget",), ("state",), ("load", "saved")]


def test_a_collector_is_used_by_one_thread_of_its_process():
    owner, errors = ExclusiveUse(), []

    def enter():
        try:
            with owner:
                pass
        except RuntimeError as error:
            errors.append(str(error))

    with owner:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    enter()
    assert [error.partition(",")[0] for error in errors] == ["this collector is already in use: by another thread"]
    owner._pid += 1
    assert not owner.is_this_process
    enter()
    assert f"belongs to process {owner._pid}, but was called in its fork {os.getpid()}" in errors[1]
