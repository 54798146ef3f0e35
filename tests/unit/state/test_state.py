"""The state of envs: one that is made anew continues bit by bit as the saved one."""

from __future__ import annotations

import collections
import importlib
import random
import weakref
from itertools import compress

import gymnasium as gym
import numpy as np
import pytest
import torch
from configurations import through_a_file
from user_code import graphs

from collectx.errors import NotRestorableError
from collectx.random_state import HeldGenerators
from collectx.state import ProcessState, dumps, load_generators, loads, reason_not_saved, save_generators


def _atari() -> gym.Env:
    import ale_py

    gym.register_envs(ale_py)
    env = gym.wrappers.AtariPreprocessing(
        gym.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0), noop_max=30
    )
    return gym.wrappers.FrameStackObservation(env, 4)


def _normalised() -> gym.Env:
    env = gym.wrappers.RecordEpisodeStatistics(gym.make("Pendulum-v1"))
    return gym.wrappers.NormalizeReward(gym.wrappers.NormalizeObservation(env))


class _Shared(gym.Env):
    """An env whose attributes share an array and a deque, and whose observations depend on all of them."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.position = np.zeros(2)
        self.seen = collections.deque([self.position], maxlen=3)
        self.modes = {"slow": 1, "fast": 2}
        self.mode = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position[:] = self.np_random.normal(size=2)
        self.seen.clear()
        self.seen.append(self.position)
        self.mode = "slow"
        return self.position.copy(), {}

    def step(self, action):
        self.position += self.np_random.normal(size=2) * self.modes[self.mode]
        self.mode = "fast" if action else "slow"
        self.seen.append(self.position)
        return sum(self.seen).copy(), 0.0, False, False, {}


class _Stateful(_Shared):
    """An env that saves its own state."""

    def state_dict(self):
        return {"position": torch.from_numpy(self.position.copy()), "mode": self.mode, "seen": len(self.seen)}

    def load_state_dict(self, state):
        self.position[:] = state["position"].numpy()
        self.mode = state["mode"]
        self.seen.clear()
        self.seen.extend([self.position] * state["seen"])


_MAKERS = {
    **{name: lambda name=name: gym.make(name) for name in ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "Taxi-v4")},
    **{name: lambda name=name: gym.make(name) for name in ("HalfCheetah-v5", "Humanoid-v5", "Ant-v5", "Pusher-v5")},
    "atari": _atari,
    "normalised": _normalised,
    "vector": lambda: gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync"),
    "shared": _Shared,
    "state_dict": _Stateful,
}


def _walk(env, actions) -> list:
    """Steps an env; returns every observation, reward and end, as arrays."""
    steps = []
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        steps.append([observation, reward, terminated, truncated])
        if not hasattr(env, "num_envs") and (terminated or truncated):
            steps.append([env.reset()[0]])
    return steps


@pytest.mark.sample(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _MAKERS)
def test_a_restored_env_continues_as_the_saved_one(name):
    saved, other = _MAKERS[name](), _MAKERS[name]()
    saved.action_space.seed(3)
    actions = [saved.action_space.sample() for _ in range(300)]
    saved.reset(seed=11)
    other.reset(seed=99)
    _walk(saved, actions[:103])
    _walk(other, actions[:37])
    state = through_a_file(dumps(saved, name))
    expected = _walk(saved, actions[103:])
    other = loads(state, other, name)
    continued = _walk(other, actions[103:])
    assert len(continued) == len(expected)
    for left, right in zip(continued, expected, strict=True):
        for one, two in zip(left, right, strict=True):
            np.testing.assert_array_equal(one, two)
    saved.close()
    other.close()


def test_the_envs_of_a_worker_share_the_saved_bytes_of_equal_models_and_each_env_has_one_model():
    envs = [gym.make("Ant-v5").unwrapped for _ in range(4)]
    for env in envs:
        env.reset(seed=1)
    state = dumps(envs, "envs")
    assert len(state) < 1.5 * len(dumps(envs[0], "env"))
    loaded = loads(state, None, "envs")
    assert all(env.data.model is env.model for env in loaded)
    assert loaded[0].model is not loaded[1].model


def test_what_cannot_be_saved_is_named():
    env = _Shared()
    env.handles = {"first": [0, (number for number in ())]}
    with pytest.raises(
        NotRestorableError, match=r"env cannot be saved: handles\['first'\]\[1\]: .* 'generator' object"
    ):
        dumps(env, "env")
    with pytest.raises(NotRestorableError, match=r"group cannot be saved: _Shared\.handles"):
        dumps([env], "group")


@pytest.mark.sample(2)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("cut", [5, 7])
def test_processes_of_a_vector_env_continue_in_and_right_after_an_episode(mode, cut):
    def make():
        functions = [lambda: ProcessState(gym.make("CartPole-v1", max_episode_steps=7))] * 2
        return gym.vector.AsyncVectorEnv(functions, autoreset_mode=mode)

    saved, other = make(), make()
    saved.reset(seed=1)
    other.reset(seed=2)
    actions = np.arange(80).reshape(40, 2) % 2
    _walk(saved, actions[:cut])
    _walk(other, actions[:7])
    state = through_a_file(dumps(saved, "env"))
    assert loads(state, other, "env") is other
    for left, right in zip(_walk(other, actions[cut:]), _walk(saved, actions[cut:]), strict=True):
        for one, two in zip(left, right, strict=True):
            np.testing.assert_array_equal(one, two)
    saved.close()
    other.close()


def _with_a_generator():
    env = ProcessState(_Shared())
    env.unwrapped.handle = (number for number in ())
    return env


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_Shared, "saved only if env.vectorization_mode=async made it"),
        (_with_a_generator, r"env 0 of the AsyncVectorEnv: the env cannot be saved: _Shared\.handle: .* 'generator'"),
    ],
)
def test_processes_that_cannot_be_saved_continue_to_work(make, reason):
    env = gym.vector.AsyncVectorEnv([make])
    env.reset(seed=0)
    with pytest.raises(NotRestorableError, match=reason):
        dumps(env, "env")
    env.step(np.zeros(1, int))
    env.close()


def test_bytes_that_are_no_state_are_refused():
    for damaged in (torch.zeros(9, dtype=torch.uint8), dumps(_Shared(), "env")[:-9], torch.zeros(0, dtype=torch.uint8)):
        with pytest.raises(NotRestorableError, match="the saved state of env cannot be read"):
            loads(damaged, _Shared(), "env")


def test_the_state_of_an_env_with_other_processes_is_refused():
    state = dumps(_Stateful(), "env")
    with pytest.raises(NotRestorableError, match="lacks objects of the saved env that cannot be recreated"):
        loads(state, _Shared(), "env")


class _OfTwo(_Shared):
    """Refers to what is no part of its state."""

    def __init__(self, policy):
        super().__init__()
        self.policy = policy


def test_what_is_outside_of_the_state_is_that_of_the_process():
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    state = dumps(_OfTwo(one), "env", [one])
    assert loads(state, _OfTwo(two), "env", [two]).policy is two


class _Unreadable(_Shared):
    def __reduce__(self):
        return int, ("no number",)


def test_the_trial_at_the_start_reads_what_it_has_written_and_changes_nothing():
    env = _Stateful()
    env.reset(seed=0)
    env.load_state_dict = None
    assert reason_not_saved(env) is None
    assert "could not be read back: ValueError" in reason_not_saved(_Unreadable())


def test_deeply_nested_attributes_are_saved():
    """The pickle exceeds Python's recursion limit."""
    env = _Shared()
    env.chain = []
    for depth in range(5000):
        env.chain = [env.chain, depth]
    chain = loads(dumps(env, "env"), _Shared(), "env").chain
    for depth in reversed(range(5000)):
        chain, number = chain
        assert number == depth
    assert chain == []


def test_generators_of_a_gpu_are_saved_and_held_with_those_of_torch(monkeypatch):
    """Another generator of the CPU in place of one of a GPU."""
    gpu = torch.Generator().manual_seed(1)
    monkeypatch.setattr(torch.cuda, "default_generators", (gpu,))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    saved, held = through_a_file(save_generators()), HeldGenerators(["torch"])
    expected = torch.rand((), generator=gpu)
    with held.in_use():
        assert torch.rand((), generator=gpu) == expected
    following = torch.rand((), generator=gpu)
    load_generators(saved)
    assert [torch.rand((), generator=gpu) for _ in range(2)] == [expected, following]
    assert held.names == ["torch", "cuda"]


def test_sticky_actions_cannot_be_saved():
    """The last action is no part of the emulator's state."""
    import ale_py

    gym.register_envs(ale_py)
    env = gym.make("ALE/Pong-v5")
    env.reset(seed=0)
    with pytest.raises(NotRestorableError, match="repeat_action_probability=0"):
        dumps(env, "env")


def _objects():
    return np.array([[1], "a", None], dtype=object)


class _Named(np.ndarray):
    """An array that may have attributes."""


def test_arrays_of_objects_are_saved_unless_they_share_memory():
    for saved in (_objects(), _objects()[1:], _objects().reshape(3, 1)):
        loaded = loads(through_a_file(dumps(saved, "array")), None, "array")
        assert loaded.tolist() == saved.tolist()
    for take in (lambda base: [base[:1], base[1:]], lambda base: [base[1:], base]):
        arrays = take(_objects())
        with pytest.raises(NotRestorableError, match="an object array that is a view of another one cannot be saved"):
            dumps(arrays, "arrays")


def test_arrays_keep_their_attributes_and_share_their_memory():
    named, plain = (np.arange(4.0).view(_Named) for _ in range(2))
    named.unit = "m"
    array = np.arange(6.0)
    saved = [named, plain, array, array[2:], array[::-2], np.zeros((0, 3)), np.asfortranarray(np.ones((2, 3)))]
    loaded = loads(through_a_file(dumps(saved, "arrays")), None, "arrays")
    assert loaded[0].unit == "m"
    assert not vars(loaded[1])
    for before, after in zip(saved, loaded, strict=True):
        assert np.array_equal(before, after)
        assert before.shape == after.shape
    loaded[2][:] = -1
    assert loaded[3].tolist() == [-1] * 4
    assert loaded[4].tolist() == [-1] * 3
    assert loaded[6].flags.f_contiguous


def test_functions_of_no_module_may_have_variables_of_their_own_alone():
    def counter():
        count = 0

        def more():
            nonlocal count
            count += 1
            return count

        return more, lambda: count

    more, _ = counter()
    assert more() == 1
    loaded = loads(through_a_file(dumps([more], "function")), None, "function")[0]
    assert [loaded(), loaded(), more()] == [2, 3, 2]
    with pytest.raises(NotRestorableError, match="shares a variable, but belongs to no module"):
        dumps(list(counter()), "functions")


def round_trip(value):
    return loads(through_a_file(dumps(value, "value")), None, "value")


def overlaps(arrays):
    """Returns the pairs of tensors that share memory."""
    return {(i, j) for i in range(len(arrays)) for j in range(i) if np.shares_memory(arrays[i], arrays[j])}


def arrays_of(draw, count):
    """Views of views of some arrays and tensors, in any order, direction and form."""
    matrix, tensor = np.arange(24.0).reshape(4, 6), torch.arange(12.0)
    found = [matrix, np.asfortranarray(np.arange(6).reshape(2, 3)), tensor.numpy(), np.zeros((0, 2)), np.array(3.0)]
    found += [np.arange(8, dtype=np.uint8).view(np.int16), matrix[1:3], tensor.view(3, 4).numpy()]
    for _ in range(count):
        array = draw.choice([each for each in found if each.ndim])
        match draw.randrange(5):
            case 0:
                found.append(array.T)
            case 1:
                found.append(array[:: draw.choice([1, -1, 2, -2])])
            case 2:
                found.append(array[draw.randint(0, len(array)) :])
            case 3:
                found.append(array.reshape(-1)[: draw.randint(1, 5)])
            case 4:
                found.append(array[...])
                found[-1].flags.writeable = draw.random() < 0.5 and found[-1].flags.writeable
    draw.shuffle(found)
    return found


@pytest.mark.parametrize("seed", range(25))
def test_any_views_have_the_same_values_forms_and_memory_again(seed):
    saved = arrays_of(random.Random(seed), 8)
    loaded = round_trip(saved)
    assert overlaps(loaded) == overlaps(saved)
    for before, after in zip(saved, loaded, strict=True):
        assert np.array_equal(before, after)
        assert (before.dtype, before.shape, before.flags.writeable) == (after.dtype, after.shape, after.flags.writeable)
        is_along = [length > 1 and before.size > 0 for length in before.shape]
        assert [*compress(before.strides, is_along)] == [*compress(after.strides, is_along)]
    # What is written to one is seen in the others.
    for index in range(len(saved)):
        for arrays in (saved, loaded):
            if arrays[index].size and arrays[index].flags.writeable:
                arrays[index].flat[-1] = index
    assert [each.tolist() for each in loaded] == [each.tolist() for each in saved]


def test_tensors_share_their_storages_with_one_another_and_with_arrays():
    base = torch.arange(12.0)
    saved = [base, base[2:6], base.view(3, 4).t(), base.numpy()[1:], torch.zeros(0), torch.ones(2, requires_grad=True)]
    saved.append(base.untyped_storage())
    loaded = round_trip(saved)
    assert [list(each) for each in loaded[:1]] == [list(base)]
    loaded[0][3], base[3] = -1, -1
    assert [each.tolist() for each in loaded[:5]] == [each.tolist() for each in saved[:5]]
    assert loaded[1].stride() == (1,)
    assert loaded[2].stride() == (1, 4)
    assert loaded[5].requires_grad
    assert loaded[6].data_ptr() == loaded[0].data_ptr()
    assert loaded[6].nbytes() == 48
    with pytest.raises(NotRestorableError, match="shared memory cannot be saved"):
        dumps(torch.zeros(2).share_memory_(), "value")


def test_references_closures_and_slots_are_as_they_were():
    found = round_trip(graphs.references())
    kept = found["kept"]
    assert (kept.left, hasattr(kept, "right")) == ([1], False)
    assert found["to kept"]() is kept
    assert found["to gone"]() is None
    found["proxy"].left.append(2)
    assert kept.left == [1, 2]
    assert found["by key"][kept] == "key"
    assert found["by value"]["value"] is kept
    more, count, own = round_trip(graphs.closures(5))
    assert (more(2), count(), own()) == (7, 7, 6)
    assert (more.calls, more.__doc__, more.__defaults__, more.__annotations__) == (
        ["none"],
        "Adds.",
        (1,),
        {"by": int, "return": int},
    )
    assert (more.__module__, more.__qualname__) == ("user_code.graphs", "closures.<locals>.more")
    assert vars(graphs) is more.__globals__
    assert round_trip(graphs.scaled) is graphs.scaled
    eager = graphs.Eager(4)
    eager.size = 9
    assert round_trip([eager])[0].size == 9
    with pytest.raises(NotRestorableError, match="a weak reference with a callback cannot be saved"):
        dumps(weakref.ref(kept, print), "value")


def test_a_file_that_is_mapped_to_be_read_is_opened_again(tmp_path):
    path = tmp_path / "data.npy"
    np.save(path, np.arange(1000.0).reshape(10, 100))
    read, private = np.load(path, mmap_mode="r"), np.load(path, mmap_mode="c")
    private[1] = -1
    value = {"all": read, "row": read[3], "column": np.asarray(read)[:, 1], "private": private, "part": private[:2]}
    saved = dumps(value, "the env", level=0)
    np.save(path, np.arange(1000.0).reshape(10, 100) + 1)
    found = loads(saved, None, "the env")
    for name in ("all", "row", "column"):
        np.testing.assert_array_equal(found[name], value[name])
        assert not found[name].flags.writeable
    assert found["all"][0, 0] == 1
    assert (found["private"][1] == -1).all()
    assert found["private"][0, 0] == 0
    found["private"][0] = 7
    assert (found["part"][0] == 7).all()
    with pytest.raises(NotRestorableError, match=r"memmap with mode 'r\+' cannot be saved. Open it with mode 'r'"):
        dumps(np.load(path, mmap_mode="r+"), "the env")


def test_generators_in_the_class_of_an_installed_env_are_saved(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    text = "import gymnasium\n\nclass Env(gymnasium.Env):\n    action_space = gymnasium.spaces.Discrete(99, seed=1)\n"
    (folder / "installed_env.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    env = importlib.import_module("installed_env").Env()
    saved = dumps(env, "the env")
    expected = [env.action_space.sample() for _ in range(9)]
    env = loads(saved, env, "the env")
    assert [env.action_space.sample() for _ in range(9)] == expected
