from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from configurations import gym, gym_vector
from env_stepping import Stepper
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from collectx import Collector
from collectx.env import build
from collectx.env.gym_vector import CheckedEnv
from collectx.env.observation import ObservationLeaves
from collectx.env.spaces import numpy_dtype
from collectx.errors import DataError, SpaceError

NESTED = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float64)])})


class Toy(gymnasium.Env):
    """Keeps its actions; observes, or raises, `fault` in its step `at`."""

    def __init__(self, space=None, fault=None, at=1, infos=None):
        self.observation_space = self.action_space = space or spaces.Box(-1, 1, (2,))
        self.fault, self.at, self.infos = fault, at, infos or {}
        self.actions = []

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.actions.append(action)
        is_faulty = self.fault is not None and len(self.actions) == self.at
        if is_faulty and isinstance(self.fault, Exception):
            raise self.fault
        return self.fault if is_faulty else self.observation_space.sample(), 0.5, False, False, self.infos


def toys(info_keys=(), **kwargs):
    return replace(gym(3, entry_point=Toy, **kwargs), info_keys=list(info_keys))


def test_nested_actions_and_observations():
    stepper = Stepper(build(toys(space=NESTED))).reset()
    stepper.step(np.array([0, 1, 2]), np.zeros((3, 2)))
    assert [leaf.key for leaf in stepper.spec.action] == [("action", "a"), ("action", "b", "0")]
    actions = [action for toy in stepper.env.user_envs for action in toy.actions]
    assert all(map(NESTED.contains, actions))
    assert [action["a"] for action in actions] == [0, 1, 2]


def test_an_exception_tells_the_env():
    with pytest.raises(RuntimeError, match="the robot fell") as caught:
        Stepper(build(toys(fault=RuntimeError("the robot fell")))).reset().step()
    assert caught.value.__notes__ == ["raised in step() of env 0 (of 3)"]


BYTES = spaces.Box(0, 255, (2,), np.uint8)
MISFITS = {
    "shape": (
        None,
        np.zeros(3, np.float32),
        r"shape \(3,\) and dtype float32 as 'observation', but its space has shape \(2,\) and dtype float32",
    ),
    "broadcast": (
        None,
        np.array([7.0], np.float32),
        r"shape \(1,\) and dtype float32 as 'observation', but its space has shape \(2,\) and dtype float32",
    ),
    "kind": (BYTES, np.array([300.7, -1.0]), r"shape \(2,\) and dtype float64 .* and dtype uint8"),
    "range": (
        BYTES,
        np.array([300, -1]),
        r"values from -1 to 300 as 'observation', but its space has dtype uint8, which only holds 0 to 255",
    ),
    "ragged": (BYTES, [[1], [2, 3]], "a ragged list"),
    "scalar": (
        spaces.Discrete(3),
        2.9,
        r"shape \(\) and dtype float64 as 'observation', but its space has shape \(\) and dtype int64",
    ),
}


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("misfit", MISFITS)
def test_an_observation_that_does_not_fit_is_refused_in_any_step(misfit, at):
    space, value, got = MISFITS[misfit]
    stepper = Stepper(build(toys(space=space, fault=value, at=at))).reset()
    for _ in range(at - 1):
        stepper.step()
    with pytest.raises(DataError, match=rf"^env 0 returned .*{got}"):
        stepper.step()
    checked = CheckedEnv(Toy(space, value))
    checked.reset()
    with pytest.raises(DataError, match=got):
        checked.step(None)


class Text(gymnasium.Env):
    """Observes a text, in episodes of 3 steps."""

    observation_space, action_space = spaces.Text(6), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return "begin", {}

    def step(self, action):
        self.t += 1
        return f"step {self.t}", 0.0, self.t == 3, False, {}


@pytest.mark.parametrize("num_envs", [None, 1, 2])
def test_an_observation_that_is_one_text(num_envs):
    with Collector(Text, frames_per_batch=6 * (num_envs or 1), num_envs=num_envs) as collector:
        batch = collector.next()
    texts = {
        key: batch[key].numpy().view("U6").reshape(-1, 6).tolist() for key in ("observation", ("next", "observation"))
    }
    assert texts["observation"] == [["begin", "step 1", "step 2"] * 2] * (num_envs or 1)
    assert texts["next", "observation"] == [["step 1", "step 2", "step 3"] * 2] * (num_envs or 1)


def test_kept_infos():
    infos = {"speed": 1.5, "pixels": np.ones((2, 2), np.uint8), "lives": 3, "alive": True, "name": "x"}
    stepper = Stepper(build(toys(infos=infos, info_keys=["lives", "pixels", "alive"]))).reset()
    mask = (), np.bool_
    assert [(leaf.key, leaf.shape, numpy_dtype(leaf)) for leaf in stepper.spec.observation[1:]] == [
        (("info", "lives"), (), np.int64),
        (("info", "_lives"), *mask),
        (("info", "pixels"), (2, 2), np.uint8),
        (("info", "_pixels"), *mask),
        (("info", "alive"), (), np.bool_),
        (("info", "_alive"), *mask),
    ]
    assert not any(array.any() for array in stepper.observation[1:])
    for _ in range(2):
        _, lives, _, pixels, *masks = stepper.step().observation
        assert lives.tolist() == [3, 3, 3]
        assert (pixels == 1).all()
        assert np.all(masks)
    with pytest.raises(SpaceError, match="the info entry 'name' cannot be stored"):
        build(toys(infos=infos, info_keys=["name"]))


def test_a_declared_info_steps_no_env():
    keys = [{"lives": "int64", "pixels": ["uint8", 2, 2]}, {"episode": {"r": "float32"}}]
    stepper = Stepper(build(toys(infos={"lives": 3, "episode": {"r": 2.5, "l": 4}}, info_keys=keys))).reset()
    assert not any(toy.actions for toy in stepper.env.user_envs)
    stepper.step()
    kept = dict(zip((leaf.key[1:] for leaf in stepper.spec.observation[1:]), stepper.observation[1:], strict=True))
    assert kept["lives",].tolist() == [3] * 3
    assert kept["episode", "r"].tolist() == [2.5] * 3
    assert not kept["_pixels",].any()
    assert kept["pixels",].shape == (3, 2, 2)
    assert stepper.spec.infos == {"lives": "int64", "pixels": ["uint8", 2, 2], "episode": {"r": "float32"}}


@pytest.mark.parametrize("form", ["flot32", ["float32", "x"], [], 3, "str"])
def test_a_wrong_declaration_says_how_to_declare(form):
    with pytest.raises(
        SpaceError, match=r"info_keys declares 'lives' as .* Write 'env.info_keys=\[\{lives: float32\}\]'"
    ):
        build(toys(info_keys=[{"lives": form}]))


def recorded(num_envs, mode):
    """Makes a vector env whose episodes are recorded by a wrapper of the whole."""
    envs = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=5)] * num_envs
    return gymnasium.wrappers.vector.RecordEpisodeStatistics(SyncVectorEnv(envs, autoreset_mode=AutoresetMode(mode)))


SHORT = {"wrappers": ["RecordEpisodeStatistics"], "kwargs": {"max_episode_steps": 5}}
RECORDED = {"gym": replace(gym(2), **SHORT)}
for name in ("NextStep", "SameStep", "Disabled"):
    RECORDED[f"each-{name}"] = replace(gym_vector(2, name, "sync"), **SHORT)
    RECORDED[f"all-{name}"] = replace(gym_vector(2), id=None, entry_point=recorded, kwargs={"mode": name})


@pytest.mark.parametrize("cfg", RECORDED.values(), ids=RECORDED)
def test_an_info_that_comes_now_and_then_has_a_mask(cfg):
    stepper = Stepper(build(replace(cfg, info_keys=["episode"]))).reset()
    assert [leaf.key[1:] for leaf in stepper.spec.observation[1:]] == [*(("episode", x) for x in "rlt"), ("_episode",)]
    for _ in range(17):
        stepper.step()
    for frames in stepper.frames:
        assert sum(frame.ended for frame in frames) >= 2
        for frame in frames:
            _, total, length, _, mask = frame.after
            assert (mask, total, length) == (frame.ended, 5.0 * frame.ended, 5 * frame.ended)
            assert not any(array.any() for array in frame.before[1:])
    stepper.env.close()


MISSION = spaces.Dict(
    seen=spaces.Box(-1, 1, (2,)),
    inner=spaces.Dict(mission=spaces.Graph(spaces.Discrete(2), None), n=spaces.Discrete(3)),
)


def spoken():
    toy = Toy(MISSION)
    toy.action_space = spaces.Discrete(2)
    return toy


def test_parts_of_an_observation_are_left_out():
    cfg = gym(3, entry_point=spoken)
    with pytest.raises(
        SpaceError, match=r"^'inner\.mission' cannot be stored as a tensor: .*exclude_keys=\[inner.mission\]\.$"
    ):
        build(replace(cfg, exclude_keys=["seen"]))
    env = build(replace(cfg, exclude_keys=["inner.mission"]))
    Stepper(env).reset().step()
    keys = [leaf.key for leaf in env.spec.observation]
    assert keys == [leaf.key for leaf in ObservationLeaves(env.spec.observation_space).leaves]
    assert keys == [("seen",), ("inner", "n")]


@pytest.mark.parametrize(
    ("stack", "flatten"),
    [
        ({"_target_": "gymnasium.wrappers:FrameStackObservation", "stack_size": 3}, "FlattenObservation"),
        ({"FrameStackObservation": {"stack_size": 3}}, gymnasium.wrappers.FlattenObservation),
        ({"gymnasium.wrappers.FrameStackObservation": {"stack_size": 3}}, {"FlattenObservation": None}),
    ],
)
def test_wrappers_by_name_and_callable(stack, flatten):
    assert build(replace(gym(), wrappers=[stack, flatten])).spec.observation[0].shape == (12,)


def test_all_envs_are_closed_if_one_cannot_be():
    closed = []

    class Closing(Toy):
        def __init__(self, env_index):
            super().__init__()
            self.index = env_index

        def close(self):
            closed.append(self.index)
            if not closed[1:]:
                raise OSError("no")

    env = build(replace(gym(3), id=None, entry_point=Closing))
    with pytest.raises(OSError, match="no"):
        env.close()
    assert len(closed) == 3
