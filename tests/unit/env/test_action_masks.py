"""Masks of legal actions: what they mean for logits, random actions, and random steps of an env."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from worlds.masked import MaskedEnv

from collectx.batch import Leaf
from collectx.env.action_masks import LegalActions, can_be_masked, legal_actions, network_inputs, sample
from collectx.env.base import EnvSpec
from collectx.errors import DataError, SpaceError
from collectx.policy.random import random_actor

MASK = Leaf(("action_mask",), (6,), torch.int8)
SEEN = Leaf(("observation",), (3,), torch.float32)
LOWEST = torch.finfo(torch.float32).min


def spec(action_space, *observation, **fields):
    shape = action_space.shape
    action = Leaf(("action",), shape, torch.int64)
    return EnvSpec(2, observation, (action,), spaces.Dict(), action_space, **fields)


def choices():
    """Returns masks of one value, of three values, and of two."""
    return spaces.MultiDiscrete([1, 3, 2], start=[0, 5, -1])


@pytest.mark.parametrize(
    ("action_spec", "mask", "drawn"),
    [
        (lambda data: data.OneHot(4), [[1, 0], [0, 0]], [1, 0, 0, 0]),
        (lambda data: data.MultiOneHot((3, 2)), [0, 1, 0, 0, 1], [0, 1, 0, 0, 1]),
        (lambda data: data.MultiCategorical((3, 2)), [0, 1, 0, 0, 1], [1, 1]),
        (lambda data: data.Categorical(4, (1,)), [0, 0, 1, 0], [2]),
        (lambda data: data.Categorical(3, (2,)), [[0, 1, 0], [0, 0, 1]], [1, 2]),
        (lambda data: data.OneHot(3, (2, 3)), [[0, 1, 0], [0, 0, 1]], [[0, 1, 0], [0, 0, 1]]),
        (lambda data: data.MultiCategorical((2, 3), (1, 2)), [[0, 1, 1, 0, 0]], [[1, 0]]),
    ],
)
def test_actions_of_torchrl_are_drawn_in_their_own_form(action_spec, mask, drawn):
    data = pytest.importorskip("torchrl.data")
    mask, form = torch.tensor(mask), action_spec(data)
    is_group = mask.ndim == 2 and mask.shape[0] == form.shape[0] and form.shape != (4,)
    group = ("agents",) if is_group else ()
    action, leaf = (
        Leaf((*group, name), tuple(each.shape), each.dtype) for name, each in (("action", form), ("action_mask", mask))
    )
    dims = {group: (mask.shape[0],)} if group else {}
    one = EnvSpec(1, (leaf,), (action,), spaces.Dict(), spaces.Dict(), action_spec={action.key: form}, nested_dims=dims)
    assert LegalActions(one, leaf).draw(mask[None]).tolist() == [drawn]


def test_an_env_without_a_legal_action_is_named():
    observation = SEEN, MASK
    legal = LegalActions(spec(spaces.Discrete(6), *observation), MASK)
    mask = torch.tensor([[0, 1, 0, 0, 0, 0], [0] * 6])
    with pytest.raises(DataError, match=r"^the mask 'action_mask' of env 1 \(of 2\) allows no action\. Return"):
        legal.draw(mask)
    # The next observation of a frame that ended its episode.
    assert legal.or_all(legal(mask)).sum(-1).tolist() == [[1], [6]]
    # The step that resets an env of a ragged group uses no action.
    ragged = LegalActions(spec(spaces.Discrete(6), *observation, ragged=True), MASK)
    assert ragged.draw(mask).tolist()[0] == 1
    # A choice, too.
    with pytest.raises(DataError, match=r"^the mask 'action_mask' of env 0 \(of 1\)"):
        LegalActions(spec(choices(), *observation), MASK).draw(torch.tensor([[1, 1, 1, 1, 0, 0]]))


def test_the_mask_of_the_observation_is_read_before_that_of_the_info():
    info = Leaf(("info", "action_mask"), (6,), torch.int8)
    both = spec(spaces.Discrete(6), SEEN, MASK, info)
    assert legal_actions(both).key == ("action_mask",)
    assert network_inputs(both) == (SEEN, info)
    assert legal_actions(spec(spaces.Discrete(6), SEEN, info)).key == ("info", "action_mask")
    assert legal_actions(spec(spaces.Discrete(6), SEEN)) is None


@pytest.mark.parametrize(
    ("action_space", "mask", "words"),
    [
        (
            spaces.Discrete(5),
            MASK,
            r"'action_mask' has shape \[6\], .* Discrete\(5\) needs shape \[5\].*exclude_keys",
        ),
        (spaces.MultiDiscrete([3, 4]), MASK, r"needs shape \[7\]"),
        (
            spaces.MultiDiscrete([2, 3]),
            Leaf(("action_mask",), (2, 3), torch.bool),
            r"shape \[2, 3\].*needs shape \[5\]",
        ),
        (spaces.Box(-1, 1, (6,)), MASK, r"cannot be masked: only Discrete"),
        (
            spaces.Discrete(6),
            Leaf(("action_mask", "arm"), (6,), torch.int8),
            r"^'action_mask' contains several arrays, such as 'arm'.*exclude_keys=\[action_mask\]",
        ),
        (
            spaces.Discrete(5),
            Leaf(("info", "action_mask"), (6,), torch.int8),
            r"^the action mask 'info\.action_mask' .*exclude_keys=\[action_mask\]",
        ),
    ],
)
def test_a_mask_that_does_not_fit_the_actions_is_refused(action_space, mask, words):
    refused = spec(action_space, SEEN, mask)
    # Also where the env itself would draw random actions, as TorchRL's do.
    draws = replace(refused, draw=lambda: iter([["drawn"]]))
    for read, of in ((legal_actions, refused), (random_actor, refused), (random_actor, draws)):
        with pytest.raises(SpaceError, match=words):
            read(of)


@pytest.mark.parametrize("where", ["observation", "info"])
@pytest.mark.parametrize("nvec", [None, [3, 2]])
def test_an_env_that_shows_its_infos_is_stepped_legally(where, nvec):
    env = MaskedEnv(nvec, where)
    (observation, info), is_over = env.reset(seed=0), False
    while not is_over:
        observation, _, is_over, _, info = env.step(sample(env.action_space, observation, info))


@pytest.mark.parametrize("where", ["observation", "info"])
def test_a_vector_of_envs_that_shows_its_infos_is_stepped_legally(where):
    env = SyncVectorEnv([lambda: MaskedEnv(where=where)] * 3)
    observation, info = env.reset(seed=0)
    for _ in range(8):
        observation, *_, info = env.step(sample(env.action_space, observation, info))


def test_other_random_steps_are_as_before():
    space = spaces.Box(-1, 1, (2,))
    space.seed(3)
    before = space.sample()
    space.seed(3)
    assert np.array_equal(sample(space, np.zeros(3), {}), before)


COUNTS = {
    "Discrete": spaces.Discrete(3, start=2),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3], start=[1, 0]),
    "MultiDiscrete of equal choices": spaces.MultiDiscrete([2, 2]),
    "MultiDiscrete of one": spaces.MultiDiscrete([3]),
    "a table of choices": spaces.MultiDiscrete([[2, 3], [1, 2]]),
}


@pytest.mark.parametrize("name", COUNTS)
def test_every_mask_is_read_and_obeyed(name):
    """All masks of the values, against a loop over the choices; logits, checks and draws."""
    space = COUNTS[name]
    counts = np.ravel(getattr(space, "nvec", getattr(space, "n", 0))).tolist()
    starts = np.ravel(space.start).tolist()
    size, width = sum(counts), max(counts)
    mask = Leaf(("action_mask",), (size,), torch.int8)
    of = spec(space, SEEN, mask)
    legal = LegalActions(of, mask)
    masks = torch.tensor([[int(bit) for bit in f"{number:0{size}b}"] for number in range(2**size)], dtype=torch.int8)
    table = legal(masks)
    assert table.shape == (2**size, len(counts), width)
    expected = torch.zeros_like(table)
    for row, bits in enumerate(masks.tolist()):
        for choice, count in enumerate(counts):
            first = sum(counts[:choice])
            expected[row, choice, :count] = torch.tensor(bits[first : first + count]) > 0
    assert torch.equal(table, expected)
    some = expected.any(-1)
    assert torch.equal(legal.or_all(table), expected | ~some[..., None])
    raw = torch.arange(2.0**size)[:, None] + torch.arange(float(len(counts) * width))
    assert torch.equal(legal.restrict(raw, table), torch.where(expected.flatten(1), raw, LOWEST))
    possible = some.all(-1)
    assert legal.check(table[possible]) is not None
    both = torch.cat([table[possible][:1], table[possible][-1:], table[~possible][-1:], table[~possible][:1]])
    with pytest.raises(DataError, match=r"^the mask 'action_mask' of env 2 \(of 4\) allows no action"):
        legal.check(both)
    torch.manual_seed(0)
    drawn = torch.stack([legal.draw(masks[possible]) for _ in range(40)])
    assert drawn.shape[2:] == space.shape
    index = drawn.reshape(40, -1, len(counts)) - torch.tensor(starts)
    for row, allowed in enumerate(expected[possible]):
        for choice, values in enumerate(allowed):
            seen = {*index[:, row, choice].tolist()}
            assert seen <= {*values.nonzero()[:, 0].tolist()}
            assert len(seen) > 1 or values.sum() == 1


def agents(num_choices, shape, dims):
    data = pytest.importorskip("torchrl.data")
    action = Leaf(("agents", "action"), (num_choices,), torch.int64)
    mask = Leaf(("agents", "action_mask"), shape, torch.bool)
    forms = {action.key: data.Categorical(4, (num_choices,))}
    nested = {("agents",): dims} if dims else {}
    return EnvSpec(1, (mask,), (action,), spaces.Dict(), spaces.Dict(), action_spec=forms, nested_dims=nested), mask


@pytest.mark.parametrize(
    ("num_choices", "shape", "dims", "needs"),
    [
        (2, (2, 4), (2,), None),
        (2, (8,), (2,), "needs shape [2, 4]"),
        (4, (2, 8), (2,), None),
        (4, (4, 4), (2,), "needs shape [2, 8]"),
        (3, (2, 4), (2,), "cannot be masked: only Discrete"),
        (2, (8,), (), None),
        (2, (2, 4), (), "needs shape [8]"),
        (1, (4,), (), None),
        (1, (2, 2), (), None),
        (2, (4, 4), (), "use a single Discrete(16) as the action space"),
    ],
)
def test_the_masks_of_a_group_of_agents(num_choices, shape, dims, needs):
    of, mask = agents(num_choices, shape, dims)
    if needs is None:
        assert LegalActions(of, mask)(torch.ones(1, *shape)).shape == (1, num_choices, 4)
    else:
        with pytest.raises(SpaceError) as raised:
            LegalActions(of, mask)
        assert needs in str(raised.value)
        assert ("use a single" in str(raised.value)) == (np.prod(shape) == 4**num_choices and num_choices > 1)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(2), True),
        (spaces.MultiDiscrete([2]), True),
        (spaces.Box(0, 1), False),
        (spaces.MultiBinary(2), False),
        (spaces.Dict(a=spaces.Box(0, 1), b=spaces.Discrete(2)), True),
        (spaces.Tuple([spaces.Box(0, 1), spaces.MultiBinary(2)]), False),
        (spaces.Tuple([]), False),
        (None, False),
    ],
)
def test_which_actions_may_have_masks(space, expected):
    assert can_be_masked(space) is expected


@pytest.mark.parametrize(
    ("space", "mask", "expected"),
    [
        (spaces.Discrete(3, start=4), [0, 0, 1], {6}),
        (spaces.Discrete(3), [0, 2, 0], {1}),
        (spaces.Discrete(3), [0, 1], {0, 1, 2}),
        (spaces.Discrete(3), [[0], [1], [0]], {1}),
        (spaces.MultiDiscrete([2, 3]), [0, 1, 0, 0, 1], {(1, 2)}),
        (spaces.MultiDiscrete([3]), [0, 1, 0], {(1,)}),
        (spaces.MultiDiscrete([2, 2]), None, {(0, 0), (0, 1), (1, 0), (1, 1)}),
        (spaces.MultiDiscrete([[2], [2]]), [0, 1, 0, 1], {((a,), (b,)) for a in (0, 1) for b in (0, 1)}),
        (spaces.MultiBinary(1), [1], {(0,), (1,)}),
    ],
)
@pytest.mark.parametrize("where", ["observation", "info", "both"])
def test_samples_are_legal(space, mask, expected, where):
    space.seed(0)
    entry = {} if mask is None else {"action_mask": np.array(mask)}
    other = {} if mask is None else {"action_mask": np.ones(np.shape(mask))}
    observation, info = {"observation": (entry, {}), "info": (np.zeros(2), entry), "both": (entry, other)}[where]
    drawn = [np.asarray(sample(space, observation, info)).tolist() for _ in range(60)]
    hashable = lambda each: tuple(map(hashable, each)) if isinstance(each, list) else each  # noqa: E731
    assert {hashable(each) for each in drawn} == expected
