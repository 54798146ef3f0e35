"""What every collector promises, over schedules x places x group sizes, with the counting env: nothing is lost,
repeated, reordered or torn, whoever carries it and however the user takes it."""

from __future__ import annotations

import time

import pytest
import torch
from collecting import batches, counting, custom, gym, gym_vector, mlp, start

from collectx.env.counting import StreamChecker, episode_length

WAYS = [
    ("single", "inline"),
    ("multi_sync", "inline"),
    ("multi_sync", "local"),
    ("multi_async", "inline"),
    ("multi_async", "local"),
    ("distributed_sync", "local"),
    ("distributed", "local"),
    ("rpc_sync", "local"),
    ("rpc", "local"),
]
ON_RAY = [pytest.param(kind, "ray", marks=pytest.mark.ci) for kind in ("ray_sync", "ray")]
SYNC = ("multi_sync", "distributed_sync", "rpc_sync", "ray_sync")
ways = pytest.mark.parametrize(("kind", "place"), WAYS)
# Ray takes seconds for every worker that it starts.
ways_and_ray = pytest.mark.parametrize(("kind", "place"), [*WAYS, *ON_RAY])
groups = pytest.mark.parametrize("num_envs", [1, 3])


def workers_of(kind):
    return 1 if kind == "single" else 2


@ways
@groups
@pytest.mark.parametrize("zero_copy", [False, True])
def test_every_frame_arrives_once_in_order_and_whole(kind, place, num_envs, zero_copy):
    checker = StreamChecker()
    steps = 5
    frames = steps * num_envs * (workers_of(kind) if kind in SYNC else 1)
    versions = []
    with start(
        kind, place, counting(num_envs), frames_per_batch=frames, total_frames=40 * frames, zero_copy=zero_copy
    ) as collector:
        for batch in collector:
            checker.take(batch)
            assert batch["next", "reward"].reshape(-1).tolist() == (
                batch["next", "observation"][..., 2].reshape(-1).tolist()
            )
            shortest = episode_length(batch["observation"][..., 0].numpy(), 7)
            ended = batch["next", "observation"][..., 2].numpy() == shortest
            assert (batch["next", "done"][..., 0].numpy() == ended).all()
            assert torch.equal(batch["next", "terminated"], batch["next", "done"])
            assert not batch["next", "truncated"].any()
            for key in ("done", "terminated", "truncated"):
                assert not batch[key].any()
            versions.append(batch["collector", "policy_version"].unique().tolist())
    assert checker.frames == 40 * frames
    assert versions == [[0]] * 40


@pytest.mark.parametrize(
    ("kind", "num_envs", "frames", "batch_size", "names"),
    [
        ("single", 1, 10, [10], ["time"]),
        ("single", 3, 12, [3, 4], [None, "time"]),
        ("multi_sync", 1, 20, [2, 10], [None, "time"]),
        ("multi_sync", 3, 24, [2, 3, 4], [None, None, "time"]),
        ("multi_async", 1, 20, [20], ["time"]),
        ("multi_async", 3, 12, [3, 4], [None, "time"]),
        ("distributed_sync", 3, 24, [2, 3, 4], [None, None, "time"]),
        ("distributed", 3, 12, [3, 4], [None, "time"]),
        ("rpc_sync", 3, 24, [2, 3, 4], [None, None, "time"]),
        ("rpc", 3, 12, [3, 4], [None, "time"]),
    ],
)
def test_a_batch_looks_like_torchrls(kind, num_envs, frames, batch_size, names):
    (batch,) = batches(kind, "inline", gym(num_envs), frames_per_batch=frames, total_frames=frames)
    assert list(batch.batch_size) == batch_size
    assert batch.names == names
    leaves = {key: batch.get(key) for key in batch.keys(include_nested=True, leaves_only=True)}
    assert {key: (list(value.shape[len(batch_size) :]), value.dtype) for key, value in leaves.items()} == {
        "observation": ([4], torch.float32),
        "action": ([], torch.int64),
        "done": ([1], torch.bool),
        "terminated": ([1], torch.bool),
        "truncated": ([1], torch.bool),
        ("next", "observation"): ([4], torch.float32),
        ("next", "reward"): ([1], torch.float32),
        ("next", "done"): ([1], torch.bool),
        ("next", "terminated"): ([1], torch.bool),
        ("next", "truncated"): ([1], torch.bool),
        ("collector", "traj_ids"): ([], torch.int64),
        ("collector", "policy_version"): ([], torch.int64),
    }


@ways
def test_traj_ids_are_env_plus_episode_times_all_envs(kind, place):
    num_envs, total_envs = 3, 3 * workers_of(kind)
    for batch in batches(kind, place, counting(num_envs), frames_per_batch=30, total_frames=600):
        env, episode = batch["observation"][..., 0], batch["observation"][..., 1]
        assert torch.equal(batch["collector", "traj_ids"], env + episode * total_envs)


@ways_and_ray
def test_a_batch_is_the_users_own_memory(kind, place):
    checker = StreamChecker()
    kept = []
    for batch in batches(kind, place, counting(3), frames_per_batch=30, total_frames=600):
        kept.append((batch, batch.clone()))
    for batch, copy in kept:
        assert (batch == copy).all()
        checker.take(batch)
    with start(kind, place, counting(3), frames_per_batch=30, total_frames=600) as collector:
        checker = StreamChecker()
        for batch in collector:
            checker.take(batch)
            batch.apply_(lambda tensor: tensor.zero_())


@ways
def test_total_frames_is_met_exactly_and_the_end_stays_the_end(kind, place):
    with start(kind, place, counting(), frames_per_batch=10, total_frames=30, num_slots=3) as collector:
        assert sum(batch.numel() for batch in collector) == 30
        assert next(collector, None) is None
        assert collector.delivery.index == 2


@ways_and_ray
def test_what_is_known_of_a_delivery(kind, place):
    with start(kind, place, counting(3), frames_per_batch=30, total_frames=300) as collector:
        for index, batch in enumerate(collector):
            delivery = collector.delivery
            assert (delivery.index, delivery.frames, delivery.version) == (index, 30, 0)
            joined = kind in SYNC
            assert [part.worker for part in delivery.parts] == (
                [0, 1] if joined else [int(batch["observation"][0, 0, 0]) // 3]
            )
            assert sum(part.frames for part in delivery.parts) == 30
            done = batch["next", "done"]
            ended = batch["next", "observation"][done[..., 0]][:, 2].tolist()
            lengths = [length for part in delivery.parts for length in part.lengths.tolist()]
            returns = [total for part in delivery.parts for total in part.returns.tolist()]
            assert sorted(lengths) == sorted(ended)
            assert returns == [length * (length + 1) / 2 for length in lengths]
            for part in delivery.parts:
                assert min(part.timings.env_s, part.timings.policy_s, part.timings.wait_s, part.timings.send_s) >= 0


@pytest.mark.parametrize(
    ("kind", "place"),
    [*((kind, "local") for kind in ("single", "multi_sync", "distributed_sync", "rpc_sync")), ON_RAY[0]],
)
@pytest.mark.parametrize("policy", [None, mlp()], ids=["random", "mlp"])
def test_the_same_seed_gives_the_same_batches_bit_for_bit(kind, place, policy):
    def run(place, seed):
        return batches(kind, place, gym(2), policy, frames_per_batch=64, total_frames=512, seed=seed)

    first = run("inline", 5)
    # A trainer that draws random numbers of its own must not change the workers'.
    torch.manual_seed(99)
    for again in (run("inline", 5), run(place, 5)):
        assert all((one == other).all() for one, other in zip(first, again, strict=True))
    assert not all((one == other).all() for one, other in zip(first, run("inline", 6), strict=True))


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


@pytest.mark.parametrize(("kind", "place"), [*(way for way in WAYS if way[0] in ("single", *SYNC)), ON_RAY[0]])
def test_sync_workers_act_with_the_newest_version_from_the_next_batch_on(kind, place):
    policy = custom("worlds.faulty:telling_policy", size=1000)
    from worlds import faulty

    mine = faulty.telling_policy(1000)
    with start(kind, place, counting(2), policy, frames_per_batch=20, total_frames=400) as collector:
        for index, batch in enumerate(collector):
            assert batch["low"].unique().tolist() == [float(index)]
            assert batch["high"].unique().tolist() == [float(index)]
            assert batch["collector", "policy_version"].unique().tolist() == [index]
            assert [part.policy_version for part in collector.delivery.parts] == [index] * len(collector.delivery.parts)
            with torch.no_grad():
                mine.module.number.fill_(index + 1)
            assert collector.publish(mine) == index + 1


@pytest.mark.parametrize(("kind", "place"), [*(way for way in WAYS if way[0] not in ("single", *SYNC)), ON_RAY[1]])
def test_hot_publish_to_async_workers_is_monotone_and_never_torn(kind, place):
    from worlds import faulty

    policy = custom("worlds.faulty:telling_policy", size=20_000)
    mine = faulty.telling_policy(20_000)
    newest = dict.fromkeys(range(2), -1)
    count, deadline = 0, time.monotonic() + 200
    with start(kind, place, counting(2), policy, frames_per_batch=20, total_frames=-1) as collector:
        while count < 100 or min(newest.values()) <= 0:
            assert time.monotonic() < deadline
            batch = next(collector)
            count += 1
            version = batch["collector", "policy_version"].unique()
            assert batch["low"].unique().tolist() == version.tolist()
            assert batch["high"].unique().tolist() == version.tolist()
            (part,) = collector.delivery.parts
            assert part.policy_version == version.item()
            assert newest[part.worker] <= version.item() <= collector.policy_version
            newest[part.worker] = version.item()
            with torch.no_grad():
                mine.module.number.fill_(collector.policy_version + 1)
            collector.publish(mine)


@pytest.mark.parametrize(
    ("kind", "env"),
    [
        ("multi_async", counting(2, step_s=0.001)),
        ("distributed", counting(2, step_s=0.001)),
        ("multi_async", gym_vector(2, "next_step")),
    ],
    ids=["shared_memory", "gloo", "ragged"],
)
def test_weights_taken_between_steps_are_told_frame_by_frame(kind, env):
    from worlds import faulty

    policy = custom("worlds.faulty:telling_policy", size=20_000)
    mine = faulty.telling_policy(20_000)
    shape = {"num_workers": 1, "num_slots": 1, "frames_per_batch": 400, "total_frames": -1}
    most, deadline = 1, time.monotonic() + 200
    with start(kind, "local", env, policy, refresh="step", **shape) as collector:
        while most < 3:
            assert time.monotonic() < deadline
            batch = next(collector)
            version = batch["collector", "policy_version"]
            assert torch.equal(batch["low"], version.float())
            assert torch.equal(batch["high"], version.float())
            assert (version.diff(dim=-1) >= 0).all()
            most = len(version.unique())
            for _ in range(5):
                with torch.no_grad():
                    mine.module.number.fill_(collector.policy_version + 1)
                collector.publish(mine)
                time.sleep(0.005)


def test_async_delivers_from_every_worker():
    """However much earlier one of them has come up."""
    seen, deadline = set(), time.monotonic() + 200
    with start("multi_async", "local", counting(), frames_per_batch=10, total_frames=-1) as collector:
        while seen != {0, 1}:
            next(collector)
            seen.add(collector.delivery.parts[0].worker)
            assert time.monotonic() < deadline


@ways
def test_many_short_episodes(kind, place):
    checker = StreamChecker()
    for batch in batches(kind, place, counting(32, episode_length=1), frames_per_batch=640, total_frames=2560):
        checker.take(batch)
    assert checker.frames == 2560


def test_storing_device_names_the_device():
    (batch,) = batches("single", "inline", frames_per_batch=10, total_frames=10, storing_device="cpu")
    assert batch.device == torch.device("cpu")


def test_more_workers_than_batches_ends_cleanly():
    assert len(batches("multi_async", "local", counting(), num_workers=4, frames_per_batch=10, total_frames=20)) == 2


def test_an_endless_collector_goes_on_until_it_is_closed():
    with start("multi_async", "local", counting(), frames_per_batch=10, total_frames=-1) as collector:
        checker = StreamChecker()
        for _ in range(200):
            checker.take(next(collector))


@ways
def test_a_closed_collector_says_so(kind, place):
    collector = start(kind, place, counting(), frames_per_batch=10, total_frames=100)
    next(collector)
    collector.close()
    collector.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(collector)
