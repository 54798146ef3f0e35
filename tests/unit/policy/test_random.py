"""The distributions of random actions: those of Gymnasium's `sample`, from torch's generator."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from collectx.batch import Leaf
from collectx.env.base import EnvSpec
from collectx.policy.random import RandomPolicy, random_actor

INF = np.inf


class Even(gym.Space):
    """A user's space, which only its own `sample` knows."""

    def __init__(self, shape):
        super().__init__(shape, np.int64)

    def __repr__(self):
        return "Even"

    def sample(self):
        return 2 * self.np_random.integers(0, 2, self.shape)


FLOATS = spaces.Box(np.float32([-2, 1, -INF, -INF]), np.float32([3, INF, 4, INF]), dtype=np.float32)


def drawn(space, dtype, count=4000):
    leaf = Leaf(("action",), space.shape, dtype)
    spec = EnvSpec(1, (Leaf(("observation",), (1,), torch.float32),), (leaf,), spaces.Box(-1, 1, (1,)), space)
    actor = random_actor(spec)
    return torch.stack([actor.act(())[0][0] for _ in range(count)]).double()


def test_floats_between_bounds_from_a_bound_and_without_bounds():
    values = drawn(FLOATS, torch.float32)
    bounded = drawn(spaces.Box(-2, 3, (2,), np.float32), torch.float32)
    for uniform in (values[:, 0], bounded[:, 0], bounded[:, 1]):
        assert uniform.min() >= -2
        assert uniform.max() < 3
        assert torch.histc(uniform, 10, -2, 3) == pytest.approx(torch.full((10,), 400.0), rel=0.2)
    for tail in (values[:, 1] - 1, 4 - values[:, 2]):
        assert (tail >= 0).all()
        assert tail.mean() == pytest.approx(1, abs=0.1)
    assert (values[:, 3].mean(), values[:, 3].std()) == (pytest.approx(0, abs=0.1), pytest.approx(1, abs=0.1))


@pytest.mark.parametrize(
    ("space", "lows", "highs"),
    [
        (spaces.Discrete(3, start=5), 5, 7),
        (spaces.MultiDiscrete([2, 3], start=[1, -1]), [1, -1], [2, 1]),
        (spaces.MultiBinary(2), [0, 0], [1, 1]),
        (spaces.Box(0, 255, (1,), np.uint8), [0], [255]),
        (Even((1,)), [0], [2]),
    ],
    ids=str,
)
def test_integers_reach_both_ends(space, lows, highs):
    values = drawn(space, torch.int64)
    assert values.amin(0).tolist() == lows
    assert values.amax(0).tolist() == highs
    middle = (np.asarray(lows) + np.asarray(highs)) / 2
    assert values.mean(0).numpy() == pytest.approx(middle, rel=0.05, abs=0.05)


def test_a_copy_continues_the_draws_of_an_actor_and_a_reset_begins_others():
    leaf = Leaf(("action",), (2,), torch.float32)
    box = spaces.Box(-1, 1, (2,), np.float32)
    actor = random_actor(EnvSpec(3, (leaf,), (leaf,), box, box))
    for drawn in (0, 1, 3):
        for _ in range(drawn):
            actor.act(())
        copied = pickle.loads(pickle.dumps(actor))
        # Several steps are drawn at once, so the copy has them.
        for _ in range(5 if drawn else 0):
            assert torch.equal(actor.act(())[0], copied.act(())[0])
    last = actor.act(())[0]
    actor.reset()
    first = actor.act(())[0]
    assert (first.shape, first.dtype) == ((3, 2), torch.float32)
    assert not torch.equal(first, last)
    assert not torch.equal(first, copied.act(())[0])


class Seeded(Even):
    """Samples the seed that it was given."""

    def seed(self, seed=None):
        self.given = seed

    def sample(self):
        return np.full(self.shape, self.given)


def test_a_users_space_is_copied_and_seeded_once_by_torch():
    space = Seeded((2,))
    leaf, seen = Leaf(("action",), (2,), torch.int64), Leaf(("observation",), (1,), torch.float32)
    spec = EnvSpec(3, (seen,), (leaf,), spaces.Box(-1, 1, (1,)), space)

    def draw():
        torch.manual_seed(5)
        actor = random_actor(spec)
        return [actor.act(())[0] for _ in range(3)]

    first, second = draw(), draw()
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    (value,) = torch.stack(first).unique().tolist()
    torch.manual_seed(5)
    assert value == torch.randint(0, 2**31 - 1, ()).item()
    assert first[0].shape == (3, 2)
    assert not hasattr(space, "given")


def test_only_the_parts_with_masks_are_drawn_among_legal_actions():
    """The second part of the action has no mask, or both have one."""
    data = pytest.importorskip("torchrl.data")
    leaves = tuple(Leaf((name, "action"), (), torch.int64) for name in ("a", "b"))
    masks = tuple(Leaf((name, "action_mask"), (3,), torch.bool) for name in ("a", "b"))
    forms = {leaf.key: data.Categorical(3) for leaf in leaves}
    for count in (1, 2):
        drawn = [(torch.full((2,), 7), torch.full((2,), 8))]
        spec = EnvSpec(
            2,
            masks[:count],
            leaves,
            spaces.Dict(),
            spaces.Dict(),
            draw=lambda drawn=drawn: iter(drawn),
            action_spec=forms,
        )
        allowed = [torch.tensor([[True, False, False], [False, True, False]]), torch.tensor([[False, False, True]] * 2)]
        first, second = random_actor(spec).act(allowed[:count])
        assert first.tolist() == [0, 1]
        assert second.tolist() == ([8, 8] if count == 1 else [2, 2])


def test_a_random_policy_writes_what_its_spec_draws():
    box = spaces.Box(-1, 1, (2,))
    td = TensorDict(batch_size=[])
    with pytest.raises(RuntimeError, match="RandomPolicy cannot be called, because it has no action_spec"):
        RandomPolicy()(td)
    assert RandomPolicy(box)(td)["action"].shape == (2,)
    assert RandomPolicy(box, ("a", "b"))(td)["a", "b"].shape == (2,)
    data = pytest.importorskip("torchrl.data")
    spec = data.Composite(push=data.Bounded(-1, 1, (3,)))
    assert RandomPolicy(spec)(td)["push"].shape == (3,)
    assert RandomPolicy(spec["push"], "move")(td)["move"].shape == (3,)
