"""The same envs and policies through TorchRL's collectors and through ours: the same batches, entry by entry.

Ours against the batches of TorchRL in golden/ in every tier, TorchRL against them at night. Where ours differs on
purpose, the table in docs/reference/torchrl-differences.md says so.
"""

import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("torchrl", reason="needs the torchrl extra")

import golden
import record
from cases import CASES, IN_CI, WALK, WORLDS, lstm, ours, theirs
from golden import assert_same, load
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import InitTracker
from torchrl.envs.utils import ExplorationType, set_exploration_type
from user_code import torchrlenvs
from ways import ASYNC, INLINE_ASYNC, INLINE_SYNC, SHARED_SYNC, SYNC, over

import collectx
from collectx.errors import ConfigError

# Of TorchRL's processes, and of gymnasium's about seeds that TorchRL draws.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]


def recorded(name):
    return load(golden.FOLDER / f"{name}.npz")


def of(kind, in_ci=None):
    """The cases of a kind; all but those `in_ci` are nightly, if it is given."""

    def marks(name):
        if in_ci is not None:
            return [] if name in in_ci else [pytest.mark.nightly]
        return [pytest.mark.ci] if name in IN_CI else []

    return [pytest.param(name, marks=marks(name)) for name, case in CASES.items() if case.kind == kind]


@pytest.mark.sample(20)
@pytest.mark.parametrize("name", of("single"))
def test_a_collector_gives_the_batches_of_torchrl(name):
    assert_same(CASES[name], recorded(name), ours(CASES[name]))


@pytest.mark.difference("a recurrent policy without `InitTracker` and `TensorDictPrimer`")
@pytest.mark.parametrize("primer", [(), (lstm()[0].make_tensordict_primer(),)], ids=["", "primer"])
@pytest.mark.parametrize("tracker", [(), (InitTracker(),)], ids=["", "tracker"])
def test_an_lstm_needs_no_transforms_of_the_env(tracker, primer, monkeypatch):
    def create():
        return torchrlenvs.transformed(torchrlenvs.walking(), *(part.clone() for part in (*tracker, *primer)))

    monkeypatch.setitem(WORLDS, "recurrent", replace(WORLDS["recurrent"], ours=create))
    assert_same(CASES["recurrent"], recorded("recurrent"), ours(CASES["recurrent"]))


@over([INLINE_SYNC])
@pytest.mark.parametrize("name", of("sync"))
def test_sync_workers_in_this_process_give_the_batches_of_torchrl(name, way):
    check_sync(name, way)


# Their workers import TorchRL, which takes seconds.
@over([SHARED_SYNC])
@pytest.mark.parametrize("name", of("sync", in_ci=["sync-primed"]))
def test_sync_workers_give_the_batches_of_torchrl(name, way):
    check_sync(name, way)


def check_sync(name, way):
    batches = ours(CASES[name], way)
    assert_same(CASES[name], recorded(name), batches)
    if CASES[name].random:
        # 40 frames, so the first two of three batches of 32.
        by_policy = [torch.equal(batch["action"], WORLDS["one_hot"].act(batch["observation"])) for batch in batches]
        assert by_policy == [False, False, True]


@over(way for way in SYNC if way not in (INLINE_SYNC, SHARED_SYNC))
@pytest.mark.parametrize("name", ["sync-primed", "sync-agents_in_a_grid"])
def test_workers_of_other_transports_give_the_batches_of_torchrl(name, way):
    assert_same(CASES[name], recorded(name), ours(CASES[name], way))


@over([INLINE_ASYNC])
@pytest.mark.parametrize("name", of("async"))
def test_async_workers_in_this_process_give_the_batches_of_torchrl(name, way):
    assert_same(CASES[name], recorded(name), ours(CASES[name], way))


@over(way for way in ASYNC if way is not INLINE_ASYNC)
@pytest.mark.parametrize("name", of("async", in_ci=["async-split"]))
def test_async_workers_give_the_batches_of_torchrl(name, way):
    assert_same(CASES[name], recorded(name), ours(CASES[name], way))


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_torchrl_gives_what_is_recorded(name):
    assert_same(CASES[name], recorded(name), theirs(CASES[name]), ours_alone=set())


@pytest.mark.nightly
def test_torchrl_has_the_signatures_that_are_recorded():
    assert record.signatures() == json.loads((golden.FOLDER / "signatures.json").read_text())


def test_the_keyword_counts_and_not_the_context_around():
    with set_exploration_type(ExplorationType.MODE):
        batches = ours(CASES["asks-RANDOM"])
    assert_same(CASES["asks-RANDOM"], recorded("asks-RANDOM"), batches)


@pytest.mark.parametrize("extend", [True, False])
@pytest.mark.parametrize("name", ["walk", "serial"])
def test_a_replay_buffer_holds_the_frames_of_the_batches(name, extend):
    """TorchRL's collectors fill a buffer by their batches' dimensions, ours one frame after the other."""
    batches = [batch.to("cpu") for batch in recorded(name)]
    rows = [(batch if extend else batch.transpose(0, -1)).reshape(-1) for batch in batches]
    whole, flat = torch.cat(batches, -1), torch.cat(rows)
    theirs_ = ReplayBuffer(storage=LazyTensorStorage(200, ndim=whole.ndim))
    for buffer, expected, all_of_it in (
        (theirs_, whole, slice(None)),
        (collectx.ReplayBuffer(200), flat, torch.arange(len(flat))),
    ):
        case = replace(CASES[name], keywords={"replay_buffer": buffer, "extend_buffer": extend})
        assert ours(case) == [None] * 3
        assert_same(case, [expected], [buffer[all_of_it].to("cpu")], names=False)


def test_steps_are_not_counted_twice():
    with pytest.raises(ConfigError, match="step_count"):
        collectx.Collector(torchrlenvs.counted, WALK.policy(), frames_per_batch=20, max_frames_per_traj=5)
