"""Whole batches of each rollout, over a random walk of calls, against a model that counts frame by frame."""

import itertools
import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from configurations import counting, gym_vector
from user_code.tensorenv import TensorCountingEnv

from collectx import progress
from collectx.batch import Layout, batch_leaves
from collectx.env import build
from collectx.env.base import first_observations
from collectx.env.counting import frame
from collectx.policy import ExplorationType, make_actor
from collectx.progress import STEPS
from collectx.rollout.episodes import Episodes
from collectx.rollout.loop import OneEnvRollout, Rollout
from collectx.rollout.wrappers import RolloutOptions, wrapped
from collectx.worker.rollout_source import rollout_class

SHORTEST, SIZE, TOTAL = 3, 5, 10


def act(observation):
    """Acts by the step, and writes a further output that follows from the episode."""
    return observation[..., 2] % 2, observation[..., 1] + 1


class Model:
    """Envs whose episodes have `SHORTEST + index % 3` steps."""

    def __init__(self, first, num_envs, options):
        self.options, self.random_batches = options, options.num_random_batches
        self.index = [first + e for e in range(num_envs)]
        self.episode, self.step, self.count = ([0] * num_envs for _ in range(3))
        self.ids, self.returns, self.lengths = list(self.index), [0.0] * num_envs, [0] * num_envs

    def begin(self, e, episode):
        """Begins a new episode, and a new trajectory."""
        self.episode[e], self.step[e], self.count[e] = episode, 0, 0
        self.abandon(e)

    def abandon(self, e):
        self.ids[e] += TOTAL
        self.returns[e], self.lengths[e] = 0.0, 0

    def observed(self, e):
        return frame(*np.array([[self.index[e]], [self.episode[e]], [self.step[e]]]), SIZE)[0].tolist()

    def collect(self, steps):
        """Returns the rows of a batch, as `[step][env]` dicts, and the finished trajectories."""
        options, rows, finished = self.options, [], []
        for t in range(steps):
            is_last, row = t == steps - 1, []
            for e, index in enumerate(self.index):
                before, count, episode = self.observed(e), self.count[e], self.episode[e]
                acted = [self.step[e] % 2, episode + 1] if not self.random_batches else None
                self.step[e] += 1
                self.count[e] += 1
                self.returns[e] += self.step[e]
                self.lengths[e] += 1
                terminated = self.step[e] >= SHORTEST + index % 3
                truncated = options.max_frames_per_traj is not None and self.count[e] >= options.max_frames_per_traj
                is_over = terminated or truncated
                marked = is_last and options.set_truncated
                row.append(
                    {
                        "observation": [before, self.observed(e)],
                        "step_count": [count, self.count[e]],
                        "acted": acted,
                        "reward": self.step[e],
                        "ends": [is_over or marked, terminated, truncated or marked],
                        "id": self.ids[e],
                    }
                )
                if is_over or (is_last and options.reset_at_each_iter):
                    finished.append((self.returns[e], self.lengths[e]))
                    self.begin(e, episode + 1)
            rows.append(row)
        self.random_batches = max(0, self.random_batches - 1)
        return rows, finished


def rows_of(slot, steps, has_acted):
    """Returns the first steps of a batch, in the form of `Model.collect`."""
    tensors = {key: tensor.transpose(0, 1)[:steps] for key, tensor in slot.tensors.items()}

    def pair(t, e, *key):
        return [tensors[at][t, e].tolist() if (at := (*place, *key)) in tensors else None for place in ((), ("next",))]

    return [
        [
            {
                "observation": pair(t, e, "observation"),
                "step_count": [each and each[0] for each in pair(t, e, "step_count")],
                "acted": [tensors[name,][t, e].item() for name in ("action", "output1")] if has_acted else None,
                "reward": tensors["next", "reward"][t, e].item(),
                "ends": [tensors["next", name][t, e].item() for name in ("done", "terminated", "truncated")],
                "id": tensors["collector", "traj_ids"][t, e].item(),
            }
            for e in range(tensors["action",].shape[1])
        ]
        for t in range(steps)
    ]


COUNTING = replace(counting(3, SHORTEST, SIZE))
TENSORS = replace(gym_vector(3), id=None, entry_point=partial(TensorCountingEnv, length=SHORTEST, size=SIZE))
# With `compact`, batches contain no next observation.
WALKS = [
    (COUNTING, Rollout, "whole", {}),
    (COUNTING, Rollout, "compact", {}),
    (COUNTING, Rollout, "compact", {"max_frames_per_traj": 4, "set_truncated": True, "num_random_batches": 3}),
    (COUNTING, Rollout, "whole", {"reset_at_each_iter": True}),
    (COUNTING, Rollout, "whole", {"reset_at_each_iter": True, "set_truncated": True, "max_frames_per_traj": 2}),
    (replace(COUNTING, num_envs=1), OneEnvRollout, "compact", {"num_random_batches": 2}),
    (replace(COUNTING, num_envs=1), OneEnvRollout, "whole", {"max_frames_per_traj": 1, "set_truncated": True}),
    (replace(COUNTING, num_envs=1), OneEnvRollout, "whole", {"reset_at_each_iter": True, "max_frames_per_traj": 3}),
    (TENSORS, Rollout, "compact", {"num_random_batches": 2}),
    (TENSORS, Rollout, "compact", {}),
    (TENSORS, Rollout, "whole", {"set_truncated": True}),
    (replace(TENSORS, num_envs=1), Rollout, "whole", {}),
]


@pytest.mark.parametrize(("cfg", "kind", "form", "options"), WALKS)
def test_batches_are_those_of_a_model(cfg, kind, form, options):
    is_compact, length = form == "compact", 6 if options or form == "whole" else 1
    is_tensor = cfg.kind == TENSORS.kind
    options, first = RolloutOptions(True, **options), 0 if is_tensor else 4
    draw, end = random.Random(str(options)), [length]

    def ends_early():
        end[0] -= 1
        return end[0] == 0

    def make(is_reset=False):
        env, seeds = wrapped(build(cfg, first), options), range(cfg.num_envs)
        actor = make_actor(act, env.spec, torch.device("cpu"), ExplorationType.RANDOM)
        assert rollout_class(env.spec, actor) is kind
        episodes = Episodes(first, cfg.num_envs, TOTAL, device=env.spec.device)
        if is_reset:
            env.spec, seeds = replace(env.spec, example_observation=first_observations(env, seeds)), None
        return kind(env, actor, episodes, seeds, memoryview(b"\0\1"), options, None, ends_early), actor

    rollout, actor = make(is_reset=True)
    leaves, omitted = rollout._env.spec.observation, [("observation",)] if is_compact else []
    layout = Layout(batch_leaves(leaves, actor.leaves, omitted), cfg.num_envs, length)
    slot = layout.slot(torch.empty(layout.nbytes, dtype=torch.uint8))
    model, views = Model(first, cfg.num_envs, options), None
    for version in range(32):
        event = draw.choice(["collect"] * 5 + ["reset", "restart", "load"])
        if event == "load":
            saved = rollout.state()
            rollout, _ = make()
            views, reason = None, rollout.load(saved)
            assert (reason is None) == (not is_tensor)
        if event == "reset" or (event == "load" and is_tensor):
            rollout.reset(None)
            for e in range(cfg.num_envs):
                model.begin(e, 0)
        if event == "restart" and not is_tensor:
            chosen = np.array([draw.random() < 0.5 for _ in range(cfg.num_envs)])
            rollout.reset_some(chosen)
            for e in np.flatnonzero(chosen):
                model.begin(e, model.episode[e] + 1)
        if event == "collect":
            for tensor in slot.tensors.values():
                tensor.view(torch.uint8).fill_(7)
            views = rollout.prepare(slot, 0) if views is None else views
            if is_compact and not is_tensor and length > 1:  # all steps share the memory of one
                assert views.next_observation[0].strides[0] == 0
            end[0] = steps = draw.randint(1, length)
            assert rollout.acts_randomly == (model.random_batches > 0)
            has_acted = not model.random_batches
            report = rollout.collect(views, version)
            rows, finished = model.collect(steps)
            for row in itertools.chain(*rows):
                if is_compact:
                    row["observation"][1] = None
                if options.max_frames_per_traj is None:
                    row["step_count"] = [None, None]
            assert rows_of(slot, steps, has_acted) == rows
            assert report.frames == steps * cfg.num_envs
            assert [*zip(report.returns.tolist(), report.lengths.tolist(), strict=True)] == finished
            assert report.policy_version == version
            # A step that is followed by resets is counted before them.
            assert progress.counts[STEPS] in (steps - 1, steps)
            # The last step does not ask whether to end.
            assert end[0] == (1 if steps == length else 0)
            for key, values in (("done", 0), ("terminated", 0), ("truncated", 0)):
                assert slot.tensors[key,].unique().tolist() == [values]
            assert (slot.tensors["collector", "policy_version"] == version).all()
            if not has_acted:
                assert not slot.tensors["output1",][:, :steps].any()
    rollout.close()


@pytest.mark.parametrize("device", [None, torch.device("cpu")])
def test_trajectories_are_those_of_a_model(device):
    """Records of any length, with abandoned and restored episodes; rewards that are not finite count as zero."""
    draw = np.random.default_rng(0)
    episodes, model = Episodes(2, 3, TOTAL, 1, device), Model(2, 3, RolloutOptions(True))
    model.ids = [each + 2**32 * TOTAL for each in model.ids]
    for number in range(60):
        steps = int(draw.integers(1, 6))
        done = draw.random((steps, 3)) < 0.3
        reward = draw.integers(0, 5, (steps, 3)).astype(np.float32)
        reward[draw.random((steps, 3)) < 0.1] = (np.nan, np.inf)[number % 2]
        expected, finished = np.zeros((steps, 3), np.int64), []
        for t, e in np.ndindex(steps, 3):
            expected[t, e] = model.ids[e]
            model.returns[e] += reward[t, e] if np.isfinite(reward[t, e]) else 0
            model.lengths[e] += 1
            if done[t, e]:
                finished.append((model.returns[e], model.lengths[e]))
                model.abandon(e)
        ids = np.full((steps, 3), -1)
        frames = reward, done, ids
        episodes.record(slice(None), *(frames if device is None else map(torch.from_numpy, frames)))
        found = episodes.take()
        assert ids.tolist() == expected.tolist()
        assert [*zip(*(each.tolist() for each in found), strict=True)] == finished
        if number % 7 == 3:
            episodes.abandon()
            for e in range(3):
                model.abandon(e)
        if number % 5 == 4:
            saved = episodes.state()
            assert {name: saved[name].tolist() for name in saved} == {
                "traj_ids": model.ids,
                "returns": model.returns,
                "lengths": model.lengths,
            }
            episodes = Episodes(2, 3, TOTAL, device=device)
            episodes.load(saved)
