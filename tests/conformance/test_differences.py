"""TorchRL does what its column of docs/reference/torchrl-differences.md says. Tests of ours have the same marks
elsewhere.
Rows that need Ray or other hosts have none here."""

import copy
import math
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from cases import lstm, outwards
from gymnasium import spaces
from gymnasium.wrappers import TransformReward
from tensordict import LazyStackedTensorDict, TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torchrl.collectors import Collector, MultiSyncCollector, WeightUpdaterBase
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import GymWrapper, InitTracker, SerialEnv
from torchrl.envs.llm.transforms.policy_version import PolicyVersion
from torchrl.envs.utils import ExplorationType
from user_code import torchrlenvs
from user_code.walk import walk

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]


@contextmanager
def started(*args, cls=Collector, frames=12, **keywords):
    collector = cls(*args, frames_per_batch=frames, total_frames=-1, **keywords)
    try:
        collector.take = iter(collector).__next__
        yield collector
    finally:
        collector.shutdown()


def collect(*args, num_batches=1, **keywords):
    with started(*args, **keywords) as collector:
        return [collector.take().clone() for _ in range(num_batches)]


def acting(choose, *written):
    return TensorDictModule(choose, ["observation"], ["action", *written])


@pytest.mark.difference("`exploration_type` MEDIAN and torch's distributions, such as `Normal`")
def test_a_distribution_of_torch_has_no_median():
    draw = ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=torch.distributions.Normal)
    reads = TensorDictModule(lambda seen: (seen[..., :1], seen[..., :1].abs() + 1), ["observation"], draw.in_keys)
    policy = ProbabilisticTensorDictSequential(reads, draw)
    with pytest.raises(NotImplementedError):
        collect(torchrlenvs.pushing, policy, exploration_type=ExplorationType.MEDIAN)


@pytest.mark.difference("a policy that returns the index of a one-hot action, or a score for each action")
@pytest.mark.parametrize("action", [torch.tensor(1), torch.tensor([0.4, 0.9])], ids=["index", "scores"])
def test_what_is_not_one_hot_is_action_0(action):
    (batch,) = collect(torchrlenvs.one_hot, acting(lambda seen: action.clone()))
    assert torch.equal(batch["action"], action.expand(12, *action.shape))
    assert (batch["next", "observation"][:, 0] < batch["observation"][:, 0]).all()


@pytest.mark.difference(
    "an integer action that does not fit the dtype of its spec",
    "`truncated` of an env whose `done_spec` has only `done` and `terminated`",
)
def test_integers_and_ends_are_those_of_policy_and_env():
    def create():
        env = torchrlenvs.Growing()
        env.observation_spec = Composite(rows=Unbounded((1, 2)))
        env.action_spec = Bounded(0, 9, (1,), dtype=torch.uint8)
        env._values = lambda: {"rows": torch.zeros(1, 2)}
        return env

    policy = TensorDictModule(lambda rows: torch.tensor([256]), ["rows"], ["action"])
    (batch,) = collect(create, policy)
    assert (batch["action"].dtype, batch["action"].unique().tolist()) == (torch.int64, [256])
    assert not {"truncated", ("next", "truncated")} & set(batch.keys(True))


@pytest.mark.difference("NaN or an infinity in an observation, an action or a reward")
def test_a_reward_that_is_not_finite_is_delivered():
    (batch,) = collect(lambda: GymWrapper(TransformReward(walk(), lambda _: math.nan)))
    assert batch["next", "reward"].isnan().all()


@pytest.mark.difference("an observation of `gymnasium.spaces.Text`")
def test_a_text_is_its_string():
    (batch,) = collect(lambda: torchrlenvs.sampled(spaces.Dict(said=spaces.Text(5))))
    assert {type(text) for text in batch.get("said").tolist()} == {str}


@pytest.mark.difference("an env of TorchRL with a NonTensor spec")
def test_what_is_no_tensor_is_in_the_batch():
    (batch,) = collect(torchrlenvs.Spoken)
    assert set(batch.get("mission").tolist()) == {"go"}


@pytest.mark.difference(
    "an env of TorchRL with a leaf of no fixed size: agents that observe or act in different shapes, or a size that "
    "changes in an episode"
)
def test_what_has_no_fixed_size_is_stacked_lazily():
    (batch,) = collect(torchrlenvs.Unequal)
    assert isinstance(batch.get("agents"), LazyStackedTensorDict)
    assert [agent.get("rows").shape for agent in batch.get("agents").unbind(-1)] == [(12, 2), (12, 3)]
    (batch,) = collect(torchrlenvs.Growing)
    assert [frame.get("rows").shape for frame in batch.unbind(-1)][:7] == [(1 + step, 2) for step in range(7)]


@pytest.mark.difference("frames of `init_random_frames`")
def test_random_frames_lack_what_the_policy_writes_beside_the_action():
    policy = acting(lambda seen: (outwards(seen), seen + 1), "written")
    first, second = collect(torchrlenvs.walking, policy, num_batches=2, init_random_frames=12, use_buffers=False)
    assert "written" not in first
    assert "written" in second


@pytest.mark.difference("a recurrent policy without `InitTracker` and `TensorDictPrimer`")
def test_an_lstm_needs_both_transforms_of_the_env():
    policy = lstm()
    for transforms in ((), (policy[0].make_tensordict_primer(),)):
        with pytest.raises(KeyError):
            collect(lambda transforms=transforms: torchrlenvs.transformed(torchrlenvs.walking(), *transforms), policy)
    (batch,) = collect(lambda: torchrlenvs.transformed(torchrlenvs.walking(), InitTracker()), policy)
    _, (h, _) = policy[0].lstm(batch["observation"][:, None])
    torch.testing.assert_close(batch["next", "h"].squeeze(1), h.detach().squeeze(0))


@pytest.mark.difference("a batch ended by `interruptor`", "parts cut short by `preemptive_threshold`")
def test_a_batch_that_is_ended_has_its_full_length():
    bell = SimpleNamespace(collection_stopped=lambda: False)
    with started(torchrlenvs.walking, interruptor=bell) as collector:
        batches = []
        for stops in (True, False, True):
            bell.collection_stopped = lambda stops=stops: stops
            batches.append(collector.take().clone())
        assert collector._frames == 36
    for batch in (batches[0], batches[2]):
        assert (batch["collector", "traj_ids"] == -1).tolist() == [False] + [True] * 11
    assert not batches[0]["next", "observation"][1:].any()
    assert torch.equal(batches[2]["next", "observation"][1:], batches[1]["next", "observation"][1:])


@pytest.mark.difference("`split_trajs`")
def test_the_time_of_split_trajectories_has_no_name_unless_each_fills_its_row():
    assert collect(torchrlenvs.walking, split_trajs=True, frames=10)[0].names == [None, None]
    assert collect(torchrlenvs.walking, split_trajs=True, frames=3)[0].names == [None, "time"]


@pytest.mark.difference("resuming from `state_dict`")
def test_a_state_has_nothing_of_a_simulator():
    policy = acting(outwards)
    with started(torchrlenvs.walking, policy, frames=3) as collector:
        collector.take()
        state = collector.state_dict()
    with started(torchrlenvs.walking, policy, frames=3) as collector:
        collector.load_state_dict(state)
        assert collector.take()["observation"][0, 2] == 0  # the number of its step


@pytest.mark.difference("`traj_ids` if agents end separately, and the env as a whole at its own `done`")
def test_every_frame_in_which_an_agent_has_ended_is_followed_by_another_id():
    (batch,) = collect(torchrlenvs.Agents, frames=11)
    ended = batch["next", "agents", "done"].flatten(1).any(-1)
    assert ended.tolist() == [False, False, True, True, True] * 2 + [False]
    assert torch.equal(batch["collector", "traj_ids"].diff() != 0, ended[:-1])


@pytest.mark.difference(
    "`done`, `terminated`, `truncated` at the root, of an env that writes ends only for groups of agents"
)
def test_there_are_no_ends_at_the_root():
    (batch,) = collect(torchrlenvs.Apart)
    assert not {"done", "terminated", "truncated"} & {*batch.keys(), *batch["next"].keys()}


@pytest.mark.difference("`reset_at_each_iter`")
def test_envs_are_reset_once_more_at_the_beginning_and_at_an_end():
    resets = []

    def create():
        env = walk()
        reset = env.reset
        env.reset = lambda **kwargs: resets.append(None) or reset(**kwargs)
        return GymWrapper(env)

    with started(create, reset_at_each_iter=True, frames=6) as collector:
        counts = [len(resets)]
        for _ in range(2):
            # An episode has 6 steps, or fewer.
            ends = int(collector.take()["next", "done"].sum())
            counts.append(len(resets))
            assert counts[-1] == counts[-2] + ends + 1
    assert counts[0] >= 1


@pytest.mark.difference("`set_seed`")
def test_a_seed_takes_effect_at_the_end_of_an_episode():
    with started(torchrlenvs.walking, frames=3) as collector:
        before = collector.take().clone()
        collector.set_seed(5)
        assert torch.equal(collector.take()["observation"][0], before["next", "observation"][-1])


@pytest.mark.difference("the seed of an env, by `env.set_seed` before it is passed")
def test_the_seed_of_an_env_counts():
    starts = []
    for seed in (1, 1, 2):
        env = torchrlenvs.walking()
        env.set_seed(seed)
        starts.append(collect(env)[0]["observation"][0])
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


@pytest.mark.difference("a weight updater's `_sync_weights_with_worker` and `all_worker_ids`")
def test_an_updater_sends_the_weights():
    class Updater(WeightUpdaterBase):
        def _get_server_weights(self):
            return TensorDict()

        def all_worker_ids(self):
            return ["one"]

        def _sync_weights_with_worker(self, *, worker_id=None, server_weights):
            called.append(worker_id)

    called = []
    with started(torchrlenvs.walking, acting(outwards), weight_updater=Updater()) as collector:
        collector.update_policy_weights_()
    assert called == ["one"]


@pytest.mark.difference("`collector.policy_version` without `track_policy_version`")
def test_the_version_is_none():
    with started(torchrlenvs.walking) as collector:
        assert collector.policy_version is None


@pytest.mark.difference("weights that acted")
def test_the_first_frame_after_an_update_has_the_version_before():
    with started(torchrlenvs.walking, track_policy_version=True, frames=3) as collector:
        collector.take()
        collector.increment_version()
        assert collector.take()["policy_version"].tolist() == [0, 1, 1]
    with pytest.raises(RuntimeError, match="BatchedEnvBase is not supported"):
        collect(torchrlenvs.serial, track_policy_version=True)


@pytest.mark.difference("`update_policy_weights_` after `shutdown`")
def test_weights_are_taken_after_the_end():
    with started(torchrlenvs.walking, acting(outwards)) as collector:
        collector.shutdown()
        assert collector.update_policy_weights_() is None


@pytest.mark.difference(
    "`fake_tensordict` of several workers",
    "`policy_factory` without `policy`",
    "torch's threads in the trainer's process, without `num_threads`",
    "`set_truncated`, several workers, reused buffers",
)
def test_several_workers():
    called, before = [], torch.get_num_threads()

    def factory():
        called.append(None)
        return acting(outwards)

    torch.set_num_threads(5)
    try:
        creates, keywords = [torchrlenvs.walking] * 2, {"policy_factory": factory, "set_truncated": True}
        with started(creates, cls=MultiSyncCollector, use_buffers=True, frames=8, **keywords) as collector:
            assert torch.get_num_threads() == 3
            with pytest.raises(NotImplementedError):
                collector.fake_tensordict()
            for _ in range(2):
                after = collector.take()["next"]
                assert after["truncated"][:, -1].all()
        assert not called
        assert not after["done"][:, -1].all()
    finally:
        torch.set_num_threads(before)


@pytest.mark.difference("`copy.deepcopy(collector)`", "`cudagraph_policy` of a policy on the CPU")
def test_a_collector_can_be_copied_and_takes_graphs_of_a_cpu():
    collector = Collector(torchrlenvs.walking(), acting(outwards), frames_per_batch=4, cudagraph_policy=True)
    for each in (copy.deepcopy(collector), collector):
        assert next(iter(each)).shape == (4,)
        each.shutdown()


@pytest.mark.difference("`track_policy_version=PolicyVersion(...)`")
def test_a_transform_counts_the_versions():
    (batch,) = collect(torchrlenvs.walking(), acting(outwards), track_policy_version=PolicyVersion("uuid"))
    assert isinstance(batch["policy_version"][0], str)


@pytest.mark.difference(
    "`collector.frames_per_batch` of batched envs",
    "an assignment to an attribute, such as `collector.exploration_type`",
)
def test_attributes_of_batched_envs():
    with started(SerialEnv(3, torchrlenvs.walking), acting(outwards)) as collector:
        assert (collector.frames_per_batch, collector.total_frames) == (4, math.inf)
        collector.postproc = lambda batch: batch.select("action")
        assert [*collector.take().keys()] == ["action"]


@pytest.mark.difference("`track_traj_ids=False`")
def test_without_ids_there_is_no_collector_key():
    (batch,) = collect(torchrlenvs.walking, track_traj_ids=False)
    assert "collector" not in batch.keys()  # noqa: SIM118


@pytest.mark.difference("`split_trajs` with several workers")
def test_an_id_is_given_again_in_a_later_batch():
    creates = [torchrlenvs.walking] * 2
    batches = collect(creates, cls=MultiSyncCollector, split_trajs=True, frames=24, num_batches=3)
    begins = {}
    for batch in batches:
        for row in batch.unbind(0):
            # Where the trajectory began.
            begins.setdefault(int(row["collector", "traj_ids"][0]), set()).add(float(row["observation"][0, 1]))
    assert max(map(len, begins.values())) > 1
