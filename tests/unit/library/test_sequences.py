"""Random sequences of calls of collectors in this process, against a model of the frames that they may deliver."""

import asyncio
import copy
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from configurations import through_a_file
from gymnasium.spaces import Box
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from hypothesis.strategies import booleans
from library_collectors import make
from torch import nn
from ways import INLINE_ASYNC, INLINE_SYNC, SINGLE

from collectx.batch import SETTINGS_VERSION

LENGTH = 7
WHOLE = {"trajs_per_batch": 2, "traj_format": "cat"}


class Line(gymnasium.Env):
    """An observation is the number of steps in the episode, and the level."""

    observation_space, action_space = Box(0, 99, (2,)), Box(-99, 99, (1,))
    level = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        return self.observe(), 0.0, self.steps == LENGTH, False, {}

    def observe(self):
        return np.array([self.steps, self.level], np.float32)


class Acts(nn.Module):
    """Acts with the version of its weights."""

    def __init__(self, version=0):
        super().__init__()
        self.version = nn.Parameter(torch.full((1,), float(version)), requires_grad=False)

    def forward(self, observation):
        return self.version.expand(*observation.shape[:-1], 1)


class Calls(RuleBasedStateMachine):
    """Attributes of the model:
    levels: the level of each settings version.
    places: the trajectory and the step of the next frame of each env, by worker; without whole trajectories.
    delivered: the ids of the delivered trajectories, by worker; with whole trajectories.
    is_reset: whether trajectories may be missing.
    """

    def __init__(self, way, keywords):
        super().__init__()
        self.way, self.is_whole = way, "trajs_per_batch" in keywords
        # Whether batches that were begun before a reset may follow it.
        self.is_ahead = way is INLINE_ASYNC or "overlap" in keywords
        acts = {"policy": Acts()} if way is SINGLE else {"policy_factory": Acts}
        batch = {"frames_per_batch": 3 if way is INLINE_ASYNC else 3 * way.num_workers, "track_policy_version": True}
        self.make = partial(make, way, Line, total_frames=-1, seed=1, **batch, **acts, **keywords)
        self.saved = None

    @initialize()
    def begin(self):
        self.collector = self.make()
        self.levels = [0]
        self.places = {worker: (worker, 0) for worker in range(self.way.num_workers)}
        self.delivered = {worker: [] for worker in self.places}
        self.is_reset = False

    def teardown(self):
        if hasattr(self, "collector"):
            self.collector.shutdown()

    @rule()
    def next(self):
        self.check(self.collector.next())

    @rule()
    def next_after_a_cancelled_one(self):
        async def cancel():
            waiting = asyncio.ensure_future(anext(self.collector))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])

        asyncio.run(cancel())
        self.next()

    @rule(is_seeded=booleans())
    def reset(self, is_seeded):
        if is_seeded:
            self.collector.set_seed(5)
        else:
            self.collector.reset()
        self.is_reset = True
        for worker, (index, step) in self.places.items():
            self.places[worker] = (index, -1 if step and not self.is_ahead else step)

    @rule()
    def publish(self):
        self.collector.update_policy_weights_(Acts(self.collector.policy_version + 1))

    @rule()
    def set_level(self):
        self.levels = [*self.levels, max(self.levels) + 1]
        self.collector.set_attr("level", self.levels[-1])

    @rule()
    def save(self):
        self.next()
        model = (self.levels, self.places, self.delivered, self.is_reset)
        self.saved = (through_a_file(self.collector.state_dict()), copy.deepcopy(model))

    @precondition(lambda self: self.saved is not None)
    @rule(is_new=booleans())
    def load(self, is_new):
        if is_new:
            self.collector.shutdown()
            self.collector = self.make()
        state, model = self.saved
        self.collector.load_state_dict(state)
        self.levels, self.places, self.delivered, self.is_reset = copy.deepcopy(model)
        self.next()

    def check(self, batch):
        steps = batch["observation"][..., 0]
        assert torch.equal(batch["action"].squeeze(-1).long(), batch["policy_version"])
        versions = batch.get(SETTINGS_VERSION, torch.zeros(batch.shape, dtype=torch.int64))
        set_levels = torch.tensor(self.levels)[versions]
        assert torch.equal(batch["next", "observation"][..., 1].long(), set_levels)
        ids = batch["collector", "traj_ids"].reshape(-1).tolist()
        rows = [*zip(ids, steps.reshape(-1).int().tolist(), strict=True)]
        if not self.is_whole:
            self.check_parts(rows)
            return
        for start in range(0, len(rows), LENGTH):
            index = ids[start]
            assert rows[start : start + LENGTH] == [(index, step) for step in range(LENGTH)]
            earlier = self.delivered[index % self.way.num_workers]
            assert index not in earlier
            earlier.append(index)
            if not self.is_reset:
                assert earlier == [*range(earlier[0], index + 1, self.way.num_workers)]
                assert earlier[0] < self.way.num_workers

    def check_parts(self, rows):
        for index, step in rows:
            worker = index % self.way.num_workers
            wanted, place = self.places[worker]
            if self.is_reset and step == 0:
                assert index >= wanted
            else:
                assert (index, step) == (wanted, place)
            is_end = step == LENGTH - 1
            self.places[worker] = (index + self.way.num_workers, 0) if is_end else (index, step + 1)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("way", "keywords"),
    [
        (SINGLE, {}),
        (SINGLE, WHOLE),
        (INLINE_SYNC, {"overlap": 1}),
        (INLINE_SYNC, {"overlap": 1, **WHOLE}),
        (INLINE_ASYNC, {}),
        (INLINE_ASYNC, WHOLE),
    ],
    ids=str,
)
def test_any_sequence_of_calls(way, keywords):
    run_state_machine_as_test(
        lambda: Calls(way, keywords), settings=settings(max_examples=10, stateful_step_count=10, deadline=None)
    )
