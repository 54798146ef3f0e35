"""The state of workers: envs of every kind continue, in another worker, as the saved ones, bit by bit."""

from __future__ import annotations

import pickle
import re

import pytest
import torch
from composed_overrides import composed
from configurations import gym, through_a_file
from user_code.unsaved import PARTS

from collectx import env as envs
from collectx import policy as policies
from collectx import state as states
from collectx.checkpoints import Checkpoints
from collectx.collector import start_collector
from collectx.policy.random import RandomActor
from collectx.run import RunFolder, execute
from collectx.run.checkpointer import announce_unsaved
from collectx.run.folder.events import format_event

_OPTIONS = ["trainer=meter", "collector.frames_per_batch=32", "collector.total_frames=320"]
_VECTOR = ["env=gym_vector", "env.id=CartPole-v1", "env.num_envs=4"]
_BATCHED = ["env=torchrl", "env.target=user_code.torchrlenvs:counted_serial", "env.num_envs=3"]
_PROCESSES = ["env=torchrl", "env.target=user_code.torchrlenvs:parallel"]
RESTORABLE = {
    "gym": ["policy=mlp"],
    "gym, random actions": ["policy=random", "env=pendulum"],
    "mujoco": ["policy=random", "env=halfcheetah"],
    "atari": ["policy=random", "env=pong", "env.num_envs=2"],
    "vector": ["policy=mlp", *_VECTOR],
    "vector, same_step": ["policy=mlp", *_VECTOR, "env.autoreset_mode=same_step"],
    "vector, next_step": ["policy=mlp", *_VECTOR, "env.autoreset_mode=next_step"],
    "torchrl": ["policy=mlp", "env=torchrl", "env.target=user_code.torchrlenvs:counted", "env.num_envs=2"],
    "torchrl, batched": ["policy=mlp", *_BATCHED, "collector.frames_per_batch=33", "collector.total_frames=330"],
    "torchrl, processes": ["policy=mlp", *_PROCESSES, "env.num_envs=2", "env.kwargs.mp_start_method=fork"],
    "torchrl, random actions": ["policy=random", "env=torchrl", "env.target=user_code.torchrlenvs:one_hot"],
    "torchrl, with other transforms": ["policy=mlp", "env=torchrl", "env.target=user_code.torchrlenvs:primed"],
    **{
        f"vector, async, {mode}": ["policy=mlp", *_VECTOR, "env.vectorization_mode=async", f"env.autoreset_mode={mode}"]
        for mode in ("disabled", "same_step", "next_step")
    },
    "counting": ["policy=random", "env=counting"],
    "time limit, random frames": [
        "policy=mlp",
        "collector.max_frames_per_traj=7",
        "collector.init_random_frames=200",
    ],
    "two workers": ["policy=mlp", "collector=multi_sync", "launcher=inline"],
}
NOT_RESTORABLE = {
    "envpool": (
        ["policy=random", "env=envpool", "env.id=CartPole-v1", "env.num_envs=4"],
        ["EnvPool", "does not expose"],
    ),
    "sticky actions": (
        ["policy=random", "env=pong", "env.num_envs=2", "env.kwargs.repeat_action_probability=0.25"],
        ["repeat_action_probability=0"],
    ),
    "vector, the user's processes": (
        ["policy=random", "env=gym_vector", "env.id=null", "env.entry_point=user_code.cartpoles:processes"],
        ["env.vectorization_mode=async"],
    ),
}


def _make(options):
    """Makes a collector; returns it and the reasons, announced before workers start, why its envs cannot be saved."""
    if "env=torchrl" in options:
        pytest.importorskip("torchrl", reason="needs the torchrl extra")
    collector = [] if "collector=multi_sync" in options else ["collector=single"]
    cfg, announced = composed(" ".join([*_OPTIONS, *collector, *options])), []
    examine = announce_unsaved(cfg, lambda name, reason: announced.append(format_event(name, {"reason": reason})))
    spec = envs.read_spec(cfg.env, policies.is_user_policy(cfg.policy), examine)
    return start_collector(cfg, policies.build(cfg.policy, spec, cfg.seed), spec), announced


@pytest.mark.sample(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", RESTORABLE)
def test_workers_continue_as_the_saved_ones(kind):
    collector, announced = _make(RESTORABLE[kind])
    assert announced == []
    with collector as saved:
        for _ in range(3):
            next(saved)
        states = through_a_file(saved.ask("state"))
        expected = [next(saved).clone() for _ in range(5)]
    with _make(RESTORABLE[kind])[0] as other:
        next(other)
        reasons = other.ask("load", per_worker={worker: (state,) for worker, state in states.items()})
        assert set(reasons.values()) == {None}
        for batch in expected:
            continued = next(other)
            for key in batch.keys(include_nested=True, leaves_only=True):
                assert torch.equal(batch[key], continued[key]), key


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", NOT_RESTORABLE)
def test_the_reason_why_envs_cannot_be_saved(kind):
    options, words = NOT_RESTORABLE[kind]
    made, (announced,) = _make(options)
    assert "so these begin new episodes after a resume: " in announced
    assert words[0] in announced
    assert "group of envs" not in announced
    with made as collector:
        next(collector)
        state = collector.ask("state")[0]
        assert words[-1] in state["rollout"]["reason"]
        assert collector.ask("load", per_worker={0: (state,)}) == {0: state["rollout"]["reason"]}


def test_workers_that_run_collectors_are_announced():
    cfg, announced = composed("collector=distributed collector.num_workers_per_collector=2"), []
    envs.read_spec(cfg.env, examine=announce_unsaved(cfg, lambda name, reason: announced.append(reason)))
    assert announced == ["the processes within a worker do not report the state of their envs"]


_UNSAVED = {
    **{f"{part}": ["user_code.unsaved:UnsavedEnv", f"+env.kwargs.part={part}"] for part in PARTS},
    "from_step": ["user_code.unsaved:UnsavedEnv", "+env.kwargs.part=system", "+env.kwargs.from_step=true"],
    "state_dict": ["user_code.unsaved:FailingStateDict"],
}


# An endless graph takes seconds until it is given up.
@pytest.mark.sample(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.nightly] * (kind == "endless")) for kind in _UNSAVED]
)
def test_a_run_whose_envs_cannot_be_saved_has_checkpoints_and_resumes_with_new_episodes(tmp_path, kind):
    entry_point, *kwargs = _UNSAVED[kind]
    words = ["env=gym", "env.id=null", f"env.entry_point={entry_point}", "env.num_envs=1", *kwargs, "policy=random"]
    size = ["collector=single", "collector.frames_per_batch=32", "run.resume=auto"]
    for frames in (64, 96):
        cfg = composed(" ".join([*words, "trainer=meter", *size, f"collector.total_frames={frames}"]))
        assert execute(cfg, tmp_path, []).status == "completed"
        assert [path.name for path in Checkpoints(tmp_path / "checkpoints").all()][-1] == f"{frames // 32:09d}"
    events = list(RunFolder(tmp_path).read_events())
    announced = [event for event in events if event["event"] == "envs_not_saved"]
    assert len(announced) == 2, events
    assert ("workers" in announced[0]) == (kind in ("from_step", "state_dict"))
    (resumed,) = (event for event in events if event["event"] == "resumed")
    assert re.search("cannot be (saved|read)", resumed["new_episodes"]["0"])


def test_random_actions_continue_where_the_drawn_ones_are_used_up():
    actor = RandomActor(envs.read_spec(gym(4, "CartPole-v1")))
    for _ in range(256):
        actor.act([])
    generator = torch.get_rng_state()
    other = states.loads(states.dumps(actor, "actor"), None, "actor")
    expected = actor.act([])[0]
    torch.set_rng_state(generator)
    assert torch.equal(other.act([])[0], expected)


def test_random_actions_take_as_many_bytes_as_they_have():
    actor = RandomActor(envs.read_spec(gym(4, "CartPole-v1")))
    drawn, _ = actor.act([]), actor.act([])
    size = 256 * drawn[0].nbytes
    assert size / 2 < len(pickle.dumps(actor)) < 1.5 * size
