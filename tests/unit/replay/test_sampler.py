"""Priorities: who is drawn how often, what the weights are, and what happens to them as frames come and go."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from user_code.countedframes import Stream

from collectx import ReplayBuffer
from collectx.replay import PrioritizedSampler
from collectx.replay.sampler import SumTree


def filled(capacity, count, **settings):
    buffer = ReplayBuffer(capacity, sampler=PrioritizedSampler(seed=0, **settings))
    buffer.extend(Stream(1).take(count))
    return buffer


def check_priorities(buffer, expected: dict[int, float]) -> None:
    """Asserts the priorities of all frames that are there, by number, up to a common factor."""
    buffer.sampler.beta = 1.0
    sample = buffer.sample(1000)
    drawn = dict(zip(sample["index"].tolist(), sample["priority_weight"].tolist(), strict=True))
    # A frame that has at least two strata of the mass has one of them alone.
    assert {n for n, each in expected.items() if each > 0.002 * sum(expected.values())} <= drawn.keys()
    lowest = min(expected[n] for n in drawn)
    assert drawn == pytest.approx({n: lowest / expected[n] for n in drawn}, rel=1e-5)


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


def test_wrong_priorities():
    buffer = filled(4, 4)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite and not negative"):
            buffer.update_priority(torch.tensor([0]), torch.tensor([wrong]))
    with pytest.raises(ValueError, match="got 1 priority for 2 frames"):
        buffer.update_priority(torch.tensor([0, 1]), torch.tensor([1.0]))
    check_priorities(buffer, dict.fromkeys(range(4), 1.0))


@settings(max_examples=40)
@given(
    capacity=st.integers(1, 600),  # the sum tree has up to three levels
    steps=st.lists(
        st.one_of(st.integers(1, 700), st.lists(st.tuples(st.integers(-3, 800), st.floats(0, 10)))), max_size=8
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
            check_priorities(buffer, model)


def test_frames_of_an_interrupted_write_count_as_new(monkeypatch):
    buffer = filled(8, 8, alpha=1.0)
    buffer.update_priority(torch.arange(8), torch.arange(1.0, 9.0))

    def interrupted(first, count):
        raise KeyboardInterrupt

    monkeypatch.setattr(buffer.sampler, "written", interrupted)
    with pytest.raises(KeyboardInterrupt):
        buffer.extend(Stream(1).take(4))
    check_priorities(buffer, {n: 8.0 if n > 7 else n + 1.0 for n in range(4, 12)})


def sum_tree(size):
    return SumTree(size, np.zeros(SumTree.nbytes(size), np.uint8))


@pytest.mark.parametrize("size", [1, 17, 8_192, 8_193, 200_000])
def test_a_search_finds_what_one_over_all_weights_finds(size):
    random, tree = np.random.default_rng(0), sum_tree(size)
    weights = np.where(random.random(size) < 0.3, 0, random.integers(1, 100, size)).astype(float)
    weights[-1] = 1.0
    tree.weights[:] = weights
    tree.rebuild()
    for _ in range(5):
        index = random.integers(0, size, 300)
        weights[index] = index % 7
        tree.set(index, weights[index])
        tree.fill(size // 3, size // 2, 5.0)
        weights[size // 3 : size // 2] = 5.0
        assert tree.total == weights.sum()
        if not weights.any():
            continue
        mass = random.random(256) * weights.sum()
        assert tree.find(mass).tolist() == weights.cumsum().searchsorted(mass, "right").tolist()
