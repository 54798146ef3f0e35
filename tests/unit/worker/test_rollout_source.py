"""The batches of workers, as a whole: which frames are where, with which versions and ids, and how each batch began."""

from contextlib import closing

import pytest
import torch
from configurations import config, counting
from torch import nn

from collectx import env as envs
from collectx.batch import POLICY_VERSION, TRAJ_IDS
from collectx.collector import slot_spec_of
from collectx.collector.compose import SpecMaker
from collectx.policy.flat_weights import FlatWeights
from collectx.transport.base import Fill, Request, Reset
from collectx.transport.inline import InlineTransport
from collectx.user_objects import UserPolicyConfig
from collectx.worker.inference.rollout import split
from collectx.worker.rollout_source import RolloutSource
from collectx.worker.spec import ConfigOverrides, ProcessHistory

ENVS = {"env": counting(2, 3, 3), "frames_per_batch": 20}


class Constant(nn.Module):
    """Acts with its weight."""

    def __init__(self, value=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((), value))

    def forward(self, observation):
        return self.weight.long().expand(observation.shape[:-1])


SHARED = Constant(1.0)
CASES = {
    "two envs": ({**ENVS}, {}),
    "second worker, third life": ({**ENVS}, {"worker": 1, "incarnation": 2}),
    "one env": ({"env": counting(1, 3, 3), "frames_per_batch": 8}, {}),
    "fewer steps": ({**ENVS}, {"steps": 2}),
    "ends early": ({**ENVS}, {"should_end": True}),
    "preemptive": ({**ENVS, "preemptive_threshold": 0.5}, {}),
    "resets each time": ({**ENVS, "reset_at_each_iter": True}, {}),
    "time limit": ({**ENVS, "max_frames_per_traj": 2}, {}),
    "checked": ({**ENVS, "check_finite": True}, {}),
    "the trainer's policy": ({**ENVS, "policy": UserPolicyConfig(kind="python", policy=SHARED)}, {}),
    "a policy of its own": ({**ENVS, "policy": UserPolicyConfig(kind="python", factory=Constant)}, {}),
    "that keeps its weights": (
        {**ENVS, "policy": UserPolicyConfig(kind="python", factory=lambda: Constant(1.0))},
        {"keeps_weights": True},
    ),
}


class Made:
    """A worker in this process, and lines about its batches."""

    def __init__(self, knobs, worker=0, incarnation=0, should_end=False, is_inline=True, **overrides):
        cfg = config("multi_sync", **knobs)
        spec = envs.read_spec(cfg.env, isinstance(cfg.policy, UserPolicyConfig))
        policy = cfg.policy.policy or cfg.policy.factory() if isinstance(cfg.policy, UserPolicyConfig) else None
        self.transport, self.lines = InlineTransport(slot_spec_of(cfg, policy, spec)), []
        self.end = self.left = 3
        overrides |= {"should_end": self.should_end} if should_end else {}
        maker = SpecMaker(cfg, [ConfigOverrides(**overrides)] * 2, spec.num_envs)
        self.spec, self.link = maker.make(worker, ProcessHistory(incarnation)), self.transport.link(worker)
        self.source = RolloutSource(self.spec, self.link, is_inline)

    def should_end(self):
        self.left -= 1
        return self.left == 0

    def publish(self, value):
        write = FlatWeights(Constant(value)).write if self.transport.spec.weights_nbytes else lambda buffer: None
        self.transport.publish({None: write})
        self.source.refresh()

    def fill(self, reset=None):
        self.left = self.end
        report = self.source.fill(Fill(0, reset))
        tensors = self.link.slots[0].tensors
        self.lines.append(
            f"{reset}: version {report.policy_version}, {report.frames} frames, returns {report.returns.tolist()}, "
            f"lengths {report.lengths.tolist()}"
        )
        steps = report.frames // self.spec.num_envs
        for row in range(len(tensors[TRAJ_IDS])):
            frames = zip(
                tensors["observation",][row, :steps].tolist(),
                tensors["next", "observation"][row, :steps].tolist(),
                tensors["next", "done"][row, :steps, 0].tolist(),
                strict=True,
            )
            # Env, episode and step of each frame; what follows an end.
            texts = [f"{'.'.join(map(str, now))}{f' ({after[2]})' if done else ''}" for now, after, done in frames]
            ids, versions = (tensors[key][row, :steps].unique().tolist() for key in (TRAJ_IDS, POLICY_VERSION))
            self.lines.append(f"    {', '.join(texts)}; ids {ids}, versions {versions}")
        if isinstance(self.spec.cfg.policy, UserPolicyConfig):
            self.lines.append(f"    actions {tensors['action',][:, :steps].unique().tolist()}")


def test_the_batches_of_workers(expected):
    lines = []
    for name, (knobs, options) in CASES.items():
        made = Made(knobs, **options)
        with closing(made.source):
            made.publish(0.0)
            made.fill()
            made.fill()
            if name == "preemptive":
                made.transport.preempt(True)
            SHARED.weight.data.fill_(0.0)
            made.publish(1.0)
            made.fill(Reset())
            made.fill(Reset(4, True))
            SHARED.weight.data.fill_(1.0)
        lines += [f"# {name}", *made.lines]
    expected("batches", "\n".join(lines))


@pytest.mark.parametrize("is_inline", [False, True])
def test_an_inline_worker_leaves_the_generators_of_the_trainer_alone(is_inline):
    before = torch.random.get_rng_state()
    made = Made(ENVS, is_inline=is_inline)
    with closing(made.source):
        made.publish(0.0)
        made.fill()
        made.source.reply(Request("state"))
    assert torch.equal(torch.random.get_rng_state(), before) is is_inline


@pytest.mark.parametrize(
    ("num_envs", "num_groups", "bounds"),
    [(1, 1, [(0, 1)]), (4, 2, [(0, 2), (2, 4)]), (5, 2, [(0, 2), (2, 5)]), (3, 3, [(0, 1), (1, 2), (2, 3)])],
)
def test_envs_are_split_into_groups(num_envs, num_groups, bounds):
    assert [(rows.start, rows.stop) for rows in split(num_envs, num_groups)] == bounds
