"""Policies that carry a state through `next`: from frame to frame, over the borders of batches, not into the next
episode."""

import typing
from functools import partial

import pytest
import torch
from library_collectors import by_worker, make
from tensordict.nn import TensorDictModule
from torch import nn
from user_code.cartpoles import cartpole, cartpoles
from ways import SINGLE, WAYS, case, over

from collectx.errors import ConfigError

short_cartpole = partial(cartpole, max_episode_steps=5)


STATE = ("h", "c", "g")


class Cells(nn.Module):
    """A network of two layers of different sizes, which acts by the state of the second."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.LSTMCell(4, 6), nn.GRUCell(6, 3), nn.Linear(3, 2)

    def forward(self, observation, h, c, g):
        h, c = self.first(observation, (h, c))
        g = self.second(h, g)
        return self.head(g).argmax(-1), h, c, g


def recurrent():
    torch.manual_seed(0)
    return TensorDictModule(Cells(), ["observation", *STATE], ["action", *(("next", key) for key in STATE)])


def collect(policy, create=short_cartpole, way=SINGLE, frames=12, num_batches=4, **keywords):
    total = num_batches * frames
    with make(way, create, policy, frames_per_batch=frames, total_frames=total, **keywords) as collector:
        return list(collector)


def rows_of(batches, way=SINGLE):
    """Returns the frames of each env in order. A batch is `[time]`, or has a dimension of envs or workers before it."""
    workers: dict = {}
    for batch in batches:
        for worker, part in by_worker(way, batch):
            workers.setdefault(worker, []).append(part)
    whole = [torch.cat(parts, -1) for parts in workers.values()]
    return [row for frames in whole for row in frames.reshape(-1, frames.shape[-1])]


def check(rows, policy):
    num_ends = 0
    for row in rows:
        ended = row["next", "done"][:-1, 0]
        num_ends += int(ended.sum())
        for key in STATE:
            carried = torch.where(ended[:, None], 0.0, row["next", key][:-1])
            assert torch.equal(row[key][1:], carried)
            assert (row[key][0] == 0).all()
        with torch.no_grad():
            action, *after = policy.module(*(row[key] for key in ("observation", *STATE)))
        assert torch.equal(action, row["action"])
        for key, value in zip(STATE, after, strict=True):
            torch.testing.assert_close(value, row["next", key])
            assert value.abs().min() > 0
    assert num_ends > 2 * len(rows)


@pytest.mark.difference("a recurrent policy without `InitTracker` and `TensorDictPrimer`")
@over(WAYS)
def test_a_state_is_carried_and_begins_with_an_episode(way):
    policy = recurrent()
    batches = collect(policy, way=way, frames=24 if way.is_sync else 12, update_at_each_batch=True)
    assert len(batches) == 4
    check(rows_of(batches, way), policy)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_of_a_vector_env_of_each_autoreset_mode(mode):
    policy = recurrent()
    create = partial(cartpoles, mode=mode, max_episode_steps=5)
    # With NEXT_STEP rows are segments, of any env: known by the trajectories in them.
    frames = torch.cat([batch.reshape(-1) for batch in collect(policy, create, frames=24)])
    ids = frames["collector", "traj_ids"]
    rows = [frames[ids % 3 == env] for env in range(3)]
    check([row[row["collector", "traj_ids"].argsort(stable=True)] for row in rows], policy)


def test_a_trajectory_that_is_cut_begins_with_the_first_state():
    row = torch.cat(collect(recurrent(), cartpole, frames=10, max_frames_per_traj=3))
    first = torch.arange(40) % 3 == 0
    assert (row["step_count"][:, 0] == torch.arange(40) % 3).all()
    assert (row["h"][first] == 0).all()
    assert (row["h"][~first] != 0).all()


class Adding(nn.Module):
    """A policy whose state is not that of a recurrent layer."""

    def forward(self, observation, sums):
        return observation[..., 0].gt(0).long(), sums + observation.unflatten(-1, (2, 2))


def test_an_initial_state_may_be_given_and_one_that_cannot_be_derived_is_asked_for():
    policy = TensorDictModule(Adding(), ["observation", "sums"], ["action", ("next", "sums")])
    with pytest.raises(ConfigError, match=r"recurrent state sums is unknown.*initial_state = \{'sums': torch.zeros"):
        collect(policy)
    policy.initial_state = {"sums": torch.ones(2, 2)}
    batch = collect(policy)[0]
    sums = 1 + batch["observation"][:5].cumsum(0)
    torch.testing.assert_close(batch["next", "sums"][:5], sums.reshape(5, 2, 2))


class InBfloat16(nn.Module):
    """Acts by the sum of rounded observations, a state in a dtype that numpy lacks."""

    initial_state: typing.ClassVar = {"sums": torch.ones(4, dtype=torch.bfloat16)}

    def forward(self, observation, sums):
        rounded = observation.bfloat16()
        sums = sums + rounded
        return sums[..., 0].gt(1).long(), rounded, sums


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("way", "mode"), [*(case(way, "SAME_STEP", tier=way.smoke) for way in WAYS), case(SINGLE, "NEXT_STEP")]
)
def test_what_a_policy_writes_in_bfloat16_is_stored_as_it_is(way, mode):
    policy = TensorDictModule(InBfloat16(), ["observation", "sums"], ["action", "rounded", ("next", "sums")])

    def hook(batch):
        batch["double"] = 2 * batch["rounded"]

    create = partial(cartpoles, mode=mode)
    with make(way, create, policy, frames_per_batch=24, post_collect_hook=hook) as collector:
        for batch in (collector.next(), collector.next()):
            assert {batch[key].dtype for key in ("rounded", "double", "sums", ("next", "sums"))} == {torch.bfloat16}
            assert torch.equal(batch["rounded"], batch["observation"].bfloat16())
            assert torch.equal(batch["double"], 2 * batch["rounded"])
            assert torch.equal(batch["next", "sums"], batch["sums"] + batch["rounded"])
            following, before = batch["sums"][..., 1:, :], batch["next", "sums"][..., :-1, :]
            goes_on = ~batch["next", "done"][..., :-1, 0]
            assert torch.equal(following[goes_on], before[goes_on])
            assert (following[~goes_on] == 1).all()
