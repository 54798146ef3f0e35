"""How often and with which seeds envs are reset, over all adapters of `collectx.env`."""

import signal
from functools import partial

import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

pytest.importorskip("torchrl", reason="needs the torchrl extra")

from library_collectors import make
from torchrl.envs import GymWrapper, ParallelEnv, SerialEnv, TransformedEnv
from torchrl.envs.transforms import RewardScaling
from user_code.resets import PlainResets, Resets, counted, scaled, wrapped
from ways import INLINE_SYNC, SHARED_SYNC, SINGLE, over

from collectx import Collector
from collectx.errors import WorkerDied
from collectx.worker.spec import env_seed


def started(env):
    env.start()
    return env


def vector(kind, mode):
    return kind([Resets] * 2, autoreset_mode=mode)


def over_transforms(kind, create, **keywords):
    return TransformedEnv(kind(2, create, **keywords), RewardScaling(0, 1))


FORK = {"mp_start_method": "fork"}
MAKES = {
    "gym": Resets,
    "gym_vector-Disabled": partial(vector, SyncVectorEnv, "Disabled"),
    "gym_vector-SameStep": partial(vector, SyncVectorEnv, "SameStep"),
    "gym_vector-NextStep": partial(vector, SyncVectorEnv, "NextStep"),
    "gym_vector-async": partial(vector, AsyncVectorEnv, "Disabled"),
    "wrapped": wrapped,
    "wrapped-counted": counted,
    "wrapped-scaled": scaled,
    "wrapped-vector": lambda: GymWrapper(vector(SyncVectorEnv, "Disabled")),
    "serial": partial(SerialEnv, 2, wrapped),
    "serial-scaled": partial(over_transforms, SerialEnv, wrapped),
    "serial-started": lambda: started(SerialEnv(2, wrapped)),
    "parallel": partial(ParallelEnv, 2, wrapped, **FORK),
    "parallel-scaled": partial(over_transforms, ParallelEnv, scaled, **FORK),
    "plain": PlainResets,
    "serial-plain": partial(SerialEnv, 2, PlainResets),
}
WITH_PROCESSES = {"gym_vector-async": "ci", "parallel": "nightly", "parallel-scaled": "ci"}
PARAMS = [
    pytest.param(name, marks=[getattr(pytest.mark, WITH_PROCESSES[name])] if name in WITH_PROCESSES else [])
    for name in MAKES
]


def still(observation):
    return torch.zeros(observation.shape[:-1], dtype=torch.int64)


@pytest.mark.sample(10)
@pytest.mark.difference("the first episode of an env of Gymnasium below `GymEnv` or `GymWrapper`")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("policy", [None, still])
@pytest.mark.parametrize("name", PARAMS)
def test_an_env_is_reset_once_with_its_seed_and_then_for_every_episode(name, policy):
    with Collector(MAKES[name], policy, frames_per_batch=24, seed=5) as collector:
        seen = collector.next()["observation"]
    for e, frames in enumerate(seen if seen.ndim == 3 else seen[None]):
        assert frames[:, 1].unique().tolist() == [env_seed(5, e)]
        resets = frames[::3, 0].tolist()
        assert resets == [*range(1, len(resets) + 1)]


@pytest.mark.parametrize("policy", [None, still])
@pytest.mark.parametrize("create", [wrapped, scaled, PlainResets, partial(SerialEnv, 2, wrapped)])
def test_an_env_that_is_passed_itself_is_reset_once_with_its_seed(create, policy):
    env = create()
    with Collector(env, policy, frames_per_batch=6, seed=5) as collector:
        assert collector.next()["observation"][..., 0, :].reshape(-1, 2)[0].tolist() == [1, env_seed(5, 0)]


@over((INLINE_SYNC, SHARED_SYNC))
def test_workers_reset_their_envs_once(way):
    with make(way, [wrapped, Resets], still, frames_per_batch=12, seed=5) as collector:
        assert collector.next()["observation"][:, 0].tolist() == [[1, env_seed(5, 0)], [1, env_seed(5, 1)]]


@over([SINGLE, INLINE_SYNC])
def test_after_ctrl_c_the_interrupted_batch_is_collected_anew_with_new_episodes(way):
    steps = []

    class Interrupted(Resets):
        def step(self, action):
            steps.append(action)
            if len(steps) == way.num_workers * 12 - 1:
                signal.raise_signal(signal.SIGINT)
            return super().step(action)

    with make(way, Interrupted, frames_per_batch=way.num_workers * 6, total_frames=way.num_workers * 18) as collector:
        before = collector.next()
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        batches = [before, *collector]
    assert [batch.numel() for batch in batches] == [way.num_workers * 6] * 3
    counts = torch.stack([batch["observation"].view(way.num_workers, 6, 2)[..., 0] for batch in batches], 1)
    # The last worker has reset its env after each third step, before the interrupted step and after it.
    assert counts[-1].flatten(0).unique_consecutive().tolist() == [1, 2, 5, 6, 7, 8]
    ids = torch.cat([batch["collector", "traj_ids"].flatten() for batch in batches])
    assert ids.unique(return_counts=True)[1].tolist() == [3] * (6 * way.num_workers)


def test_after_ctrl_c_while_an_env_is_made_the_collector_says_what_to_do():
    def create():
        if made:
            signal.raise_signal(signal.SIGINT)
        made.append(None)
        return Resets()

    made = []
    with Collector(create, frames_per_batch=6) as collector:
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        with pytest.raises(WorkerDied, match="Create a new collector"):
            collector.next()


def test_trajectories_that_a_reset_breaks_off_are_forgotten():
    with make(SINGLE, Resets, frames_per_batch=2, trajs_per_batch=1) as collector:
        for _ in range(10):
            next(collector)  # one frame is of the next trajectory
            collector.reset()
        dropped = collector.state_dict()["stream"]["assembler"]["dropped"]
    assert len(dropped) == 1
