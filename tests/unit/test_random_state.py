"""Global generators: seeded, saved, held and watched. Whether workers use them rightly: tests/library."""

import contextlib
import random

import numpy as np
import pytest
import torch

from collectx import random_state
from collectx.random_state import (
    GENERATORS,
    HeldGenerators,
    SeedWatch,
    load_generators,
    preserve_random_state,
    save_generators,
    seed_generators,
    single_threaded,
)


@pytest.fixture(autouse=True)
def unchanged():
    """Tests after these find the generators as they were."""
    with preserve_random_state():
        seed_generators(1)
        yield


def drawn():
    return {
        "torch": torch.randint(1000, (2,)).tolist(),
        "numpy": np.random.randint(1000, size=2).tolist(),
        "python": [random.randrange(1000) for _ in range(2)],
    }


def differing(one, other):
    return [name for name in GENERATORS if one[name] != other[name]]


@pytest.mark.parametrize("names", [(), ("torch",), ("numpy",), ("python",), ("python", "torch"), GENERATORS])
def test_only_the_named_generators_are_seeded_saved_and_held(names):
    wanted = sorted(set(GENERATORS) - {*names})
    first = drawn()
    seed_generators(1, names)
    assert sorted(differing(first, drawn())) == wanted
    saved = save_generators(names)
    assert [*saved] == [*names]
    one = drawn()
    load_generators(saved)
    assert sorted(differing(one, drawn())) == wanted
    seed_generators(2)
    held = HeldGenerators(names)
    assert held.names == [*names]
    seed_generators(3)
    drawn()
    held.swap()
    one = drawn()
    seed_generators(2)
    assert sorted(differing(one, drawn())) == wanted


def test_generators_in_use_and_held_ones_go_on_separately():
    seed_generators(3)
    alone = [drawn() for _ in range(4)]
    seed_generators(3)
    held = HeldGenerators(["torch"])
    held.add(["numpy", "python"])
    seed_generators(3)
    mixed, others = [], []
    for _ in range(4):
        mixed.append(drawn())
        with held.in_use():
            others.append(drawn())
    assert mixed == others == alone


def test_the_second_number_of_a_pair_of_normal_ones_is_held_too():
    seed_generators(4)
    alone = [np.random.standard_normal() for _ in range(4)]
    seed_generators(4)
    np.random.standard_normal()
    held = HeldGenerators(["numpy"])
    seed_generators(4)
    assert np.random.standard_normal() == alone[0]
    held.swap()
    assert [np.random.standard_normal() for _ in range(3)] == alone[1:]
    held.swap()
    assert [np.random.standard_normal() for _ in range(3)] == alone[1:]


def test_a_bit_generator_of_another_kind_is_held_too():
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(5))
        held = HeldGenerators(["numpy"])
        seed_generators(5)
        held.swap()
        assert isinstance(np.random.get_bit_generator(), np.random.PCG64)
    finally:
        np.random.set_bit_generator(before)


def seed_all():
    torch.manual_seed(9)
    np.random.seed(9)
    random.seed(9)


@pytest.mark.parametrize(
    ("code", "seeded", "is_pythons"),
    [
        (lambda: None, [], False),
        (drawn, [], False),
        (lambda: torch.manual_seed(1), [], False),  # the seed that it has
        (lambda: torch.manual_seed(2), ["torch"], False),
        (lambda: np.random.seed(1), ["numpy"], False),
        (lambda: random.seed(1), [], False),  # as the fixture does: nothing has been drawn since
        (lambda: random.seed(2), [], True),
        (seed_all, ["torch", "numpy"], True),
        (lambda: random.getrandbits(32 * 624 * 19), [], False),
        (lambda: random.getrandbits(32 * 624 * 21), [], True),  # too many to tell
    ],
)
def test_seeding_is_noticed_and_drawing_is_not(code, seeded, is_pythons):
    watch = SeedWatch()
    code()
    assert watch.seeded() == seeded
    assert watch.python_seeded() == ["python"] * is_pythons
    watch.renew()
    assert (watch.seeded(), watch.python_seeded()) == ([], [])


def test_a_block_leaves_no_trace_in_generators_even_if_it_fails():
    wanted = drawn()
    seed_generators(1)
    with contextlib.suppress(ZeroDivisionError), preserve_random_state():
        drawn()
        seed_all()
        1 / 0  # noqa: B018
    assert drawn() == wanted


@pytest.mark.parametrize(("before", "within_block", "after"), [(1, 1, 1), (1, 3, 3), (3, 1, 3), (3, 2, 2)])
def test_torch_computes_with_one_thread_in_a_block(monkeypatch, before, within_block, after):
    number = [before]
    monkeypatch.setattr(random_state.torch, "get_num_threads", lambda: number[0])
    monkeypatch.setattr(random_state.torch, "set_num_threads", lambda count: number.__setitem__(0, count))
    with single_threaded():
        assert number == [1]
        if within_block != 1:
            number[0] = within_block
    assert number == [after]
