"""Which values `collector.check_finite` looks at."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from collectx import progress
from collectx.batch import TRAJ_IDS, Leaf, Slot
from collectx.env.base import EnvSpec
from collectx.errors import DataError
from collectx.progress import STEPS
from collectx.rollout.finite import FiniteCheck

OBSERVATION, INFO = Leaf(("observation",), (1,), torch.float32), Leaf(("info", "speed"), (1,), torch.float32)
BOX = spaces.Box(-1, 1, (1,), np.float32)


def check(*inputs, **fields):
    spec = EnvSpec(1, (OBSERVATION, INFO), (Leaf(("action",), (1,), torch.float32),), BOX, BOX, inputs=inputs, **fields)
    leaves = (OBSERVATION, INFO, *spec.action, OBSERVATION.under("next"), INFO.under("next"))
    tensors = {leaf.key: torch.zeros(1, 3, 1) for leaf in leaves} | {TRAJ_IDS: torch.zeros(1, 3, dtype=torch.int64)}
    return FiniteCheck(spec, (), [Slot(tensors)], 0, 0, 1), {key: tensor.numpy() for key, tensor in tensors.items()}


def test_what_the_policy_and_the_trainer_read():
    checked, arrays = check(OBSERVATION)
    arrays["info", "speed"][:] = arrays["next", "info", "speed"][:] = np.nan
    checked(0, 3)
    arrays["next", "observation"][0, 2] = np.inf
    checked(0, 2)
    with pytest.raises(DataError, match="worker 0"):
        checked(0, 3)


def test_an_info_that_the_policy_reads_too():
    checked, arrays = check(OBSERVATION, INFO)
    arrays["info", "speed"][0, 1] = np.nan
    with pytest.raises(DataError, match=r"info\.speed"):
        checked(0, 3)


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_a_log_probability_may_be_infinite_but_not_nan(device):
    key = ("agents", "action_log_prob")
    spec = EnvSpec(1, (OBSERVATION,), (Leaf(("action",), (), torch.int64),), BOX, spaces.Discrete(2), device=device)
    keys = (OBSERVATION.key, ("next", "observation"), ("next", "reward"), key)
    tensors = {each: torch.zeros(1, 3) for each in keys} | {TRAJ_IDS: torch.zeros(1, 3, dtype=torch.int64)}
    checked = FiniteCheck(spec, [key], [Slot(tensors)], 0, 0, 1)
    tensors[key][0] = torch.tensor([-torch.inf, torch.inf, 0.0])
    checked(0, 3)
    tensors[key][0, 2] = torch.nan
    with pytest.raises(DataError, match=r"the policy for env 0 of worker 0 returned nan in agents\.action_log_prob"):
        checked(0, 3)


@pytest.mark.parametrize("device", [None, torch.device("cpu")], ids=["arrays", "tensors"])
def test_a_dtype_that_numpy_lacks(device):
    leaf = Leaf(("observation",), (), torch.bfloat16)
    spec = EnvSpec(1, (leaf,), (), BOX, BOX, rewards=(), device=device)
    tensors = {leaf.key: torch.zeros(1, 3, dtype=leaf.dtype), TRAJ_IDS: torch.zeros(1, 3, dtype=torch.int64)}
    checked = FiniteCheck(spec, (), [Slot(tensors)], 0, 0, 1)
    checked(0, 3)
    tensors[leaf.key][0, 1] = torch.inf
    with pytest.raises(DataError, match=r"returned inf in observation \(step 1 .*; the largest bfloat16 is 3.39e\+38"):
        checked(0, 3)


ACTION, REWARD = ("action",), ("next", "reward")


@pytest.mark.parametrize(
    ("places", "message"),
    [
        # key, row, step, element, value; the second of two workers steps the envs 2 and 3 of 4
        (
            [(REWARD, 1, 2, 0, np.nan)],
            "env 1 of worker 5 returned nan in next.reward (step 2 of the batch). Fix the env,",
        ),
        ([(ACTION, 0, 1, 1, np.nan)], "the policy for env 0 of worker 5 returned nan in action (step 1 of the batch)."),
        (
            [(("observation",), 1, 0, 1, np.inf)],
            "env 1 of worker 5 returned inf in observation (step 0 of the batch; the largest float32 is 3.4e+38).",
        ),
        # The first step counts, then the order within a step: observation, action, results of the env.
        (
            [(REWARD, 0, 1, 0, np.nan), (("next", "observation"), 1, 0, 0, -np.inf)],
            "env 1 of worker 5 returned -inf in n",
        ),
        ([(REWARD, 0, 1, 0, np.nan), (ACTION, 1, 1, 0, np.nan)], "the policy for env 1 of"),
        ([(ACTION, 0, 1, 0, np.nan), (("observation",), 1, 1, 0, np.nan)], "env 1 of worker 5 returned nan in obs"),
        ([(ACTION, 1, 1, 0, np.nan), (ACTION, 0, 2, 0, np.inf)], "the policy for env 1 of worker 5 returned nan"),
        # Of the values of an env, the first one.
        (
            [(ACTION, 0, 1, 0, np.nan), (ACTION, 0, 1, 1, np.inf)],
            "the policy for env 0 of worker 5 returned nan in action (step 1 of the batch).",
        ),
        ([(REWARD, 0, 3, 0, np.nan)], None),  # of a later batch
        ([(("observation",), 0, 0, 0, 3e38), (("observation",), 0, 1, 0, 3e38)], None),  # only the sum is infinite
    ],
)
@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_the_first_value_that_is_not_finite_is_named(device, places, message):
    observation, action = (Leaf((name,), (2,), torch.float32) for name in ("observation", "action"))
    spec = EnvSpec(2, (observation,), (action,), BOX, BOX, device=device)
    leaves = (observation, action, observation.under("next"), *(leaf.under("next") for leaf in spec.rewards))
    tensors = {leaf.key: torch.zeros(2, 4, *leaf.shape) for leaf in leaves}
    tensors[TRAJ_IDS] = torch.tensor([[2, 2, 2, 2], [3, 7, 7, 11]])
    for key, row, step, element, value in places:
        tensors[key][row, step, element] = value
    checked = FiniteCheck(spec, (), [Slot(tensors)], 5, 2, 4)
    if message is None:
        checked(0, 3)
    else:
        with pytest.raises(DataError) as raised:
            checked(0, 3)
        assert str(raised.value).startswith(message)
        assert str(raised.value).endswith("collector.check_finite=false.")


@pytest.fixture
def steps():
    """Sets the step of the current batch."""
    yield lambda step: progress.counts.__setitem__(STEPS, step)
    progress.counts[STEPS] = 0


def test_an_error_of_the_env_is_explained_by_an_action_that_is_not_finite(steps):
    checked, arrays = check(OBSERVATION)
    steps(2)
    checked.explain(0, ValueError("mine"))
    arrays[ACTION][0, 1:] = [[np.inf], [np.nan]]
    with pytest.raises(
        DataError, match=r"the policy of worker 0 returned inf in action, and then the env raised .*mine"
    ):
        checked.explain(0, ValueError("mine"))


@pytest.mark.parametrize(("ragged", "step"), [(False, 0), (True, 2)])
def test_an_action_of_an_earlier_batch_explains_no_error(ragged, step, steps):
    """The consumer may have changed the action, and a ragged group writes the slot when its batch ends."""
    checked, arrays = check(OBSERVATION, ragged=ragged)
    arrays[ACTION][0, 1:] = np.nan
    steps(step)
    checked.explain(0, ValueError("mine"))
