"""The sum tree against sums of a plain array."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectx.replay.tree import SumTree


def make(size):
    return SumTree(size, np.zeros(SumTree.nbytes(size), np.uint8))


@given(
    size=st.integers(1, 700),
    steps=st.lists(
        st.one_of(
            st.tuples(st.integers(0, 699), st.integers(0, 699), st.sampled_from([0.0, 1.0, 0.25])),
            st.lists(st.tuples(st.integers(0, 699), st.floats(0, 1e6)), max_size=5),
        ),
        max_size=8,
    ),
    seed=st.integers(0, 100),
)
def test_sums_and_searches(size, steps, seed):
    tree, model = make(size), np.zeros(size)
    for step in steps:
        if isinstance(step, tuple):
            start, stop = sorted((step[0] % size, step[1] % size))
            tree.fill(start, stop, step[2])
            model[start:stop] = step[2]
        elif step:
            index = np.array([place % size for place, _ in step])
            weights = np.array([weight for _, weight in step])
            tree.set(index, weights)
            model[index] = weights
    assert np.array_equal(tree.weights, model)
    assert tree.total == pytest.approx(model.sum())
    if model.any():
        mass = np.random.default_rng(seed).random(50) * tree.total
        found = tree.find(mass)
        assert (model[found] > 0).all()
        ends = model.cumsum()
        slack = 1e-9 * tree.total
        assert (mass <= ends[found] + slack).all()
        assert (mass >= ends[found] - model[found] - slack).all()


def test_the_ends_of_the_mass():
    tree = make(100)
    tree.set(np.array([3, 96]), np.array([2.0, 5.0]))
    edges = np.array([0.0, np.nextafter(2.0, 0), 2.0, np.nextafter(7.0, 0), 7.0])
    assert tree.find(edges).tolist() == [3, 3, 96, 96, 96]
