"""What every collector promises, over the ways, with the counting env: nothing is lost, repeated, reordered or torn,
whoever carries it and however the user takes it."""

import os
import resource
import signal
import time
from dataclasses import replace
from multiprocessing import util

import psutil
import pytest
import torch
import ways
from configurations import batches, config, counting, custom, digest_of, gym, gym_vector, mlp, start, worker_pids
from user_code import faulty
from user_code.streams import StreamChecker
from ways import case, over

from collectx import env as envs
from collectx import policy as policies
from collectx.collector import RecordedBatch, start_collector
from collectx.errors import ConfigError
from collectx.worker.spec import INCARNATIONS_PER_WORKER

# What does not depend on how bytes travel between hosts is shown without RPC and Ray, whose workers start slowly.
HERE = (*ways.INLINE, *ways.SHARED, *ways.GLOO)
WITHOUT_CHANCE = (ways.SINGLE, *ways.SYNC)

# In batches of five frames of each env: trajectories of three and of two frames.
CUT = {"max_frames_per_traj": 3, "reset_at_each_iter": True, "set_truncated": True}
# 257 random frames are 65 of each of four processes, more than two of their parts of 32.
ENDS = CUT | {"max_frames_per_traj": 9, "init_random_frames": 257}

# Workers that are collectors of two processes each, by `collector.inner`.
RELAY_SYNC, RELAY_ASYNC, RELAY_MIXED = (
    replace(way, name=f"relay_{name}", tier=tier, smoke=tier)
    for way, name, tier in (
        (ways.GLOO_SYNC, "sync", "nightly"),
        (ways.GLOO_ASYNC, "async", "nightly"),
        (ways.GLOO_ASYNC, "mixed", "ci"),
    )
)
RELAYS = {RELAY_SYNC: "sync", RELAY_ASYNC: "async", RELAY_MIXED: "sync"}


def collect(way, env=None, policy=None, **knobs):
    shape = {"frames_per_batch": 30, "total_frames": 300}
    if way in RELAYS:
        shape |= {"num_workers_per_collector": 2, "inner": RELAYS[way]}
    return start(way.kind, way.place, env or counting(3), policy, **shape | knobs)


@over([ways.GLOO_SYNC], smoke=True)
def test_added_workers_have_the_next_indices_and_trajectories_of_their_own(way):
    with collect(way, counting(1), frames_per_batch=10, total_frames=-1) as collector:
        next(collector)
        collector.add()
        collector.add()
        batch = next(collector)
        assert [part.worker for part in collector.last_batch_info.parts] == [0, 1, 2, 3]
    # They have the envs of the first two, after all incarnations that these may have.
    first_id = INCARNATIONS_PER_WORKER * 2**32 * way.num_workers
    assert batch["collector", "traj_ids"][2:, 0, 0].tolist() == [first_id, first_id + 1]


@pytest.mark.parametrize(
    ("way", "num_envs", "zero_copy", "is_cut"),
    [
        *(case(way, 3, False, False, tier=way.smoke) for way in (*ways.WAYS, *RELAYS) if way is not ways.RAY_SYNC),
        case(ways.RAY_SYNC, 3, False, False, tier="ci"),
        *(case(way, 1, True, False) for way in (ways.SINGLE, ways.SHARED_SYNC, ways.GLOO_ASYNC)),
        *(case(way, 3, False, True) for way in (ways.SINGLE, ways.SHARED_ASYNC, ways.GLOO_ASYNC)),
    ],
)
def test_every_frame_arrives_once_in_order_and_complete(way, num_envs, zero_copy, is_cut):
    checker = StreamChecker()
    envs_of_worker = num_envs * (2 if way in RELAYS else 1)
    rows = envs_of_worker if RELAYS.get(way) != "async" else num_envs
    frames = 5 * rows * (way.num_workers if way.is_sync else 1)
    num_batches = 40 if way.place != "ray" else 10
    shape = {"frames_per_batch": frames, "total_frames": num_batches * frames} | (CUT if is_cut else {})
    with collect(way, counting(num_envs), zero_copy=zero_copy, **shape) as collector:
        for index, batch in enumerate(collector):
            checker.take(batch)
            assert torch.equal(batch["next", "reward"], batch["next", "observation"][..., 2:3].float())
            env, episode = batch["observation"][..., 0], batch["observation"][..., 1]
            assert torch.equal(batch["collector", "traj_ids"], env + episode * envs_of_worker * way.num_workers)
            delivery = collector.last_batch_info
            assert (delivery.index, delivery.frames, delivery.version) == (index, frames, 0)
            assert [part.worker for part in delivery.parts] == (
                [0, 1] if way.is_sync else [int(env.flatten()[0]) // envs_of_worker]
            )
            assert sum(part.report.frames for part in delivery.parts) == frames
            ended = batch["next", "observation"][batch["next", "done"][..., 0]][:, 2].tolist()
            lengths = [length for part in delivery.parts for length in part.report.lengths.tolist()]
            assert sorted(lengths) == sorted(ended)
            assert not is_cut or sorted(set(lengths)) == [2, 3]
            returns = [total for part in delivery.parts for total in part.report.returns.tolist()]
            assert returns == [length * (length + 1) / 2 for length in lengths]
            spent = [part.report for part in delivery.parts]
            assert all(min(each.env_s, each.policy_s, each.wait_s, each.send_s) >= 0 for each in spent)
        assert checker.frames == num_batches * frames
        assert next(collector, None) is None
        assert collector.last_batch_info.index == num_batches - 1


@over([*HERE, ways.RAY_ASYNC])
@pytest.mark.parametrize("zero_copy", [False, True])
def test_a_batch_is_the_users_own_memory(way, zero_copy):
    """A zero-copy batch is the user's until the next one is requested. Ray shares only large objects."""
    checker, kept, frames = StreamChecker(), [], 3000 if way is ways.RAY_ASYNC else 30
    with collect(way, zero_copy=zero_copy, frames_per_batch=frames, total_frames=10 * frames) as collector:
        for index, batch in enumerate(collector):
            checker.take(batch)
            assert not any(batch[name].any() for name in ("done", "terminated", "truncated"))
            if index % 2 or zero_copy:
                batch.apply_(lambda tensor: tensor.fill_(1))
            else:
                kept.append((batch, batch.clone()))
    assert checker.frames == 10 * frames
    assert len(kept) == (0 if zero_copy else 5)
    assert all((batch == copy).all() for batch, copy in kept)


@pytest.mark.parametrize(
    ("way", "policy"),
    [*(case(way, None) for way in (ways.SINGLE, ways.SHARED_SYNC)), *(case(way, "mlp") for way in WITHOUT_CHANCE)],
)
def test_the_same_seed_gives_the_same_batches_bit_for_bit(way, policy):
    def run(place, seed):
        shape = {"frames_per_batch": 64, "total_frames": 512, "seed": seed} | (ENDS if policy else {})
        return [digest_of(batch) for batch in batches(way.kind, place, gym(2), policy and mlp(), **shape)]

    first = run("inline", 5)
    # A trainer that draws random numbers of its own must not change the workers'.
    torch.manual_seed(99)
    assert len(first) == 8
    assert run(way.place, 5) == first
    assert not set(run("inline", 6)) & set(first)


def test_the_trainers_random_numbers_are_left_alone_by_inline_workers():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    batches("multi_sync", "inline", gym(2), mlp(), frames_per_batch=64, total_frames=256)
    assert torch.equal(torch.rand(3), expected)


def test_envs_have_seeds_of_their_own_whatever_the_worker():
    (wide,) = batches("single", "inline", gym(4), frames_per_batch=4, total_frames=4)
    (narrow,) = batches("multi_sync", "inline", gym(2), frames_per_batch=4, total_frames=4)
    assert torch.equal(wide["observation"].flatten(0, 1), narrow["observation"].flatten(0, 2))
    assert len(wide["observation"][:, 0].unique(dim=0)) == 4


@pytest.mark.parametrize(
    ("way", "options"), [case(ways.GLOO_SYNC, None), case(ways.GLOO_SYNC, "ends", tier="ci"), case(ways.RAY_SYNC, None)]
)
def test_workers_of_a_worker_act_as_if_they_were_the_runs(way, options):
    """Seeds, trajectory ids and what the policy draws are those of as many plain workers."""
    shape = {"frames_per_batch": 4 * 2 * 16, "total_frames": 4 * 2 * 16 * 5, "seed": 3} | (ENDS if options else {})
    plain = batches("multi_sync", "inline", gym(2), mlp(), num_workers=4, **shape)
    relayed = batches(way.kind, way.place, gym(2), mlp(), num_workers_per_collector=2, **shape)
    assert [tuple(batch.batch_size) for batch in relayed] == [(2, 4, 16)] * 5
    assert [digest_of(batch.reshape(4, 2, 16)) for batch in relayed] == [digest_of(batch) for batch in plain]
    assert [bool((batch["action_log_prob"] == 0).all()) for batch in relayed] == (
        [True, True, True, False, False] if options else [False] * 5
    )


def telling(size):
    """A policy for the workers, and the trainer's, by whose weights frames say who acted."""
    return custom("user_code.faulty:telling_policy", size=size), faulty.telling_policy(size)


def publish(collector, policy, number):
    with torch.no_grad():
        policy.module.number.fill_(number)
    return collector.publish(policy)


@pytest.mark.difference("weights that acted")
@pytest.mark.parametrize(
    "way",
    [
        case(ways.SHARED_ASYNC, tier="test"),
        *(case(way) for way in (*HERE, *ways.RAY, RELAY_SYNC, RELAY_MIXED) if way is not ways.SHARED_ASYNC),
    ],
)
def test_weights_that_are_published_at_any_time_act_from_the_next_sync_batch_on_and_are_never_torn(way):
    theirs, mine = telling(20_000)
    newest, count, deadline = dict.fromkeys(range(way.num_workers), -1), 0, time.monotonic() + 200
    with collect(way, counting(2), theirs, frames_per_batch=40, total_frames=-1) as collector:
        while count < 60 or min(newest.values()) <= 0:
            assert time.monotonic() < deadline
            batch = next(collector)
            version = batch["collector", "policy_version"]
            assert torch.equal(batch["low"], version.float())
            assert torch.equal(batch["high"], version.float())
            for part in collector.last_batch_info.parts:
                assert newest[part.worker] <= part.report.policy_version <= collector.policy_version
                newest[part.worker] = part.report.policy_version
            if way in ways.ASYNC or way is RELAY_MIXED:
                assert version.unique().tolist() == [part.report.policy_version]
            else:
                assert set(newest.values()) == set(version.unique().tolist()) == {collector.policy_version}
            count += 1
            assert publish(collector, mine, count) == count
    with pytest.raises(RuntimeError, match="closed"):
        next(collector)


@pytest.mark.difference("weights that acted")
@pytest.mark.parametrize(
    ("way", "autoreset"),
    [
        case(ways.SHARED_ASYNC, None, tier="test"),
        case(ways.SHARED_ASYNC, "next_step", tier="ci"),
        case(ways.GLOO_ASYNC, None),
    ],
)
def test_weights_taken_between_steps_are_told_frame_by_frame(way, autoreset):
    env = gym_vector(2, autoreset) if autoreset else counting(2, step_s=0.001)
    theirs, mine = telling(20_000)
    shape = {"num_workers": 1, "num_slots": 1, "frames_per_batch": 400, "total_frames": -1}
    most, deadline = 1, time.monotonic() + 200
    with collect(way, env, theirs, refresh="step", **shape) as collector:
        while most < 3:
            assert time.monotonic() < deadline
            batch = next(collector)
            version = batch["collector", "policy_version"]
            assert torch.equal(batch["low"], version.float())
            assert torch.equal(batch["high"], version.float())
            assert (version.diff(dim=-1) >= 0).all()
            if autoreset is None:  # with NEXT_STEP, a batch may begin with a reset, or with frames of an earlier one
                assert collector.last_batch_info.parts[0].report.policy_version == version.min()
            most = len(version.unique())
            until = time.monotonic() + 0.1  # while the worker steps
            while time.monotonic() < until:
                publish(collector, mine, collector.policy_version + 1)


@over([ways.SHARED_ASYNC, ways.GLOO_ASYNC])
@pytest.mark.parametrize("limit", [None, 0, 2])
def test_workers_wait_rather_than_exceed_max_policy_lag(way, limit):
    """The workers would otherwise be as many batches ahead as they have slots."""
    theirs, mine = telling(1000)
    shape, lags, deadline = {"num_slots": 3, "total_frames": -1}, [], time.monotonic() + 200
    with collect(way, counting(), theirs, max_policy_lag=limit, **shape) as collector:
        while len(lags) < 60 or (max(lags) < 3 if limit is None else max(lags) < limit):
            assert time.monotonic() < deadline
            lags.append(collector.policy_version - int(next(collector)["low"].min()))
            publish(collector, mine, collector.policy_version + 1)
    assert limit is None or max(lags) == limit


def test_central_inference_is_refused_where_frames_that_are_acted_for_have_no_place_in_the_batch():
    with pytest.raises(ConfigError, match=r"inference=server cannot be used: .*autoreset_mode disabled or same_step"):
        start("multi_async", "local", gym_vector(2, "next_step"), mlp(), inference={})


def test_max_policy_lag_is_refused_where_batches_have_frames_that_were_collected_earlier():
    with pytest.raises(
        ConfigError, match=r"collector.max_policy_lag=2 cannot be used: .*autoreset_mode disabled or same_step"
    ):
        start("multi_async", "local", gym_vector(2, "next_step"), max_policy_lag=2)


def record(cfg, again=None):
    """Digests and order of a run whose policy learns something from every batch: of as many batches as `again` has, or
    until both workers have delivered some, and some with weights older than the newest."""

    def is_enough():
        counts = [sum(batch.worker == worker for batch in order) for worker in (0, 1)]
        return min(counts) >= 5 and sum(batch.acted < batch.newest for batch in order) >= 3

    spec = envs.read_spec(cfg.env)
    policy = policies.build(cfg.policy, spec, cfg.seed)
    digests, order = [], []
    with start_collector(cfg, policy, spec, recorded=again) as collector:
        while len(order) < len(again) if again else not is_enough():
            batch = next(collector)
            delivery = collector.last_batch_info
            digests.append(digest_of(batch))
            order.append(
                RecordedBatch(delivery.parts[0].worker, delivery.parts[0].report.policy_version, delivery.version)
            )
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter += 0.1 * batch["observation"].mean()
            collector.publish(policy)
    return digests, order


@pytest.mark.parametrize(
    ("way", "zero_copy"),
    [
        case(ways.SHARED_ASYNC, False, tier="test"),
        *(case(way, True) for way in ways.ASYNC if way is not ways.INLINE_ASYNC),
    ],
)
def test_an_async_run_is_reproduced_from_its_order(way, zero_copy):
    shape = {"frames_per_batch": 32, "total_frames": -1, "zero_copy": zero_copy}
    cfg = config(way.kind, way.place, gym(2, entry_point="user_code.clocks:Uneven"), mlp(), **shape)
    digests, order = record(cfg)
    assert record(cfg, order) == (digests, order)


@over([ways.SHARED_SYNC], smoke=True)
def test_this_process_and_the_fork_server_may_open_as_many_files_as_the_workers_need(way, fork_server_pid):
    count, before = resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)
    server = fork_server_pid()
    try:
        for pid in (0, server):
            resource.prlimit(pid, count, (psutil.Process().num_fds() + 100, before[1]))
        with collect(way, num_workers=3, frames_per_batch=45):
            for pid in (0, server):
                assert resource.prlimit(pid, count)[0] > psutil.Process().num_fds() + 200
    finally:
        for pid in (0, server):
            resource.prlimit(pid, count, before)


# --- trajectories that are cut, and random frames at the beginning ---


@over([ways.SHARED_SYNC])
def test_a_worker_that_was_started_again_takes_no_random_frames(way):
    options = {"frames_per_batch": 40, "total_frames": -1, "init_random_frames": 10**9, "on_worker_failure": "restart"}
    with start(way.kind, way.place, counting(2), mlp(), **options) as collector:
        for _ in range(3):
            assert (next(collector)["action_log_prob"] == 0).all()
        os.kill(worker_pids(collector)[1], signal.SIGKILL)
        for batch in collector:
            log_prob = batch["action_log_prob"]
            assert (log_prob[0] == 0).all()
            if batch["observation"][1, 0, 0, 1] >= 2**32:  # its second incarnation
                assert (log_prob[1] < 0).all()
                break
            assert (log_prob[1] == 0).all()


@over((ways.INLINE_SYNC, ways.SHARED_SYNC))
def test_a_policy_may_read_the_step_count(way):
    policy = custom("user_code.faulty:step_counting_policy")
    options = {"frames_per_batch": 60, "total_frames": 600, "max_frames_per_traj": 5}
    for batch in batches(way.kind, way.place, counting(3), policy, **options):
        assert torch.equal(batch["action"], batch["step_count"][..., 0] % 2)


def test_the_built_in_policy_does_not_read_it():
    counted, plain = (
        batches("single", "inline", counting(2), mlp(), frames_per_batch=40, total_frames=40, **options)[0]
        for options in ({"max_frames_per_traj": 100}, {})
    )
    assert (counted.select(*plain.keys(True, True)) == plain).all()


@over((ways.SINGLE, ways.SHARED_SYNC), smoke=True)
def test_envs_that_reset_by_themselves_are_refused_before_anything_starts(way):
    with pytest.raises(ConfigError) as raised:
        start(way.kind, way.place, gym_vector(3), frames_per_batch=60, reset_at_each_iter=True, max_frames_per_traj=5)
    starts = [problem.split()[0] for problem in raised.value.problems]
    assert starts == ["collector.max_frames_per_traj=5", "collector.reset_at_each_iter=true"]
    assert all("the autoreset_mode disabled or same_step" in problem for problem in raised.value.problems)


def is_closed_with_python(finalizer):
    """Returns whether Python calls the finalizer at its exit before it ends the remaining child processes."""
    early = [each for (priority, _), each in util._finalizer_registry.items() if priority is not None and priority >= 0]
    return finalizer in early


def test_a_collector_is_closed_before_python_ends_its_children_whoever_closes_it():
    closed = []
    with start("single", "inline") as collector:
        assert is_closed_with_python(collector._finalizer)
        collector.close_by(lambda close: (closed.append("by the caller"), close()))
        assert is_closed_with_python(collector._finalizer)
    assert closed == ["by the caller"]
    collector.close()
    assert closed == ["by the caller"]
