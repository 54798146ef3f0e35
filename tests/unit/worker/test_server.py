"""For which requests the inference server acts next, without processes."""

import random

import pytest

from collectx.transport.inference_channel import NO_STEP, ActionRequest
from collectx.worker.inference.server import FixedOrder, ReadyOrder


def request(worker, step, group=0, incarnation=0):
    return ActionRequest(0, incarnation, step, worker, group, 0)


def taken(order):
    return [(each.worker, each.group, each.step) for each in order.take()]


def members(num_workers, num_groups):
    return [(worker, group) for worker in range(num_workers) for group in range(num_groups)]


def calls(num_workers, num_groups, seed, batches=3, steps=4):
    """Returns the calls of the policy where the members step at random speeds: each posts the next step when it was
    acted for, and the next batch at once."""
    draw, order, found = random.Random(seed), FixedOrder(members(num_workers, num_groups)), []
    script = [*range(steps), NO_STEP] * batches
    scripts = {member: iter(script) for member in members(num_workers, num_groups)}
    able = set(scripts)
    while able:
        member = draw.choice(sorted(able))
        step = next(scripts[member], None)
        if step is None:
            able.discard(member)
            continue
        order.add(request(member[0], step, member[1]))
        if step != NO_STEP:
            able.discard(member)
        while call := order.take():
            found.append([(each.worker, each.group, each.step) for each in call])
            able |= {(each.worker, each.group) for each in call}
    return found


@pytest.mark.parametrize(("num_workers", "num_groups"), [(1, 1), (1, 2), (2, 1), (3, 1), (3, 2)])
def test_the_fixed_order_does_not_depend_on_time(num_workers, num_groups):
    expected = calls(num_workers, num_groups, 0)
    assert sum(map(len, expected)) == num_workers * num_groups * 3 * 4
    assert all(call == sorted(call) and len({step for *_, step in call}) == 1 for call in expected)
    assert all(calls(num_workers, num_groups, seed) == expected for seed in range(1, 20))


def test_halves_take_turns():
    assert calls(2, 2, 0, batches=1, steps=1) == [[(0, 0, 0), (1, 0, 0)], [(0, 1, 0), (1, 1, 0)]]
    assert calls(3, 1, 0, batches=1, steps=1) == [[(0, 0, 0), (2, 0, 0)], [(1, 0, 0)]]


def test_a_replaced_worker_takes_its_place_in_the_fixed_order():
    order = FixedOrder(members(2, 2))
    order.add(request(0, 5))
    order.add(request(1, 5))
    assert taken(order) == [(0, 0, 5), (1, 0, 5)]
    order.add(request(1, 5, group=1))
    order.add(request(1, 0, group=1, incarnation=1))  # the process before is gone
    order.add(request(0, 5, group=1))
    assert taken(order) == [(0, 1, 5), (1, 1, 0)]


def test_the_fixed_order_goes_on_without_a_dropped_worker():
    order = FixedOrder(members(3, 1))
    order.add(request(0, 0))
    assert taken(order) == []
    order.drop(2)
    assert taken(order) == [(0, 0, 0)]


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_those_that_are_ready_are_acted_for_as_they_came():
    order = ReadyOrder([2, 1], min_batch=1, timeout_s=1.0, max_batch=4, clock=Clock())
    assert order.wait_s() is None
    assert taken(order) == []
    for worker, group in [(3, 1), (0, 0), (1, 0), (2, 1)]:
        order.add(request(worker, 0, group))
    assert taken(order) == [(3, 1, 0), (0, 0, 0)]  # five envs would be too many
    order.drop(1)
    order.add(request(2, NO_STEP, group=1))
    assert taken(order) == []


def test_a_call_waits_for_enough_envs_or_for_the_timeout():
    clock = Clock()
    order = ReadyOrder([1], min_batch=2, timeout_s=1.0, max_batch=None, clock=clock)
    order.add(request(0, 0))
    assert taken(order) == []
    assert order.wait_s() == 1.0
    order.add(request(1, 0))
    assert taken(order) == [(0, 0, 0), (1, 0, 0)]
    order.add(request(0, 1))
    clock.now_s = 1.5
    assert order.wait_s() == 0.0
    assert taken(order) == [(0, 0, 1)]


def test_a_group_is_not_split():
    order = ReadyOrder([8], min_batch=1, timeout_s=0.0, max_batch=2, clock=Clock())
    order.add(request(0, 0))
    order.add(request(1, 0))
    assert taken(order) == [(0, 0, 0)]
    assert taken(order) == [(1, 0, 0)]
