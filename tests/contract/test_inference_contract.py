"""`inference=server`: the batches are those of `inference=local` where the policy does not sample, and do not depend on
time in the fixed order; workers and the server may be killed or hang."""

import os
import random
import signal

import pytest
import torch
from configurations import Log, config, counting, custom, digest_of, faulty, gym, mlp, start, through_a_file
from user_code.cartpoles import cartpole

from collectx import AsyncBatchedCollector
from collectx import env as envs
from collectx import policy as policies
from collectx.collector import start_collector
from collectx.collector.worker_record import WorkerState
from collectx.errors import WorkerDied, WorkerTimeout
from collectx.rules import problems

_SHAPE = {"frames_per_batch": 64, "total_frames": 512, "seed": 3}
_MODE = {"exploration_type": "mode"}


def learn(collector, env, draw=None):
    """Publishes other weights after every batch; returns the digests of the batches."""
    policy, digests = policies.build(mlp(), envs.read_spec(env, False), 3), []
    for batch in collector:
        digests.append(digest_of(batch))
        if draw is not None:
            torch.rand(draw.choice([1, 10_000, 200_000])).sort()  # takes nothing, a millisecond, or many
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(0.01 * collector.num_batches)
        collector.publish(policy)
    return digests


def run(env, inference, draw=None, **knobs):
    with start("multi_sync", "local", env, mlp(), inference=inference, **_SHAPE | knobs) as collector:
        return learn(collector, env, draw)


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_envs", [1, 2, 3])
def test_batches_are_the_same_where_the_policy_does_not_sample(num_envs):
    knobs = {**_MODE, "frames_per_batch": 32 * num_envs, "max_frames_per_traj": 9}
    expected = run(gym(num_envs), None, **knobs)
    for order in ("fixed", "ready"):
        assert run(gym(num_envs), {"order": order}, random.Random(order), **knobs) == expected
    assert len(set(expected)) == len(expected)


@pytest.mark.ci
@pytest.mark.parametrize("knobs", [{}, {"overlap": 1}, {"init_random_frames": 128}], ids=["plain", "overlap", "random"])
def test_samples_in_the_fixed_order_do_not_depend_on_time(knobs):
    one, other = (
        run(gym(2), {}, random.Random(seed), num_workers=3, **knobs | {"frames_per_batch": 48}) for seed in (1, 2)
    )
    assert one == other


def test_a_killed_worker_is_replaced_with_the_same_batches():
    knobs = {"on_worker_failure": "restart", "max_restarts": 20, "inference": {}}
    one, other = (run(faulty("killed", at_step=75, num_envs=2), draw=random.Random(seed), **knobs) for seed in (1, 2))
    assert one == other


@pytest.mark.parametrize("kind", ["multi_sync", "multi_async"])
def test_the_others_go_on_without_a_dropped_worker(kind):
    log = Log()
    env = faulty("killed", at_step=40, num_envs=2)
    knobs = {"on_worker_failure": "drop", "num_workers": 3, "frames_per_batch": 48, "total_frames": 960}
    with (
        start(kind, "local", env, mlp(), inference={}, events=log, **knobs) as collector,
        pytest.raises(WorkerDied, match="killed by signal 9"),  # all of them, in the end
    ):
        list(collector)
    assert {event["worker"] for event in log.of("worker_dropped")} == {0, 1, 2} - {*collector.worker_indices}
    assert len(collector.worker_indices) == 1


@pytest.mark.parametrize("kind", ["multi_sync", "multi_async"])
def test_a_killed_server_ends_the_run(kind):
    with start(kind, "local", gym(2), mlp(), inference={}, total_frames=-1, frames_per_batch=64) as collector:
        next(collector)
        server = collector.pool.server
        os.kill(server.handle.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match=f"^inference server .*pid {server.handle.pid}.* killed by signal 9"):
            for _ in collector:
                pass
        with pytest.raises(WorkerDied, match=r"^inference server"):
            next(collector)


def test_an_error_of_the_policy_keeps_its_type_and_traceback():
    policy = custom("user_code.faulty:FailingPolicy", fault="raises", env=1)
    with (
        start("multi_sync", "local", counting(2), policy, inference={}, total_frames=-1) as collector,
        pytest.raises(Exception, match="left") as raised,
    ):
        list(collector)
    assert type(raised.value).__name__ == "BrokenLever"
    assert any("inference server" in note and "pull_the_lever" in note for note in raised.value.__notes__)


@pytest.mark.ci
@pytest.mark.parametrize("hangs", ["worker", "server"])
def test_the_process_that_hangs_is_named(hangs):
    """Here worker 1; worker 0 waits for actions, as the server acts for both, and its timeout ends at the same time."""
    limits = {"worker_timeout_s": 2.0, "close_timeout_s": 0.5, "total_frames": -1, "frames_per_batch": 8}
    with start("multi_sync", "local", counting(2), mlp(), inference={}, **limits) as collector:
        next(collector)
        os.kill(collector.pool.records[1 if hangs == "worker" else 2].handle.pid, signal.SIGSTOP)
        name = "worker 1" if hangs == "worker" else "inference server"
        with pytest.raises(WorkerTimeout, match=f"^{name} .*collector.worker_timeout_s=2"):
            for _ in collector:
                pass


@pytest.mark.nightly
def test_a_server_that_does_not_answer_is_named():
    limits = {
        "start_timeout_s": 15.0,
        "worker_timeout_s": 2.0,
        "close_timeout_s": 0.5,
        "total_frames": -1,
        "frames_per_batch": 8,
    }
    with start("multi_sync", "local", counting(2), mlp(), inference={}, **limits) as collector:
        next(collector)
        collector.wait_until_filled()
        os.kill(collector.pool.server.handle.pid, signal.SIGSTOP)
        with pytest.raises(WorkerTimeout, match=r"^inference server "):
            collector.state()


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_resumed_collector_continues_the_batches(num_envs):
    cfg = config("multi_sync", "local", gym(num_envs), mlp(), inference={}, **_SHAPE)
    spec = envs.read_spec(cfg.env, False)
    policy = policies.build(cfg.policy, spec, cfg.seed)
    with start_collector(cfg, policy, spec) as uncut:
        digests = [digest_of(batch) for batch in uncut]
    with start_collector(cfg, policy, spec) as first:
        before = [digest_of(next(first)) for _ in range(3)]
        state = through_a_file(first.state())
    with start_collector(cfg, policy, spec, resume=state) as second:
        assert second.load(state, cfg.seed) == {}
        assert before + [digest_of(batch) for batch in second] == digests


def test_the_server_is_no_worker():
    with start("multi_async", "local", gym(2), mlp(), inference={}) as collector:
        collector.wait_until_ready()
        assert collector.worker_indices == [0, 1]
        assert collector.pool.ready_of_started is None
        assert [each.state for each in collector.pool.records].count(WorkerState.SERVING) == 1
        assert set(collector.state()["workers"]) == {0, 1, 2}
        list(collector)
    assert collector.frames_by_worker.keys() <= {0, 1}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "how", [{}, {"min_batch_size": 3, "server_timeout": 0.001}, {"max_batch_size": 1}, {"num_envs": 2}]
)
def test_the_python_class_collects_and_publishes(how):
    with AsyncBatchedCollector(
        [cartpole] * 3, lambda observation: observation[..., 0] > 0, frames_per_batch=20, total_frames=200, **how
    ) as collector:
        batches = list(collector)
    assert all((batch["action"] == (batch["observation"][..., 0] > 0)).all() for batch in batches)
    assert sum(batch.numel() for batch in batches) == 200


def test_a_loaded_collector_of_the_python_class_draws_the_same_actions():
    def collector():
        policy = lambda observation: torch.rand(observation.shape[:-1]) > 0.5  # noqa: E731
        return AsyncBatchedCollector([cartpole], policy, frames_per_batch=16, total_frames=-1, seed=0)

    def actions(batches, count):
        return [next(batches)["action"].tolist() for _ in range(count)]

    with collector() as saved:
        batches = iter(saved)
        next(batches)
        state = saved.state_dict()
        expected = actions(batches, 6)
    with collector() as loaded:
        loaded.load_state_dict(state)
        assert actions(iter(loaded), 6) == expected


@pytest.mark.parametrize(
    ("kind", "place", "words", "knobs"),
    [
        ("distributed", "local", "backend=gloo, workers share no memory", {}),
        ("single", "inline", "trainer's process", {"num_workers": 1}),
        ("multi_sync", "local", "preemptive_threshold", {"preemptive_threshold": 0.5}),
        ("multi_sync", "local", "min_workers", {"min_workers": 1, "on_worker_failure": "drop"}),
        ("multi_async", "local", "inference.order=fixed fixed order", {"inference": {"order": "fixed"}}),
        ("multi_sync", "local", "two versions", {"overlap": 1, "inference": {"order": "ready"}}),
        ("multi_sync", "local", "inference.max_batch=1 min_batch=2", {"inference": {"max_batch": 1, "min_batch": 2}}),
        ("multi_sync", "local", "num_workers=300 200", {"num_workers": 300, "frames_per_batch": 300}),
    ],
)
def test_what_the_server_cannot_do_is_refused(kind, place, words, knobs):
    found = " ".join(str(each) for each in problems(config(kind, place, gym(), mlp(), **{"inference": {}} | knobs)))
    assert [word for word in words.split() if word not in found] == []
