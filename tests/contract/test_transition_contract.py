"""Every batch says what happened, whatever the spaces, the keywords and the lengths of its parts: no frame is lost,
repeated, out of order or of another trajectory, and every leaf is what the env gave."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from library_collectors import make
from user_code.spaceenv import TAKEN, constant_policy, make_env, read, sample
from ways import INLINE, SHARED, SINGLE, Way

from collectx.env.observation import ObservationLeaves
from collectx.env.spaces import SpaceLeaves

# A SyncVectorEnv gives its envs numpy's scalars for a Box without dimensions.
pytestmark = pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")

DTYPES = [np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64]
LEAVES = st.one_of(
    st.builds(
        lambda shape, dtype: spaces.Box(0, 100, tuple(shape), dtype),
        st.lists(st.integers(1, 3), max_size=2),
        st.sampled_from(DTYPES),
    ),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=3)),
    st.builds(spaces.MultiBinary, st.integers(1, 4)),
)
SPACES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.dictionaries(st.sampled_from("abc"), parts, min_size=1, max_size=2).map(spaces.Dict),
        st.lists(parts, min_size=1, max_size=2).map(spaces.Tuple),
    ),
    max_leaves=4,
)
ENDS = ("done", "terminated", "truncated")


@dataclass(frozen=True)
class Case:
    """A collector to be made.

    Attributes:
        length: of an episode.
        rows, autoreset: envs of one worker, and the mode of their vector env; None: a plain env.
        steps: frames of each env in a batch, for each worker.
        others: the keywords of the collector whose names are not attributes here.
    """

    way: Way
    length: int
    rows: int
    autoreset: str | None
    steps: tuple[int, ...]
    num_batches: int
    has_policy: bool
    cat_results: Any = None
    split_trajs: bool = False
    set_truncated: bool = False
    reset_at_each_iter: bool = False
    max_frames_per_traj: int | None = None
    init_random_frames: int | None = None
    preemptive_threshold: float | None = None
    trajs_per_batch: int | None = None
    traj_format: str | None = None

    @property
    def num_envs(self) -> int:
        return self.rows * len(self.steps)

    @property
    def frames(self) -> list[int]:
        """Yields the frames of each part of a batch."""
        each = [self.rows * steps for steps in self.steps]
        return each if self.way.is_sync else [sum(each) if len(set(each)) > 1 else each[0]]

    @property
    def is_stacked(self) -> bool:
        return self.way.is_sync and self.cat_results in (None, "stack")

    @property
    def is_masked(self) -> bool:
        """Tells whether a batch may have places without a frame."""
        is_padded = self.split_trajs or (self.trajs_per_batch is not None and self.traj_format != "cat")
        return is_padded or (self.preemptive_threshold is not None and self.is_stacked)

    def collect(self, observation, action) -> list:
        create = partial(make_env, observation, action, self.length, self.rows, self.autoreset)
        each, own = self.frames, ("way", "length", "rows", "autoreset", "steps", "num_batches", "has_policy")
        keywords = {name: value for name, value in vars(self).items() if name not in own and value is not None}
        if self.way.kind == "single":
            keywords.pop("preemptive_threshold", None)
        keywords["frames_per_batch"] = each if len(set(each)) > 1 else sum(each)
        # With a threshold there is no telling how many frames a batch has.
        if self.preemptive_threshold is None:
            keywords["total_frames"] = self.num_batches * sum(each)
        policy = constant_policy(observation, action) if self.has_policy else None
        with make(self.way, create, policy, num_workers=len(self.steps), **keywords) as collector:
            if self.preemptive_threshold is None:
                return list(collector)
            return [collector.next() for _ in range(self.num_batches)]


@st.composite
def cases(draw, ways=INLINE):
    way = draw(st.sampled_from(ways))
    autoreset = draw(st.sampled_from([None, "SameStep", "Disabled", "NextStep"]))
    num_workers = 1 if way.kind == "single" else draw(st.integers(1, 3))
    case = {
        "way": way,
        "length": draw(st.integers(1, 7)),
        "rows": 1 if autoreset is None else draw(st.integers(1, 3)),
        "autoreset": autoreset,
        "steps": (draw(st.integers(1, 6)),) * num_workers,
        "num_batches": draw(st.integers(1, 4)),
        "has_policy": draw(st.booleans()),
    }
    can_reset_early = autoreset != "NextStep"
    form = draw(st.sampled_from(["equal", "uneven", "preempted", "whole"]))
    if form == "equal" or not (can_reset_early or form == "whole"):
        return Case(
            **case,
            cat_results=draw(st.sampled_from([None, "stack", 0, -1])),
            split_trajs=draw(st.booleans()),
            set_truncated=draw(st.booleans()),
            reset_at_each_iter=can_reset_early and draw(st.booleans()),
            max_frames_per_traj=draw(st.none() | st.integers(1, 6)) if can_reset_early else None,
            init_random_frames=draw(st.none() | st.integers(1, 30)),
        )
    threshold = draw(st.sampled_from([0.0, 0.5, 1.0])) if form == "preempted" and way.is_sync else None
    cat_results = draw(st.sampled_from(["stack", -1]))
    if way.is_sync and cat_results == -1 and can_reset_early:
        case["steps"] = tuple(draw(st.lists(st.integers(1, 6), min_size=num_workers, max_size=num_workers)))
    trajs = draw(st.integers(1, 4)) if form == "whole" else None
    return Case(
        **case,
        cat_results=cat_results,
        preemptive_threshold=threshold,
        trajs_per_batch=trajs,
        traj_format=draw(st.sampled_from(["padded", "cat"])) if trajs else None,
    )


def check(case, observation, action):
    """Collects, and compares every frame with what its reward says it is."""
    TAKEN.clear()
    batches = case.collect(observation, action)
    assert case.trajs_per_batch is not None or len(batches) == case.num_batches
    envs: dict[int, list] = {}
    for number, batch in enumerate(batches):
        check_leaves(case, batch, observation, action)
        frames = frames_of(case, number, batch)
        check_parts(case, batch, frames)
        for frame in frames:
            envs.setdefault(frame["env"], []).append(frame)
    assert len(envs) <= case.num_envs
    if case.trajs_per_batch is None and case.way.kind != "multi_async" and case.autoreset != "NextStep":
        assert len(envs) == case.num_envs
    for frames in envs.values():
        check_order(case, frames, observation)
        if case.way.place == "inline":
            check_actions(frames, action)
    ids = [{frame["id"] for frame in frames} for frames in envs.values()]
    assert len(set().union(*ids)) == sum(map(len, ids))


def check_leaves(case, batch, observation, action):
    """Keys, shapes, dtypes and names."""
    size = batch.batch_size
    assert batch.names == [*[None] * (len(size) - 1), "time"]
    seen = ObservationLeaves(observation).leaves
    expected = {leaf.key: (leaf.shape, leaf.dtype) for leaf in (*seen, *SpaceLeaves(action, ("action",)).leaves)}
    expected |= {("next", *leaf.key): (leaf.shape, leaf.dtype) for leaf in seen}
    expected |= {(*prefix, name): ((1,), torch.bool) for prefix in ((), ("next",)) for name in ENDS}
    expected["next", "reward"] = ((1,), torch.float32)
    expected["collector", "traj_ids"] = expected["collector", "policy_version"] = ((), torch.int64)
    if case.max_frames_per_traj is not None:
        expected[("step_count",)] = expected["next", "step_count"] = ((1,), torch.int64)
    if case.has_policy:
        expected[("acted",)] = ((), torch.float32)
    if case.is_masked:
        expected["collector", "mask"] = ((), torch.bool)
    found = {key if isinstance(key, tuple) else (key,): value for key, value in batch.items(True, True)}
    assert {key: (value.shape, value.dtype) for key, value in found.items()} == {
        key: ((*size, *shape), dtype) for key, (shape, dtype) in expected.items()
    }


def frames_of(case, number, batch):
    """Returns the frames of a batch, those of each env in order of time."""
    flat = batch.reshape(-1)
    if case.is_masked:
        flat = flat[flat["collector", "mask"]]
    found = []
    for index, data in enumerate(flat.unbind(0)):
        env, episode, step = read(data["next", "reward"])
        place = {"batch": number, "env": env, "episode": episode, "step": step}
        is_last = not case.split_trajs and index % case.steps[0] == case.steps[0] - 1
        found.append({**place, "id": int(data["collector", "traj_ids"]), "is_last": is_last, "data": data})
    if case.split_trajs:
        for frame in {frame["env"]: frame for frame in found}.values():
            frame["is_last"] = True
    return found


def check_parts(case, batch, frames):
    """Asserts how many frames there are of each worker, and how they lie."""
    if case.trajs_per_batch is not None:
        assert len(frames) == case.trajs_per_batch * case.length
        for start in range(0, len(frames), case.length):
            trajectory = frames[start : start + case.length]
            assert [frame["step"] for frame in trajectory] == list(range(1, case.length + 1))
            assert len({(frame["env"], frame["episode"], frame["id"]) for frame in trajectory}) == 1
        return
    most = case.frames
    owners = [frame["id"] % case.num_envs // case.rows for frame in frames]
    counts = [owners.count(worker) for worker in range(len(most))] if case.way.is_sync else [len(frames)]
    if case.preemptive_threshold is None:
        assert counts == most
    else:
        assert all(case.rows <= count <= each for count, each in zip(counts, most, strict=True))
        waited_for = max(1, math.ceil(case.preemptive_threshold * len(most)))
        assert sum(count == each for count, each in zip(counts, most, strict=True)) >= waited_for
    if case.split_trajs:
        return
    part = (() if case.autoreset is None else (case.rows,)) + (most[0] // case.rows,)
    if case.is_stacked:
        assert batch.batch_size == (len(most), *part)
    elif case.cat_results == 0 and case.way.is_sync:
        assert batch.batch_size == (part[0] * len(most), *part[1:])
    else:
        assert batch.batch_size == (*part[:-1], sum(counts) // case.rows)
    if case.is_masked:
        hidden = batch.reshape(-1)[~batch["collector", "mask"].reshape(-1)]
        assert (hidden["collector", "traj_ids"] == -1).all()
        assert not any(leaf.any() for key, leaf in hidden.items(True, True) if key[0] != "collector")


def check_actions(frames, action):
    """Asserts that the actions are those that the env took."""
    structure = SpaceLeaves(action, ("action",))
    for frame in frames:
        taken = structure.flatten(TAKEN[int(frame["data"]["next", "reward"])])
        for leaf, value in zip(structure.leaves, taken, strict=True):
            assert np.array_equal(frame["data"][leaf.key].numpy(), value), (leaf, frame)


def check_order(case, frames, observation):
    """Asserts that each frame of an env is what its reward says, and that they follow one another."""
    structure = ObservationLeaves(observation)
    steps = case.steps[frames[0]["id"] % case.num_envs // case.rows]
    random_batches = -(-(case.init_random_frames or 0) // (steps * case.num_envs))
    assert frames[0]["step"] == frames[0]["episode"] == 1
    for index, frame in enumerate(frames):
        data, step = frame["data"], frame["step"]
        for prefix, at in (((), step - 1), (("next",), step)):
            values = structure.flatten(sample(observation, frame["env"], frame["episode"], at))
            for leaf, value in zip(structure.leaves, values, strict=True):
                assert np.array_equal(data[(*prefix, *leaf.key)].numpy(), value), (prefix, leaf, frame)
        if case.max_frames_per_traj is not None:
            assert (int(data["step_count"]), int(data["next", "step_count"])) == (step - 1, step)
        if case.has_policy:
            assert bool(data["acted"]) == (index // steps >= random_batches)
        assert not any(data[name] for name in ENDS)
        over, odd = step == case.length, frame["episode"] % 2 == 1
        cut = step == case.max_frames_per_traj
        marked = case.set_truncated and frame["is_last"]
        # Frames of an env that spends steps on resets may lie in several rows, whose ends a split batch does not show.
        if not (case.split_trajs and case.set_truncated and case.autoreset == "NextStep"):
            assert bool(data["next", "terminated"]) == (over and odd)
            assert bool(data["next", "truncated"]) == ((over and not odd) or cut or marked)
        assert bool(data["next", "done"]) == bool(data["next", "terminated"] | data["next", "truncated"])
        # Ids count the episodes of an env.
        assert frame["id"] == frames[0]["id"] + (frame["episode"] - 1) * case.num_envs
        if index + 1 < len(frames):
            following = frames[index + 1]
            is_over = over or cut or (case.reset_at_each_iter and following["batch"] > frame["batch"])
            expected = (frame["episode"] + 1, 1) if is_over else (frame["episode"], step + 1)
            assert (following["episode"], following["step"]) == expected


@pytest.mark.ci
@pytest.mark.difference(
    "parts cut short by `preemptive_threshold`",
    "`split_trajs` with several workers",
    "`reset_at_each_iter`",
    "`set_truncated`, several workers, reused buffers",
)
@pytest.mark.parametrize(
    "num_examples", [60, pytest.param(1000, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])]
)
def test_batches_say_what_happened(num_examples):
    settings(max_examples=num_examples)(given(cases(), SPACES, SPACES)(check))()


def test_several_leaves_and_cut_trajectories():
    case = Case(SINGLE, 5, 2, "SameStep", (4,), 3, has_policy=True, max_frames_per_traj=3)
    observation = spaces.Dict(a=spaces.Box(0, 100, (2,)), b=spaces.Discrete(5), c=spaces.MultiBinary(2))
    check(case, observation, spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 100, (2,))]))


@pytest.mark.ci
def test_batches_of_processes_say_what_happened():
    settings(max_examples=8)(given(cases(SHARED), SPACES, SPACES)(check))()
