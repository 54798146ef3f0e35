"""Every batch tells what happened, whatever the spaces and the keywords: no frame is lost, repeated, out of order or of
another trajectory, and every leaf is what the env gave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from anyspaces import any_space
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds.spaceenv import TAKEN, constant_policy, make, read, sample

import collectx
from collectx.env.spaces import Structure
from collectx.library.keywords import order

torch.set_num_threads(1)

# A SyncVectorEnv gives its envs numpy's scalars for a Box without dimensions.
pytestmark = pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")

DTYPES = [np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64]
SPACES = any_space(DTYPES, 2, 4)


@dataclass(frozen=True)
class Case:
    """A collector to be made.

    Attributes:
        length: of an episode.
        rows, autoreset: envs of one worker, and the mode of their vector env; None: a plain env.
        steps: frames of each env in a batch.
    """

    kind: str
    num_workers: int
    length: int
    rows: int
    autoreset: str | None
    steps: int
    num_batches: int
    has_policy: bool
    cat_results: Any
    split_trajs: bool
    set_truncated: bool
    reset_at_each_iter: bool
    max_frames_per_traj: int | None
    init_random_frames: int | None

    @property
    def joined(self) -> bool:
        return self.kind == "MultiSyncCollector"

    @property
    def ragged(self) -> bool:
        return self.autoreset == "NextStep"

    @property
    def num_envs(self) -> int:
        return self.rows * (self.num_workers if self.kind != "Collector" else 1)

    @property
    def frames_per_batch(self) -> int:
        return self.steps * self.rows * (self.num_workers if self.joined else 1)

    @property
    def batch_size(self) -> tuple[int, ...]:
        part = ((self.rows,) if self.rows > 1 else ()) + (self.steps,)
        if not self.joined:
            return part
        if self.cat_results in (None, "stack"):
            return self.num_workers, *part
        grown = list(part)
        grown[self.cat_results] *= self.num_workers
        return tuple(grown)

    def collect(self, observation: gymnasium.Space, action: gymnasium.Space) -> list:
        create = partial(make, observation, action, self.length, self.rows, self.autoreset)
        several = self.kind != "Collector"
        given = {
            "frames_per_batch": self.frames_per_batch,
            "total_frames": self.num_batches * self.frames_per_batch,
            "split_trajs": self.split_trajs,
            "set_truncated": self.set_truncated,
            "reset_at_each_iter": self.reset_at_each_iter,
            "max_frames_per_traj": self.max_frames_per_traj,
            "init_random_frames": self.init_random_frames,
            "cat_results": self.cat_results,
        }
        if several:
            given["num_workers"] = self.num_workers
        policy = constant_policy(observation, action) if self.has_policy else None
        with getattr(collectx, self.kind)([create] * self.num_workers if several else create, policy, **given) as some:
            return list(some)


@st.composite
def cases(draw, kinds=("Collector", "MultiSyncCollector", "MultiAsyncCollector")):
    autoreset = draw(st.sampled_from([None, "SameStep", "Disabled", "NextStep"]))
    cuttable = autoreset != "NextStep"
    return Case(
        kind=draw(st.sampled_from(kinds)),
        num_workers=draw(st.integers(1, 3)),
        length=draw(st.integers(1, 7)),
        rows=1 if autoreset is None else draw(st.integers(1, 3)),
        autoreset=autoreset,
        steps=draw(st.integers(1, 6)),
        num_batches=draw(st.integers(1, 4)),
        has_policy=draw(st.booleans()),
        cat_results=draw(st.sampled_from([None, "stack", 0, -1])),
        split_trajs=draw(st.booleans()),
        set_truncated=draw(st.booleans()),
        reset_at_each_iter=cuttable and draw(st.booleans()),
        max_frames_per_traj=draw(st.none() | st.integers(1, 6)) if cuttable else None,
        init_random_frames=draw(st.none() | st.integers(1, 30)),
    )


@pytest.fixture(scope="module", autouse=True)
def workers_in_this_process():
    """Workers are the same code in this process, where they start at once."""
    with pytest.MonkeyPatch.context() as patch:
        launcher = order.LauncherConfig
        patch.setattr(order, "LauncherConfig", lambda kind, *rest: launcher("inline", *rest))
        yield


@settings(max_examples=150)
@given(cases(), SPACES, SPACES)
def test_batches_tell_what_happened(case, observation, action):
    TAKEN.clear()
    batches = case.collect(observation, action)
    assert len(batches) == case.num_batches
    for batch in batches:
        check_leaves(case, batch, observation, action)
    frames = [frames_of(case, number, batch) for number, batch in enumerate(batches)]
    envs: dict[int, list] = {}
    for frame in (frame for batch in frames for frame in batch):
        envs.setdefault(frame["env"], []).append(frame)
    assert len(envs) <= case.num_envs
    assert case.kind == "MultiAsyncCollector" or case.ragged or len(envs) == case.num_envs
    for of_env in envs.values():
        check_order(case, of_env, observation)
        check_actions(of_env, action)
    ids = [{frame["id"] for frame in of_env} for of_env in envs.values()]
    assert len(set().union(*ids)) == sum(map(len, ids))


def check_leaves(case, batch, observation, action):
    """Keys, shapes, dtypes and names."""
    size = batch.batch_size if case.split_trajs else torch.Size(case.batch_size)
    assert batch.batch_size == size
    assert batch.names == [*[None] * (len(size) - 1), "time"]
    seen = Structure(observation, ("observation",)).leaves
    ends = [(name, (1,), torch.bool) for name in ("done", "terminated", "truncated")]
    expected = {leaf.key: (leaf.shape, leaf.dtype) for leaf in (*seen, *Structure(action, ("action",)).leaves)}
    expected |= {("next", *leaf.key): (leaf.shape, leaf.dtype) for leaf in seen}
    for name, shape, dtype in ends:
        expected[(name,)] = expected["next", name] = (shape, dtype)
    expected["next", "reward"] = ((1,), torch.float32)
    expected["collector", "traj_ids"] = expected["collector", "policy_version"] = ((), torch.int64)
    if case.max_frames_per_traj is not None:
        expected[("step_count",)] = expected["next", "step_count"] = ((1,), torch.int64)
    if case.has_policy:
        expected[("acted",)] = ((), torch.float32)
    if case.split_trajs:
        expected["collector", "mask"] = ((), torch.bool)
    found = {key if isinstance(key, tuple) else (key,): value for key, value in batch.items(True, True)}
    assert {key: (value.shape, value.dtype) for key, value in found.items()} == {
        key: ((*size, *shape), dtype) for key, (shape, dtype) in expected.items()
    }


def frames_of(case, number, batch):
    """The frames of a batch, those of each env in order of time."""
    flat = batch.reshape(-1)
    last = np.arange(len(flat)) % case.steps == case.steps - 1
    if case.split_trajs:
        flat = flat[flat["collector", "mask"]]
        last = np.zeros(len(flat), bool)
    assert len(flat) == case.frames_per_batch
    found = []
    for data, is_last in zip(flat.unbind(0), last.tolist(), strict=True):
        env, episode, step = read(data["next", "reward"])
        place = {"batch": number, "env": env, "episode": episode, "step": step, "last": is_last}
        found.append({**place, "id": int(data["collector", "traj_ids"]), "data": data})
    if case.split_trajs:
        for frame in {frame["env"]: frame for frame in found}.values():
            frame["last"] = True
    return found


def check_actions(frames, action):
    """The actions are those that the env was given."""
    structure = Structure(action, ("action",))
    for frame in frames:
        taken = structure.flatten(TAKEN[int(frame["data"]["next", "reward"])])
        for leaf, value in zip(structure.leaves, taken, strict=True):
            assert np.array_equal(frame["data"][leaf.key].numpy(), value), (leaf, frame)


def check_order(case, frames, observation):
    """One env's frames: each is what its reward says, and they follow one another."""
    random_batches = -(-(case.init_random_frames or 0) // (case.steps * case.num_envs))
    assert frames[0]["step"] == frames[0]["episode"] == 1
    for index, frame in enumerate(frames):
        data, step = frame["data"], frame["step"]
        structure = Structure(observation, ("observation",))
        for prefix, at in (((), step - 1), (("next",), step)):
            values = structure.flatten(sample(observation, frame["env"], frame["episode"], at))
            for leaf, value in zip(structure.leaves, values, strict=True):
                assert np.array_equal(data[(*prefix, *leaf.key)].numpy(), value), (prefix, leaf, frame)
        if case.max_frames_per_traj is not None:
            assert (int(data["step_count"]), int(data["next", "step_count"])) == (step - 1, step)
        if case.has_policy:
            assert bool(data["acted"]) == (index // case.steps >= random_batches)
        assert not any(data[name] for name in ("done", "terminated", "truncated"))
        over, odd = step == case.length, frame["episode"] % 2 == 1
        cut = step == case.max_frames_per_traj
        marked = bool(case.set_truncated and frame["last"])
        if not (case.split_trajs and case.set_truncated and case.ragged):
            assert bool(data["next", "terminated"]) == (over and odd)
            assert bool(data["next", "truncated"]) == ((over and not odd) or cut or marked)
        assert bool(data["next", "done"]) == bool(data["next", "terminated"] | data["next", "truncated"])
        if index + 1 == len(frames):
            continue
        following = frames[index + 1]
        begins_anew = case.reset_at_each_iter and following["batch"] > frame["batch"]
        if over or cut or begins_anew:
            assert (following["episode"], following["step"]) == (frame["episode"] + 1, 1)
            assert following["id"] > frame["id"]
        else:
            assert (following["episode"], following["step"]) == (frame["episode"], step + 1)
            assert following["id"] == frame["id"]
