"""The global random generators of a worker: what the policy draws does not depend on what the envs seed."""

import random

import numpy as np
import pytest
import torch

from collectx.random_state import preserve_random_state, seed_generators
from collectx.worker.requests import ProcessGenerators
from collectx.worker.spec import Placement, policy_seed

PLACE = Placement(1, 1, 2, 3)
DRAWS = {
    "torch": lambda: torch.randint(2**40, ()).item(),
    "numpy": lambda: int(np.random.randint(2**40)),
    "python": lambda: random.randrange(2**40),
}


@pytest.fixture(autouse=True)
def restored():
    with preserve_random_state():
        yield


def drawn(*names):
    return [DRAWS[name]() for name in names or DRAWS]


def of_seed(seed, *names, skip=0):
    """Returns the numbers drawn after seeding, without the first `skip` draws of each generator."""
    with preserve_random_state():
        seed_generators(seed)
        for _ in range(skip):
            drawn()
        return drawn(*names)


class Rollout:
    held = None

    def hold(self, held):
        assert self.held is None
        self.held = held

    def drawn(self, *names):
        """Returns what the envs draw."""
        with self.held.in_use():
            return drawn(*names)


def test_envs_that_seed_generators_get_them_for_themselves():
    rollout, generators = Rollout(), ProcessGenerators(5, PLACE)
    shared, apart = policy_seed(5, PLACE), policy_seed(5, PLACE, True)
    assert drawn() == of_seed(shared)
    generators.after_reset(rollout)
    generators.after_batch(rollout)
    assert rollout.held is None
    assert drawn() == of_seed(shared, skip=1)
    # In a reset, an env seeds torch; in a batch another one NumPy, and Python's, which only a reset notices.
    torch.manual_seed(99)
    generators.after_reset(rollout)
    assert rollout.held.names == ["torch"]
    assert rollout.drawn("torch") == of_seed(99, "torch")
    assert drawn() == [*of_seed(apart, "torch"), *of_seed(shared, "numpy", "python", skip=2)]
    np.random.seed(98)
    random.seed(97)
    generators.after_batch(rollout)
    assert rollout.held.names == ["torch", "numpy"]
    assert rollout.drawn("torch", "numpy") == [*of_seed(99, "torch", skip=1), *of_seed(98, "numpy")]
    assert drawn() == [*of_seed(apart, "torch", skip=1), *of_seed(apart, "numpy"), *of_seed(97, "python")]
    random.seed(95)
    torch.manual_seed(96)
    generators.after_reset(rollout)
    assert sorted(rollout.held.names) == ["numpy", "python", "torch"]
    # torch's were the envs' already, and are so still.
    assert rollout.drawn("python") == of_seed(95, "python")
    assert drawn() == [*of_seed(apart, "torch"), *of_seed(apart, "numpy", skip=1), *of_seed(apart, "python")]
    generators.after_reset(rollout)
    assert drawn("torch", "python") == of_seed(apart, "torch", "python", skip=1)


def test_a_seed_of_the_trainer_is_no_envs_and_reaches_both():
    rollout, generators = Rollout(), ProcessGenerators(5, PLACE)
    torch.manual_seed(3)
    generators.trust()  # as a hook of the user has seeded it
    generators.after_reset(rollout)
    assert rollout.held is None
    generators.reseed(6)
    assert drawn() == of_seed(policy_seed(6, PLACE))
    generators.after_batch(rollout)
    assert rollout.held is None
    np.random.seed(98)
    generators.after_batch(rollout)
    generators.reseed(7)
    assert rollout.drawn("numpy") == of_seed(policy_seed(7, PLACE), "numpy")
    shared, apart = policy_seed(7, PLACE), policy_seed(7, PLACE, True)
    assert drawn() == [*of_seed(shared, "torch"), *of_seed(apart, "numpy"), *of_seed(shared, "python")]
    generators.after_reset(rollout)
    assert rollout.held.names == ["numpy"]


@pytest.mark.parametrize("has_envs", [False, True])
def test_a_state_continues_both(has_envs):
    rollout, generators = Rollout(), ProcessGenerators(5, PLACE)
    if has_envs:
        np.random.seed(98)
        generators.after_batch(rollout)
    drawn()
    state = generators.state()
    assert (state["seed"], [*state.get("envs", ())]) == (5, ["numpy"] if has_envs else [])
    following = drawn(), rollout.drawn("numpy") if has_envs else None
    again, other = Rollout(), ProcessGenerators(1, PLACE)
    other.load(state, again)
    assert drawn() == following[0]
    assert (again.held is not None) is has_envs
    if has_envs:
        assert again.drawn("numpy") == following[1]
    other.after_reset(again)
    assert (again.held is not None) is has_envs
    random.seed(1)
    other.after_reset(again)
    assert drawn("python") == of_seed(policy_seed(5, PLACE, True), "python")
