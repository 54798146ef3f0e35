"""Newer weights reach the workers: when, in which form, and whether the policy stays as it was."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from library_collectors import by_worker, make, new_episodes
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from user_code.cartpoles import Constant, cartpole
from user_code.faulty import FaultyEnv
from ways import GLOO_ASYNC, GLOO_SYNC, INLINE_ASYNC, INLINE_SYNC, SHARED_ASYNC, SHARED_SYNC, SINGLE, SYNC, case, over

from collectx import Collector, ReplayBuffer
from collectx.library import weights as updaters


def weights_of(module):
    return TensorDict.from_module(module).data


def actions_of(batch):
    return batch["action"].unique().tolist()


@over((SINGLE, *SYNC), smoke=True)
def test_newer_weights_act_in_every_worker(way):
    policy = Constant()
    never = {"update_interval": -1} if way is GLOO_SYNC else {}
    with make(way, policy=policy, frames_per_batch=20, track_policy_version=True, **never) as collector:
        for version in range(3):
            policy.action.data.fill_(version % 2)
            assert collector.policy_version == version
            collector.increment_version()
            batch = collector.next()
            assert actions_of(batch) == [version % 2]
            for key in (("collector", "policy_version"), "policy_version"):
                assert batch[key].unique().tolist() == [version + 1]


@over((SHARED_SYNC, GLOO_SYNC), smoke=True)
def test_overlapped_batches_have_a_lag_of_one_version(way):
    policy = Constant()
    with make(way, policy=policy, frames_per_batch=20, total_frames=100, overlap=1) as collector:
        assert collector.overlap == 1
        for number, batch in enumerate(collector):
            acted = max(0, number - 1)
            assert batch["collector", "policy_version"].unique().tolist() == [acted]
            assert actions_of(batch) == [acted % 2]
            policy.action.data.fill_((number + 1) % 2)
            if way is SHARED_SYNC:
                collector.update_policy_weights_()
        with pytest.raises(NotImplementedError, match="Use overlap=0"):
            collector.update_policy_weights_({0: weights_of(policy)})


@pytest.mark.difference("`update_policy_weights_` after `shutdown`")
@over((SINGLE, INLINE_SYNC))
def test_a_collector_that_was_shut_down_takes_no_weights(way):
    policy, newer = Constant(), Constant()
    newer.action.data.fill_(1)
    collector = make(way, policy=policy, frames_per_batch=20)
    collector.shutdown()
    for update in (lambda: collector.update_policy_weights_(newer), collector.increment_version):
        with pytest.raises(RuntimeError, match="this collector is closed"):
            update()
    assert policy.action.item() == 0


@pytest.mark.ci
def test_weights_are_published_while_overlapped_batches_are_collected_in_the_background():
    policy, buffer = Constant(), ReplayBuffer(2000)
    with make(SHARED_SYNC, policy=policy, frames_per_batch=20, overlap=1, replay_buffer=buffer) as collector:
        collector.start()
        for version in range(1, 101):
            policy.action.data.fill_(version % 2)
            collector.update_policy_weights_()
        while buffer.write_count < 200:
            collector.update_policy_weights_()
        collector.async_shutdown()
    frames = buffer[:]
    versions = frames["collector", "policy_version"]
    assert (versions[versions <= 100] % 2 == frames["action"][versions <= 100]).all()


@pytest.mark.difference(
    "`DistributedCollector`, async, `update_after_each_batch`, or any `max_weight_update_interval`",
    "`collector.policy_version` without `track_policy_version`",
    "weights that acted",
)
@pytest.mark.parametrize("keyword", ["update_after_each_batch", "max_weight_update_interval"])
@over((INLINE_ASYNC, SHARED_ASYNC, GLOO_ASYNC))
def test_async_workers_act_with_weights_that_are_published_after_each_batch(way, keyword):
    policy, newest, number = Constant(), [0, 0], 0
    with make(way, policy=policy, frames_per_batch=20, **{keyword: 1}) as collector:
        while min(newest) < 3:
            policy.action.data.fill_(number % 2)
            for worker, batch in by_worker(way, collector.next()):
                versions = batch["collector", "policy_version"]
                assert torch.equal(batch["action"], versions % 2)
                newest[worker] = int(versions.min())
            assert collector.policy_version == number
            number += 1


@pytest.mark.difference("`DistributedCollector`, async, `update_after_each_batch`, or any `max_weight_update_interval`")
@pytest.mark.parametrize(
    ("keywords", "versions"),
    [
        ({}, [0, 0, 0, 0]),
        ({"update_at_each_batch": True}, [0, 1, 2, 3]),
        ({"update_after_each_batch": True}, [0, 1, 2, 3]),
        ({"max_weight_update_interval": 2}, [0, 0, 1, 1]),
        ({"update_interval": 3}, [0, 0, 0, 1]),
        ({"update_interval": -1}, [0, 0, 0, 0]),
        ({"update_interval": 1, "weight_sync_schemes": {"policy": type("NoWeightSyncScheme", (), {})()}}, [0, 0, 0, 0]),
    ],
)
@over((INLINE_SYNC, GLOO_SYNC))
def test_weights_are_published_at_intervals(way, keywords, versions):
    if not keywords and way is GLOO_SYNC:
        versions = [0, 1, 2, 3]  # what DistributedSyncCollector does unless told otherwise
    with make(way, policy=Constant(), frames_per_batch=20, total_frames=80, **keywords) as collector:
        assert [int(batch["collector", "policy_version"].max()) for batch in collector] == versions


@pytest.mark.ci
def test_weights_between_steps_are_taken_by_a_keyword():
    versions = torch.zeros(0)
    keywords = {"num_workers": 1, "num_slots": 1, "update_weights_between_steps": True}
    with make(SHARED_ASYNC, policy=Constant(), frames_per_batch=2000, **keywords) as collector:
        while len(versions) < 2:
            versions = collector.next()["collector", "policy_version"].unique()
            collector.increment_version()


def made(action):
    """Returns a factory, which travels to worker processes by value."""
    return lambda: Constant(action)


@over(SYNC, smoke=True)
def test_workers_act_with_individual_weights_until_newer_ones_come_for_all(way):
    """Workers act with their factories' weights first; the trainer's own policy is the first worker's."""
    with make(way, policy_factory=[made(0.0), made(1.0)], frames_per_batch=20) as collector:

        def acting():
            batch = collector.next()
            return actions_of(batch[0]), actions_of(batch[1]), batch["collector", "policy_version"][:, 0].tolist()

        assert [acting() for _ in range(2)] == [([0], [1], [0, 0])] * 2
        collector.update_policy_weights_({0: Constant(1.0), 1: weights_of(Constant(0.0))})
        assert acting() == ([1], [0], [1, 1])
        collector.update_policy_weights_(Constant(1.0).state_dict(), worker_ids=np.int64(1))
        assert acting() == ([1], [1], [1, 2])
        collector.update_policy_weights_(worker_ids=[0])
        assert acting() == ([0], [1], [3, 2])
        with pytest.raises(RuntimeError, match="would replace the individual weights of workers 0 and 1"):
            collector.increment_version()
        collector.update_policy_weights_(Constant(0.0))
        assert acting() == ([0], [0], [4, 4])
        assert collector.increment_version() == 5


def test_weights_of_the_only_worker_are_not_those_of_this_process():
    policy = Constant(0.0)
    with make(SHARED_SYNC, policy=policy, num_workers=1, frames_per_batch=20) as collector:
        collector.update_policy_weights_({0: Constant(1.0)})
        assert actions_of(collector.next()) == [1]
        assert policy.action == 0


class DrawnPolicy(nn.Module):
    """Writes its weight, which is drawn when it is made."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(()))

    def forward(self, observation):
        return (observation[..., 0] * 0).long(), self.weight.expand(observation.shape[:-1])


class Counting(nn.Module):
    """Counts its calls in a buffer, and in a tensor that is none."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.all_calls = torch.zeros(1)

    def forward(self, observation):
        self.calls += 1
        self.all_calls += 1
        size = observation.shape[:-1]
        return torch.zeros(size, dtype=torch.long), self.calls.expand(*size, 1), self.all_calls.expand(*size, 1)


@over((SHARED_SYNC, GLOO_SYNC))
def test_publishing_sets_the_buffers_of_workers_to_those_of_the_trainer(way):
    policy = TensorDictModule(Counting(), in_keys=["observation"], out_keys=["action", "calls", "all_calls"])
    with make(way, policy=policy, frames_per_batch=20, update_interval=-1) as collector:
        first, second = collector.next(), collector.next()
        policy.module.calls.fill_(100)
        collector.update_policy_weights_()
        third = collector.next()
    for batch, before in ((second, first), (third, second)):
        assert torch.equal(batch["all_calls"][..., 0, 0], before["all_calls"][..., -1, 0] + 1)
    assert torch.equal(second["calls"][..., 0, 0], first["calls"][..., -1, 0] + 1)
    assert (third["calls"][..., 0, 0] == 101).all()


def test_a_worker_that_is_replaced_has_the_weights_of_its_first_life():
    factories = [DrawnPolicy, lambda: DrawnPolicy()]
    keywords = {"policy_factory": factories, "frames_per_batch": 20, "on_worker_failure": "restart"}
    with make(INLINE_SYNC, partial(FaultyEnv, "raises", 15), **keywords) as collector:
        seen = [collector.next()["output1"].unique(dim=1) for _ in range(4)]
        assert all(torch.equal(each, seen[0]) for each in seen)
        assert collector.policy_version == 0


@new_episodes
@over((INLINE_SYNC, SHARED_SYNC, GLOO_SYNC))
def test_individual_weights_are_saved_where_workers_can_be_asked(way):
    factories, seen = [made(0.0), made(1.0)], []
    with make(way, policy_factory=factories, frames_per_batch=20) as collector:
        collector.update_policy_weights_({1: Constant(0.0)})
        state = collector.state_dict()
    for expected in ([[0], [1]] if way is GLOO_SYNC else [[0], [0]]), [[0], [1]]:
        with make(way, policy_factory=factories, frames_per_batch=20) as collector:
            collector.load_state_dict(state)
            seen = [actions_of(part) for part in collector.next()]
        assert seen == expected
        state = {name: value for name, value in state.items() if not name.startswith("worker")}


FORMS = {
    "module": lambda new: {"policy_or_weights": new},
    "state dict": lambda new: {"policy_or_weights": new.state_dict()},
    "compiled": lambda new: {"policy_or_weights": {"_orig_mod.action": new.action}},
    "data parallel": lambda new: {"policy_or_weights": {"module.action": new.action}},
    "compiled, data parallel": lambda new: {"policy_or_weights": {"module._orig_mod.action": new.action}},
    "TensorDict": lambda new: {"policy_or_weights": weights_of(new)},
    "float64": lambda new: {"policy_or_weights": new.double()},
    "float16": lambda new: {"policy_or_weights": new.half()},
    "weights": lambda new: {"weights": weights_of(new)},
    "policy_weights": lambda new: {"policy_weights": weights_of(new)},
    "policy": lambda new: {"policy": new, "model_id": "policy"},
    "weights_dict": lambda new: {"weights_dict": {"policy": new.state_dict()}},
    "receive_weights": lambda new: {"policy": new},
}


@pytest.mark.parametrize(
    ("way", "form"),
    [
        *(case(way, form) for way in (SINGLE, INLINE_SYNC) for form in FORMS),
        # In the trainer's process, every form becomes the same tensors.
        *(case(SHARED_SYNC, form, tier="ci" if form == "compiled" else "nightly") for form in FORMS),
    ],
)
def test_weights_act_in_every_form_and_stay(way, form):
    with make(way, policy=Constant(), frames_per_batch=10, update_at_each_batch=True) as collector:
        assert actions_of(collector.next()) == [0]
        update = collector.receive_weights if form == "receive_weights" else collector.update_policy_weights_
        update(**FORMS[form](Constant(1.0)))
        assert [actions_of(collector.next()) for _ in range(2)] == [[1], [1]]
        assert float(collector.state_dict()["policy_state_dict"]["action"]) == 1.0
        assert collector.policy.action.dtype == torch.float32


@pytest.mark.parametrize(
    ("policy", "given", "error", "word"),
    [
        (Constant(), {"policy_or_weights": Constant(), "weights": Constant()}, TypeError, "more than once"),
        (Constant(), {"weights": Constant(), "model_id": "critic"}, ValueError, "critic"),
        (Constant(), {"weights_dict": {"policy": 3, "critic": 4}}, ValueError, "critic"),
        (Constant(), {"weights": Constant(), "worker_ids": [1]}, ValueError, "worker 1 does not exist: "),
        (Constant(), {"weights": {0: Constant()}, "worker_ids": 0}, ValueError, "already name their workers"),
        (Constant(), {"weights": {0: Constant(), 1: Constant()}}, ValueError, "worker 1 does not exist: "),
        (Constant(), {"weights": 3}, TypeError, "weights=3"),
        (Constant(), {"weights": {}}, ValueError, "action"),
        (Constant(), {"weights": {"module.other": 1.0}}, ValueError, "the weights lack 'action'"),
        (Constant(), {"weights": {"action": 1.0, "other": 2.0}, "strict": True}, ValueError, "no weight named 'other'"),
        (Constant(), {"weights": Constant([1.0, 2.0])}, ValueError, r"'action' has shape \[2\]"),
        (None, {"weights": Constant()}, TypeError, r", not a torch\.nn\.Module"),
        (lambda seen: seen[..., 0].long(), {"weights": Constant()}, TypeError, r", not a torch\.nn\.Module"),
    ],
)
def test_weights_that_do_not_fit_are_refused(policy, given, error, word):
    with Collector(cartpole, policy, frames_per_batch=10) as collector, pytest.raises(error, match=word):
        collector.update_policy_weights_(**given)


def test_weights_that_the_policy_does_not_have_are_left_out_by_default():
    policy = TensorDictModule(Constant(), ["observation"], ["action"])
    with Collector(cartpole, policy, frames_per_batch=10) as collector:
        # Of the module within the policy, whose names begin with "module.".
        collector.update_policy_weights_({"action": torch.tensor(1.0), "other": torch.tensor(2.0)})
        assert actions_of(collector.next()) == [1]
        collector.update_policy_weights_({"action": torch.tensor(0.0)})
        assert actions_of(collector.next()) == [0]


class Paying(gymnasium.Wrapper):
    """CartPole in which every reward is the weight of a module of the env."""

    def __init__(self):
        super().__init__(cartpole())
        self.parts = {"pay": Constant()}

    def step(self, action):
        observation, _, *rest = self.env.step(action)
        return observation, float(self.parts["pay"].action), *rest


class Doubling:
    """A replay buffer with a module."""

    def __init__(self):
        self.transform = [Constant()]

    def extend(self, batch):
        self.rewards = batch["next", "reward"].unique() * 2 ** self.transform[0].action.item()


PAY = "env.parts['pay']"


def rewards_of(way, batch):
    return [part["next", "reward"].unique().tolist() for _, part in by_worker(way, batch)]


@over((SINGLE, INLINE_SYNC, SHARED_SYNC))
def test_weights_of_a_module_of_the_envs_take_effect(way):
    schemes = {"weight_sync_schemes": dict.fromkeys(["policy", PAY])}
    with make(way, Paying, policy=Constant(), frames_per_batch=10, update_interval=-1, **schemes) as collector:
        assert {*map(tuple, rewards_of(way, collector.next()))} == {(0.0,)}
        collector.update_policy_weights_(weights_dict={"policy": Constant(1.0), PAY: weights_of(Constant(3.0))})
        batch = collector.next()
        assert {*map(tuple, rewards_of(way, batch))} == {(3.0,)}
        assert actions_of(batch) == [1]
        version = collector.policy_version
        collector.update_policy_weights_(Constant(5.0).state_dict(), model_id=PAY, worker_ids=[0])
        batch = collector.next()
        assert rewards_of(way, batch)[0] == [5.0]
        assert {*map(tuple, rewards_of(way, batch)[1:])} <= {(3.0,)}
        assert collector.policy_version == version


def test_weights_of_a_module_of_the_replay_buffer_take_effect():
    buffer = Doubling()
    with Collector(cartpole, Constant(), frames_per_batch=10, replay_buffer=buffer) as collector:
        collector.next()
        assert buffer.rewards.tolist() == [1.0]
        collector.update_policy_weights_(Constant(2.0), model_id="replay_buffer.transform[0]")
        collector.next()
        assert buffer.rewards.tolist() == [4.0]


@pytest.mark.parametrize(
    ("given", "error", "word"),
    [
        ({"weights": Constant(), "model_id": "env.pay"}, AttributeError, "pay"),
        (
            {"weights": Constant(), "model_id": "env.parts"},
            TypeError,
            r"'parts' is of type dict, not a torch\.nn\.Module",
        ),
        ({"weights": Constant([1.0, 2.0]), "model_id": PAY}, RuntimeError, "size mismatch"),
        ({"weights_dict": {"policy": None, PAY: None}}, TypeError, "are None. Pass them"),
        ({"weights": Constant(), "model_id": PAY, "worker_ids": [1]}, ValueError, "worker 1 does not exist: "),
    ],
)
def test_weights_that_do_not_fit_a_module_of_the_envs_are_refused(given, error, word):
    with Collector(Paying, Constant(), frames_per_batch=10) as collector, pytest.raises(error, match=word):
        collector.update_policy_weights_(**given)


WRONG = {"other": torch.zeros(())}


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        ({PAY: Constant(3.0), "policy": WRONG}, ValueError),
        ({"policy": Constant(1.0), PAY: WRONG}, RuntimeError),
        ({"policy": Constant(1.0), PAY: {**Constant(3.0).state_dict(), **WRONG}}, RuntimeError),
        ({PAY: Constant(3.0), "policy": Constant(1.0), "env.none": Constant()}, AttributeError),
        ({PAY: {0: Constant(3.0), 1: WRONG}}, RuntimeError),
        ({"policy": {0: Constant(1.0), 1: WRONG}, PAY: Constant(3.0)}, ValueError),
    ],
)
@over((INLINE_SYNC, SHARED_SYNC))
def test_a_refused_call_changes_no_weights(way, weights, error):
    with make(way, Paying, policy=Constant(), frames_per_batch=10, update_interval=-1) as collector:
        collector.next()
        with pytest.raises(error):
            collector.update_policy_weights_(weights_dict=weights)
        batch = collector.next()
        assert {*map(tuple, rewards_of(way, batch))} == {(0.0,)}
        assert actions_of(batch) == [0]
        assert collector.policy_version == collector.policy.action.item() == 0


def test_a_weight_updater_is_called_for_the_weights():
    newest = Constant()
    keywords = {"weight_updater": lambda: newest.state_dict(), "update_at_each_batch": True}
    with make(INLINE_SYNC, policy=Constant(), frames_per_batch=10, **keywords) as collector:
        for action in (0, 1, 0):
            newest.action.data.fill_(action)
            assert actions_of(collector.next()) == [action]
        collector.update_policy_weights_(Constant(1.0))  # these come in its place
        assert collector.policy.action.item() == 1.0


@pytest.mark.difference("a weight updater's `_sync_weights_with_worker` and `all_worker_ids`")
@pytest.mark.ci
@pytest.mark.parametrize("form", ["itself", "constructor"])
def test_an_updater_of_torchrls_gets_and_maps_the_weights(form):
    collectors = pytest.importorskip("torchrl.collectors")

    class Opposite(collectors.VanillaWeightUpdater):
        def _maybe_map_weights(self, weights):
            return weights.apply(lambda value: 1 - value)

        def _sync_weights_with_worker(self, **_):
            raise AssertionError("the collector's transport sends the weights")

        all_worker_ids = _sync_weights_with_worker

    construct = partial(Opposite, weight_getter=lambda: weights_of(Constant()), policy_weights=weights_of(Constant()))
    updater = construct() if form == "itself" else construct
    with make(INLINE_SYNC, policy=Constant(), frames_per_batch=10, weight_updater=updater) as collector:
        collector.update_policy_weights_()
        assert actions_of(collector.next()) == [1]
        # A callable that makes one is only called where no weights are passed.
        collector.update_policy_weights_(Constant(1.0))
        assert actions_of(collector.next()) == [0 if form == "itself" else 1]


@pytest.mark.parametrize(
    ("kind", "keywords", "action"),
    [
        ("VanillaWeightUpdater", {"weight_getter": lambda: weights_of(Constant(1.0))}, 1),
        ("VanillaWeightUpdater", {"policy_weights": weights_of(Constant(1.0))}, 0),
        ("MultiProcessedWeightUpdater", {"get_server_weights": lambda: weights_of(Constant(1.0))}, 1),
        ("MultiProcessedWeightUpdater", {}, 0),
        ("RayWeightUpdater", {"max_interval": 3}, 0),
        ("RemoteModuleWeightUpdater", {}, None),
    ],
)
def test_an_updater_supplies_the_weights_where_none_are_passed(kind, keywords, action):
    updater = getattr(updaters, kind)(**keywords)
    with pytest.raises(
        RuntimeError, match=f"this {kind} does not belong to a collector yet. Pass it to .*: weight_updater="
    ):
        updater.push_weights()
    called = []
    updater.register_post_hook(lambda: called.append(None))
    with Collector(cartpole, Constant(), frames_per_batch=10, weight_updater=updater) as collector:
        assert updater.collector is collector
        if action is None:
            with pytest.raises(RuntimeError, match="Pass them to update_policy_weights_"):
                updater.push_weights()
        else:
            updater.push_weights()
            assert actions_of(collector.next()) == [action]
        updater.push_weights(Constant(1.0))
        assert actions_of(collector.next()) == [1]
    assert len(called) == (1 if action is None else 2)


def test_a_collector_in_this_process_acts_with_the_policy_as_it_is():
    policy = Constant().share_memory()
    with Collector(cartpole, policy, frames_per_batch=10) as collector:
        policy.action.data.fill_(1)
        assert actions_of(collector.next()) == [1]
        policy.action.data.fill_(0)
        # What is learnt after the weights were published stays, as in TorchRL's own scripts.
        collector.update_policy_weights_()
        policy.action.data.fill_(1)
        batch = collector.next()
    assert actions_of(batch) == [1]
    assert batch["collector", "policy_version"].unique().tolist() == [1]
    assert policy.action.item() == 1.0
    assert policy.action.is_shared()


def test_a_collector_in_this_process_acts_with_the_published_weights_of_what_a_factory_made():
    with Collector(cartpole, policy_factory=Constant, frames_per_batch=10) as collector:
        collector.policy.action.data.fill_(1)
        assert actions_of(collector.next()) == [0]
        collector.update_policy_weights_()
        assert actions_of(collector.next()) == [1]


def test_a_policy_that_acts_on_another_device_stays_where_it_is():
    """Nothing can act on this one; on a GPU: `contract/test_on_gpu.py`."""
    policy = Constant()
    with Collector(cartpole, policy, policy_device="meta") as collector, pytest.raises(RuntimeError, match="meta"):
        collector.next()
    assert policy.action.device == torch.device("cpu")
