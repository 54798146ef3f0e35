"""Priorities: who is drawn how often, what the weights are, and what happens to them as frames come and go."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from worlds.countedframes import Stream

from collectx import ReplayBuffer
from collectx.replay import PrioritizedSampler


def filled(capacity, count, **settings):
    buffer = ReplayBuffer(capacity, sampler=PrioritizedSampler(seed=0, **settings))
    buffer.extend(Stream(1).take(count))
    return buffer


def weights(buffer) -> dict[int, float]:
    """The weight of each frame that is there, by its number."""
    first, end = buffer._ring.first, buffer._ring.end
    tree = buffer.sampler._tree
    assert np.count_nonzero(tree.weights) == end - first
    assert tree.total == pytest.approx(tree.weights.sum())
    return {n: float(tree.weights[n % buffer.capacity]) for n in range(first, end)}


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_drawn_in_proportion(alpha):
    buffer = filled(8, 8, alpha=alpha, beta=0.7)
    priority = torch.arange(1.0, 9.0)
    buffer.update_priority(torch.arange(8), priority)
    sample = buffer.sample(40_000)
    probability = (priority + 1e-6) ** alpha
    probability /= probability.sum()
    counts = sample["index"].bincount(minlength=8)
    torch.testing.assert_close(counts / 40_000, probability, atol=0.001, rtol=0)
    expected = (8 * probability[sample["index"]]) ** -0.7
    torch.testing.assert_close(sample["priority_weight"], expected / expected.max())
    assert sample["priority_weight"].dtype == torch.float32


def test_new_frames_have_the_largest_priority_so_far():
    buffer = filled(10, 4, alpha=1.0)
    assert weights(buffer) == dict.fromkeys(range(4), 1.0)
    buffer.update_priority(torch.tensor([1]), torch.tensor([5.0]))
    buffer.update_priority(torch.tensor([1]), torch.tensor([0.5]))
    buffer.extend(Stream(1).take(2))
    assert weights(buffer) == pytest.approx({0: 1, 1: 0.5, 2: 1, 3: 1, 4: 5, 5: 5}, abs=1e-5)


def test_priorities_of_overwritten_frames_are_left_out():
    buffer = filled(4, 6, alpha=1.0)
    buffer.update_priority(torch.tensor([1, 2, 6, -1]), torch.tensor([9.0, 3.0, 9.0, 9.0]))
    assert weights(buffer) == pytest.approx({2: 3, 3: 1, 4: 1, 5: 1}, abs=1e-5)


def test_wrong_priorities():
    buffer = filled(4, 4)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite and not negative"):
            buffer.update_priority(torch.tensor([0]), torch.tensor([wrong]))
    with pytest.raises(ValueError, match="2 frames and 1 priorities"):
        buffer.update_priority(torch.tensor([0, 1]), torch.tensor([1.0]))
    assert set(weights(buffer).values()) == {1.0}


@given(
    capacity=st.integers(1, 50),
    steps=st.lists(
        st.one_of(st.integers(1, 60), st.lists(st.tuples(st.integers(-3, 80), st.floats(0, 10)))), max_size=8
    ),
)
def test_against_a_plain_dict(capacity, steps):
    buffer = ReplayBuffer(capacity, sampler=PrioritizedSampler(alpha=1.0, eps=1e-6, seed=0))
    stream, model, largest = Stream(1, size=4), {}, 1.0
    known = 0.0
    for step in steps:
        if isinstance(step, int):
            for number in buffer.extend(stream.take(step)).tolist():
                model[number] = known or largest
                model.pop(number - capacity, None)
        elif buffer.write_count:
            there = {n: p + 1e-6 for n, p in step if n in model}
            buffer.update_priority(torch.tensor([n for n, _ in step]), torch.tensor([p for _, p in step]))
            model |= there
            known = max([known, *[p + 1e-6 for n, p in step if n in model]])
        if model:
            assert weights(buffer) == pytest.approx(model, rel=1e-5)
            assert set(buffer.sample(30)["index"].tolist()) <= set(model)
