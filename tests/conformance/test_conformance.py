"""The same envs and policies through TorchRL's collectors and through ours: the same batches, entry by entry.

Ours against the batches of TorchRL in golden/ in every tier, TorchRL against them at night. Where ours differs on
purpose, the table in the README says so, and the tests here whose names begin with `test_unlike_torchrl` do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

pytest.importorskip("torchrl", reason="needs the torchrl extra")

import golden
import record
import torchrl.collectors as peers
from cases import CASES, IN_CI, PUSH, WALK, WORLDS, Case, ours, theirs
from golden import assert_alike, assert_same, load
from tensordict.nn import NormalParamExtractor
from tensordict.nn import TensorDictModule as Module
from tensordict.nn import TensorDictSequential as Sequence
from torch import nn
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import (
    MLP,
    EGreedyModule,
    OneHotCategorical,
    OrnsteinUhlenbeckProcessModule,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
)
from ways import ASYNC, INLINE_SYNC, SHARED_SYNC, SYNC, over
from worlds import torchrlenvs

import collectx
from collectx.errors import ConfigError, ShapeError

torch.set_num_threads(1)

# Of TorchRL's processes, and of gymnasium's about seeds that TorchRL draws.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]

LIBRARIES = (peers, collectx)


def recorded(name):
    return load(golden.FOLDER / f"{name}.npz")


def of(kind):
    return [
        pytest.param(name, marks=[pytest.mark.ci] if name in IN_CI else [])
        for name, case in CASES.items()
        if case.kind == kind
    ]


@pytest.mark.parametrize("name", of("single"))
def test_a_collector_gives_the_batches_of_torchrl(name):
    assert_same(CASES[name], recorded(name), ours(CASES[name]))


@over((INLINE_SYNC, SHARED_SYNC))
@pytest.mark.parametrize("name", of("sync"))
def test_sync_workers_give_the_batches_of_torchrl(name, way):
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


@over(ASYNC)
@pytest.mark.parametrize("name", of("async"))
def test_async_workers_give_the_batches_of_torchrl(name, way):
    assert_same(CASES[name], recorded(name), ours(CASES[name], way))


# --- TorchRL itself ---


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_torchrl_gives_what_is_recorded(name):
    assert_same(CASES[name], recorded(name), theirs(CASES[name]), ours_alone=set())


@pytest.mark.nightly
def test_torchrl_has_the_signatures_that_are_recorded():
    assert record.signatures() == json.loads((golden.FOLDER / "signatures.json").read_text())


def torchrl_distributed(kind, path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, record.__file__, "--distributed", kind, str(port), path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True, env=env)
    try:
        assert process.wait(300) == 0
    finally:
        # Its workers too, which it may leave behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
    batches = load(path)
    assert len(batches) == 3
    return batches


@pytest.mark.nightly
def test_unlike_torchrl_a_distributed_sync_batch_has_the_part_of_every_worker(tmp_path):
    for number, batch in enumerate(torchrl_distributed("sync", tmp_path / "batches.npz")):
        # Not what is in them: TorchRL mixes up its workers' parts. Ours have those of its MultiSyncCollector.
        expected = recorded("sync-primed")[number]
        assert [part["hidden"].unique().tolist() for part in expected] == [[1.0], [2.0]]
        assert_alike(WORLDS["primed"], expected, batch, ours_alone=set())


@pytest.mark.nightly
def test_torchrls_distributed_collector_gives_what_is_recorded(tmp_path):
    batches = torchrl_distributed("async", tmp_path / "batches.npz")
    expected = recorded("async-primed")
    compared = 0
    for worker in range(2):
        own = [batch for batch in batches if batch["hidden"].unique().tolist() == [worker + 1.0]][:2]
        if own:
            assert_same(CASES["async-primed"], expected[2 * worker :][: len(own)], own, ours_alone=set())
        compared += len(own)
    # Each batch is of one worker, and no more than two of the three are taken of each.
    assert compared >= 2


# --- exploration ---


def test_the_keyword_counts_and_not_the_context_around():
    with set_exploration_type(ExplorationType.MODE):
        batches = ours(CASES["dice-RANDOM"])
    assert_same(CASES["dice-RANDOM"], recorded("dice-RANDOM"), batches)


def test_random_frames_have_zeros_for_what_the_policy_writes():
    first, second, _ = ours(CASES["dice-init_random_frames"])
    assert not first["low"].any()
    assert second["low"].all()


def gaussian(distribution):
    keys = ["loc", "scale"]
    torch.manual_seed(3)
    head = Module(nn.Sequential(nn.Linear(3, 2), NormalParamExtractor()), ["observation"], keys)
    return ProbabilisticActor(head, in_keys=keys, distribution_class=distribution, return_log_prob=True)


def categorical():
    torch.manual_seed(3)
    logits = Module(nn.Linear(3, 2), ["observation"], ["logits"])
    return ProbabilisticActor(logits, in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True)


def epsilon_greedy():
    torch.manual_seed(3)
    spec = torchrlenvs.one_hot().action_spec
    actor = QValueActor(MLP(3, 2, num_cells=[8]), in_keys=["observation"], spec=spec)
    return Sequence(actor, EGreedyModule(spec, eps_init=0.5, annealing_num_steps=1000))


def noisy():
    noise = OrnsteinUhlenbeckProcessModule(spec=torchrlenvs.pushing().action_spec, annealing_num_steps=100)
    return Sequence(PUSH.policy(), noise)


normal, tanh_normal = (partial(gaussian, each) for each in (torch.distributions.Normal, TanhNormal))


# Their draws are not the same on every machine.
@pytest.mark.ci
@pytest.mark.parametrize("kind", ["RANDOM", "DETERMINISTIC"])
@pytest.mark.parametrize(
    ("world", "policy"),
    [
        ("push", normal),
        ("push", tanh_normal),
        ("one_hot", categorical),
        ("one_hot", epsilon_greedy),
        ("push", noisy),
    ],
)
def test_policies_of_torchrl_explore_as_there(world, policy, kind):
    case = Case(world, {"exploration_type": ExplorationType[kind]}, policy=policy)
    assert_same(case, theirs(case), ours(case))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("world", "policy", "kind", "message"),
    [
        ("push", tanh_normal, "MODE", "not analytical mode"),
        ("one_hot", categorical, "MEAN", "policy returned action of shape"),
    ],
)
def test_a_distribution_without_that_action(world, policy, kind, message, library):
    with pytest.raises((RuntimeError, TypeError, ShapeError), match=message if library is collectx else ""):
        library.Collector(
            WORLDS[world].make, policy(), frames_per_batch=16, exploration_type=ExplorationType[kind]
        ).next()


# --- replay buffers, weights and seeds ---


@pytest.mark.parametrize("extend", [True, False])
@pytest.mark.parametrize("name", ["walk", "serial"])
def test_our_replay_buffer_holds_what_torchrl_collects(name, extend):
    expected = [batch if extend else batch.transpose(0, -1) for batch in recorded(name)]
    buffer = collectx.ReplayBuffer(200)
    keywords = {"replay_buffer": buffer, "extend_buffer": extend}
    assert ours(replace(CASES[name], keywords=keywords)) == [None] * 3
    whole = torch.cat([batch.reshape(-1) for batch in expected])
    assert_same(replace(CASES[name], storage=1), [whole], [buffer[torch.arange(len(whole))]])


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_weights_of_a_state_act(library):
    learnt, fresh = normal(), normal()
    with torch.no_grad():
        learnt[0].module[0].bias.add_(0.5)
    keywords = {"frames_per_batch": 20, "exploration_type": ExplorationType.MODE}
    first, second = (library.Collector(PUSH.make, policy, **keywords) for policy in (learnt, fresh))
    second.load_state_dict(first.state_dict())
    batch = next(second.iterator()).clone()
    torch.testing.assert_close(batch["action"], learnt[0](batch.clone())["loc"])
    for collector in (first, second):
        collector.shutdown()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("message", "keywords"),
    [("reset_when_done", {"reset_when_done": False}), ("step_count", {"max_frames_per_traj": 5})],
)
def test_both_refuse(library, message, keywords):
    with pytest.raises((ValueError, TypeError, ConfigError), match=message):
        library.Collector(torchrlenvs.counted, WALK.policy(), frames_per_batch=20, **keywords)


# --- on purpose otherwise; see the table in the README ---


def test_unlike_torchrl_a_seed_begins_new_trajectories():
    theirs, ours = (library.Collector(PUSH.make, PUSH.policy(), frames_per_batch=18) for library in LIBRARIES)
    for collector in (theirs, ours):
        assert collector.set_seed(7, static_seed=True) == 7
    first = ours.next()
    # TorchRL's env first ends the episode that it has begun without a seed.
    second = theirs.next()
    end = int(second["next", "done"].nonzero()[0, 0]) + 1
    assert torch.equal(second["observation"][end:], first["observation"][: 18 - end])
    ours.set_seed(7, static_seed=True)
    assert torch.equal(ours.next()["observation"], first["observation"])
    for collector in (theirs, ours):
        collector.shutdown()


def test_unlike_torchrl_total_frames_must_divide():
    frames = {"frames_per_batch": 20, "total_frames": 50}
    collector = peers.Collector(WALK.make, WALK.policy(), **frames)
    assert sum(batch.numel() for batch in collector) == 60
    collector.shutdown()
    with pytest.raises(ConfigError, match="total_frames=50 is not a multiple"):
        collectx.Collector(WALK.make, WALK.policy(), **frames)


def versions(library, name, key):
    """Of the batches of a collector whose weights are published after each."""
    collector = library.Collector(
        WORLDS[name].make, WORLDS[name].policy(), frames_per_batch=12, track_policy_version=True
    )
    found = []
    for batch, _ in zip(collector, range(3), strict=False):
        found.append(batch[key].unique().tolist())
        collector.update_policy_weights_()
    collector.shutdown()
    return found


def test_unlike_torchrl_batches_always_have_the_version_of_the_weights():
    assert golden.OURS_ALONE not in golden.keys(recorded("walk")[0])
    # There the first frame after an update has the version before it.
    assert versions(peers, "walk", "policy_version") == [[0], [0, 1], [1, 2]]
    with pytest.raises(RuntimeError, match="not supported for policy version tracking"):
        versions(peers, "serial", "policy_version")
    for name in ("walk", "serial"):
        for key in ("policy_version", golden.OURS_ALONE):
            assert versions(collectx, name, key) == [[0], [1], [2]]


class StopsAfter:
    """Stops each batch after so many steps."""

    def __init__(self, steps):
        self.steps = steps
        self.asked = 0

    def collection_stopped(self):
        self.asked += 1
        return self.asked % self.steps == 0


def test_unlike_torchrl_an_interrupted_batch_has_the_frames_that_there_are():
    def case():
        return Case(keywords={"interruptor": StopsAfter(7), "frames_per_batch": 16, "total_frames": 16})

    (theirs_, *_), (ours_, *others) = theirs(case()), ours(case())
    assert (theirs_.shape, ours_.shape) == ((16,), (7,))
    assert theirs_[golden.TRAJ_IDS].tolist()[7:] == [-1] * 9
    assert_same(case(), [theirs_[:7]], [ours_])
    assert [batch.numel() for batch in others] == [7, 7]
