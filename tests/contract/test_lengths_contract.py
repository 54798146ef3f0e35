"""Batches of other lengths than all frames of all workers (worker by worker, cut short, whole trajectories) tell what
happened: no frame is lost, repeated, out of order or of another trajectory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from anyspaces import any_space
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds.spaceenv import make, read, sample

import collectx
from collectx.env.spaces import Structure
from collectx.library.keywords import order

torch.set_num_threads(1)

pytestmark = pytest.mark.filterwarnings("ignore:.*Casting input x to numpy array")

SPACES = any_space([np.uint8, np.int64, np.float32], 1, 3)


@dataclass(frozen=True)
class Case:
    """A collector to be made.

    Attributes:
        length: of an episode.
        rows: envs of one worker.
        steps: frames of each env of each worker in a batch.
        threshold, trajs, traj_format: see the collectors' keywords.
    """

    kind: str
    length: int
    rows: int
    autoreset: str | None
    steps: tuple[int, ...]
    num_batches: int
    threshold: float | None
    trajs: int | None
    traj_format: str
    stacked: bool

    @property
    def num_envs(self) -> int:
        return self.rows * len(self.steps)

    def collect(self, observation: gymnasium.Space) -> list:
        create = partial(make, observation, gymnasium.spaces.Discrete(2), self.length, self.rows, self.autoreset)
        frames = [self.rows * steps for steps in self.steps]
        told = {
            "frames_per_batch": sum(frames) if len(set(frames)) == 1 and self.kind == "MultiSyncCollector" else frames,
            "cat_results": "stack" if self.stacked else -1,
            "trajs_per_batch": self.trajs,
            "traj_format": None if self.trajs is None else self.traj_format,
            "preemptive_threshold": self.threshold,
        }
        if self.threshold is None:
            told["total_frames"] = self.num_batches * sum(frames)
        with getattr(collectx, self.kind)([create] * len(self.steps), **told) as collector:
            if self.threshold is None:
                return list(collector)
            return [collector.next() for _ in range(self.num_batches)]


@st.composite
def cases(draw):
    kind = draw(st.sampled_from(["MultiSyncCollector", "MultiAsyncCollector"]))
    autoreset = draw(st.sampled_from([None, "SameStep", "Disabled"]))
    num_workers = draw(st.integers(1, 3))
    is_sync = kind == "MultiSyncCollector"
    threshold = draw(st.none() | st.sampled_from([0.0, 0.5, 1.0])) if is_sync else None
    stacked = is_sync and draw(st.booleans())
    one, each = st.integers(1, 6), st.lists(st.integers(1, 6), min_size=num_workers, max_size=num_workers)
    length = draw(st.integers(1, 5))
    trajs = draw(st.none() | st.integers(1, 4))
    return Case(
        kind=kind,
        length=length,
        rows=1 if autoreset is None else draw(st.integers(1, 3)),
        autoreset=autoreset,
        steps=(draw(one),) * num_workers if stacked or not is_sync else tuple(draw(each)),
        # With whole trajectories and a threshold the collector is endless: enough must end.
        num_batches=draw(st.integers(1, 4)),
        threshold=threshold,
        trajs=trajs,
        traj_format=draw(st.sampled_from(["padded", "cat"])),
        stacked=stacked,
    )


def check(case, observation):
    batches = case.collect(observation)
    frames = [list(frames_of(batch, observation)) for batch in batches]
    if case.trajs is None:
        assert len(batches) == case.num_batches
        check_shapes(case, batches, frames)
    for of_batch in frames if case.trajs is not None else ():
        check_whole(case, of_batch)
    envs: dict[int, list] = {}
    for frame in (frame for of_batch in frames for frame in of_batch):
        envs.setdefault(frame["id"] % case.num_envs, []).append(frame)
    for of_env in envs.values():
        assert len({frame["env"] for frame in of_env}) == 1
        places = [(frame["episode"], frame["step"]) for frame in of_env]
        assert places == [(1 + n // case.length, 1 + n % case.length) for n in range(len(places))]
        first = of_env[0]["id"]
        assert [frame["id"] for frame in of_env] == [first + (place - 1) * case.num_envs for place, _ in places]


def frames_of(batch, observation):
    """The frames of a batch, each as its reward says; what is observed is looked at."""
    flat = batch.reshape(-1)
    mask = flat.get(("collector", "mask"), None)
    if mask is not None:
        flat = flat[mask]
    structure = Structure(observation, ("observation",))
    for data in flat.unbind(0):
        env, episode, step = read(data["next", "reward"])
        for prefix, at in (((), step - 1), (("next",), step)):
            values = structure.flatten(sample(observation, env, episode, at))
            for leaf, value in zip(structure.leaves, values, strict=True):
                assert np.array_equal(data[(*prefix, *leaf.key)].numpy(), value), (prefix, leaf)
        done = bool(data["next", "done"])
        yield {"env": env, "episode": episode, "step": step, "id": int(data["collector", "traj_ids"]), "done": done}


def check_shapes(case, batches, frames):
    """How many frames there are, and where they are not."""
    for batch, of_batch in zip(batches, frames, strict=True):
        every = [case.rows * steps for steps in case.steps]
        if case.threshold is None:
            whole = sum(every)
            assert batch.numel() == len(of_batch) == whole
            continue
        owners = [frame["id"] % case.num_envs // case.rows for frame in of_batch]
        counts = [owners.count(worker) for worker in range(len(every))]
        assert all(case.rows <= count <= most for count, most in zip(counts, every, strict=True))
        waited_for = max(1, math.ceil(case.threshold * len(every)))
        assert sum(count == most for count, most in zip(counts, every, strict=True)) >= waited_for
        if case.stacked:
            hidden = ~batch["collector", "mask"]
            assert (batch["collector", "traj_ids"][hidden] == -1).all()
            assert not batch["next", "reward"][hidden].any()
        else:
            assert batch.numel() == len(of_batch)


def check_whole(case, frames):
    """Whole trajectories, one after another."""
    assert len(frames) == case.trajs * case.length
    for start in range(0, len(frames), case.length):
        trajectory = frames[start : start + case.length]
        assert [frame["step"] for frame in trajectory] == list(range(1, case.length + 1))
        assert len({(frame["env"], frame["episode"], frame["id"]) for frame in trajectory}) == 1
        assert [frame["done"] for frame in trajectory] == [False] * (case.length - 1) + [True]


@settings(max_examples=60)
@given(cases(), SPACES)
def test_batches_tell_what_happened(case, observation):
    with pytest.MonkeyPatch.context() as patch:
        # Workers are the same code in this process, where they start at once.
        launcher = order.LauncherConfig
        patch.setattr(order, "LauncherConfig", lambda kind, *rest: launcher("inline", *rest))
        check(case, observation)


@pytest.mark.ci
@settings(max_examples=8)
@given(cases(), SPACES)
def test_batches_of_processes_tell_what_happened(case, observation):
    check(case, observation)
