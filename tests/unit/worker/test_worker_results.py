"""Whole results of what runs in a worker: seeds, batches of a user's collector and of nested ones, profiles."""

from contextlib import closing
from dataclasses import asdict, replace
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from configurations import config, counting, mlp
from tensordict import TensorDict
from torch import nn

from collectx.batch import POLICY_VERSION, TRAJ_IDS, Leaf, batch_leaves
from collectx.collector.compose import SpecMaker
from collectx.collector.worker_record import Settings
from collectx.errors import WorkerError
from collectx.policy.flat_weights import FlatWeights
from collectx.rollout.loop import RolloutStopped
from collectx.transport.base import Arrival, Fill, Request, Reset, SlotReport, SlotSpec
from collectx.transport.inline import InlineTransport
from collectx.user_objects import Hooks, UserCollector, UserEnvConfig, UserPolicyConfig
from collectx.worker.nested import NestedSource, nested_options
from collectx.worker.spec import ConfigOverrides, Placement, ProcessHistory, env_seed, env_seeds, policy_seed
from collectx.worker.user_collector import UserCollectorSource

PLACEMENTS = [Placement(0, 0, 2), Placement(1, 1, 2), Placement(0, 0, 2, 1), Placement(2, 1, 2, 7)]


def test_the_seeds_of_envs_and_policies(expected):
    """Other versions reproduce runs by the seeds that a run gives to envs and policies."""
    maker = SpecMaker(config(env=counting(2), seed=5), (), 2)
    result = {f"env {index}.{life}": env_seed(5, index, life) for index in range(3) for life in (0, 1, 2)}
    for each in PLACEMENTS:
        name = f"worker {each.worker}, index {each.run_index}.{each.incarnation}"
        result[f"policy of {name}"] = [policy_seed(5, each), policy_seed(5, each, True)]
        result[f"envs of {name}"] = env_seeds(maker.make(each.worker, ProcessHistory(each.incarnation)), 5)
    expected("seeds", result)
    assert env_seed(0, 0) != env_seed(1, 0)


# --- a user's collector ---

LEAVES = batch_leaves([Leaf(("observation",), (2,), torch.float32)], [Leaf(("action",), (), torch.int64)])


class Link:
    """What a worker has of its transport: slots of two rows and three steps, and the weights that are published."""

    def __init__(self, leaves=LEAVES, weights_nbytes=0, rows=2):
        spec = SlotSpec(leaves, rows, 3, 1, 2, False, False, weights_nbytes)
        self.transport = InlineTransport(spec)
        self.inner = self.transport.link(0)
        self.slots = [self.inner.slots[slot] for slot in range(2)]
        self.slot_spec, self.stop, self.replies = spec, [0], []

    def refresh(self, read, version):
        return self.inner.refresh(read, version)

    def reply(self, value, error=None):
        self.replies.append((value, None if error is None else f"{type(error).__name__}: {error}"))

    def on_disconnect(self, callback):
        self.replies.append("watched")
        return lambda: self.replies.append("not watched")


class Mine:
    """A user's collector: writes down what is called, and yields the batches that the test made."""

    policy_version = 0

    made = None

    def __init__(self, env, policy, **keywords):
        type(self).made = self
        self.calls, self.batches = (
            [("made", env() if callable(env) else [each() for each in env], policy, keywords)],
            [],
        )

    def __iter__(self):
        while self.batches:
            yield self.batches.pop(0)

    def set_seed(self, seed, **options):
        self.calls.append(("set_seed", seed, options))

    def reset(self):
        self.calls.append(("reset",))

    def update_policy_weights_(self, weights):
        self.policy_version += 10
        self.calls.append(("weights", weights["weight"].tolist()))

    def shutdown(self):
        self.calls.append(("shutdown",))

    def close(self):
        self.calls.append(("close",))


def frames(done, number, versions=None, ids=None):
    """Returns a batch of two rows and three steps, with these ends of episodes."""
    ends = torch.tensor(done, dtype=torch.bool)[..., None]
    values = {
        "observation": torch.full((2, 3, 2), float(number)),
        "action": torch.full((2, 3), number),
        "next": {
            "observation": torch.full((2, 3, 2), number + 1.0),
            "reward": torch.arange(6.0).reshape(2, 3, 1),
            "terminated": ends,
            "truncated": torch.zeros_like(ends),
        },
    }
    own = {"policy_version": versions, "traj_ids": ids}
    own = {name: torch.tensor(value) for name, value in own.items() if value is not None}
    return TensorDict(values | ({"collector": own} if own else {}), [2, 3])


def test_the_batches_of_a_users_collector(expected):
    policy, link, lines = (
        nn.Linear(1, 1, bias=False),
        Link(weights_nbytes=FlatWeights(nn.Linear(1, 1, bias=False)).nbytes),
        [],
    )
    env = UserEnvConfig(kind="python", create=lambda **keywords: f"env {keywords}", kwargs={"size": 3})
    hooks = Hooks(init_fn=lambda: lines.append("init_fn"), pre_collect_hook=lambda: lines.append("pre_collect_hook"))
    hooks = replace(
        hooks, post_collect_hook=lambda batch: lines.append(f"post_collect_hook {getattr(batch, 'shape', None)}")
    )
    cfg = config("distributed", env=env, policy=UserPolicyConfig(kind="python", factory=lambda: policy), seed=5)
    made = UserCollector(Mine, {"extra": 1}, 2)
    spec = SpecMaker(cfg, [ConfigOverrides(hooks=hooks, user_collector=made)] * 2, 2).make(1, ProcessHistory(1))
    source = UserCollectorSource(spec, made, link)
    mine = Mine.made

    def fill(slot, reset=None):
        began = perf_counter()
        try:
            report = source.fill(Fill(slot, reset))
        except Exception as error:
            lines.append(f"fill {slot} {reset}: {type(error).__name__}: {error}")
            return
        tensors = link.slots[slot].tensors
        lines.append(f"fill {slot} {reset}: version {report.policy_version}, {report.frames} frames")
        is_within = 0 < report.env_s <= perf_counter() - began
        lines.append(f"    {is_within} {report.policy_s} {report.returns.tolist()} {report.lengths.tolist()}")
        for key in (("action",), ("next", "done"), TRAJ_IDS, POLICY_VERSION):
            lines.append(f"    {'.'.join(key)} {tensors[key].reshape(2, 3).long().tolist()}")

    def publish(value):
        link.transport.publish({None: lambda buffer: buffer[:4].view(torch.float32).fill_(value)})
        source.refresh()

    ids = [[4, 4, 6], [5, 5, 5]]
    mine.batches = [
        frames([[0, 1, 0], [0, 0, 0]], 1),
        frames([[0, 0, 1], [1, 0, 0]], 2, [[0] * 3, [10] * 3]),
        frames([[0, 0, 0], [0, 0, 1]], 3, [[20] * 3] * 2, ids),
        # Padding, in no trajectory.
        frames([[0, 1, 0], [0, 0, 0]], 8, None, [[7, 7, -1], [8, 8, 8]]),
        frames([[1, 0, 0], [0, 0, 0]], 4, [[77, 10, 20], [0, 0, 0]]),
        TensorDict({"observation": torch.zeros(6, 2)}, [6]),
        TensorDict({"observation": torch.zeros(2, 3, 3), "own": torch.zeros(2, 3)}, [2, 3]),
        "words",
    ]
    source.refresh()
    fill(0)
    publish(0.5)
    fill(1)
    publish(1.5)
    source.refresh()
    fill(0, Reset())
    fill(1, Reset(7))
    fill(1, Reset(8, True))
    fill(0)
    for _ in range(3):
        fill(0)
    for name in ("state", "get_attr"):
        source.reply(Request(name))
    source.close()
    expected("user-collector", "\n".join([*lines, *map(str, mine.calls), *map(str, link.replies)]))


# --- a collector in a worker ---


def test_the_options_of_nested_collectors(expected):
    lines = []
    for kind in ("distributed", "distributed_sync"):
        knobs = {"num_workers_per_collector": 3, "frames_per_batch": 24, "min_workers": 1, "on_worker_failure": "drop"}
        for random_frames in (None, 5, 6):
            options = config(kind, **knobs, init_random_frames=random_frames).collector
            inner = asdict(nested_options(options))
            lines.append(f"{kind} {random_frames}: {inner['init_random_frames']}")
        outer = asdict(options)
        lines += [f"    {name} {outer[name]} -> {value}" for name, value in inner.items() if value != outer[name]]
    lines.append(f"inherited: {', '.join(name for name, value in inner.items() if value == outer[name])}")
    expected("nested-options", "\n".join(lines))


class Inner:
    """A collector in a worker: two workers, whose batches the test makes."""

    def __init__(self):
        self.calls, self.batches, self.version, self.envs_per_worker = [], [], -1, 2
        self.last_batch_info, self.settings = None, Settings()

    def publish(self, policy):
        self.version += 1
        self.calls.append(("publish", type(policy).__name__, self.version))
        return self.version

    def wait_until_idle(self):
        self.calls.append("wait_until_idle")

    def request_reset(self, reset):
        self.calls.append(reset)

    def __next__(self):
        batch = self.batches.pop(0)
        if isinstance(batch, Exception):
            raise batch
        tensors, parts = batch
        parts = [Arrival(worker, 0, report) for worker, report in parts]
        self.last_batch_info = SimpleNamespace(parts=parts, settings=())
        return tensors

    def change(self, kind, name, contents):
        self.calls.append((kind, name, contents))
        return {0: [kind, name], 1: [len(contents)]}

    def get_attr(self, name):
        return {0: [name, 1], 1: [2]}

    def interrupt(self):
        self.calls.append("interrupt")

    def close(self):
        self.calls.append("close")


def test_a_worker_that_is_a_collector(expected, monkeypatch):
    cfg = config("distributed", env=counting(1), policy=mlp(), num_workers_per_collector=2, frames_per_batch=6)
    spec = SpecMaker(cfg, (), 1).make(1, ProcessHistory(2))
    inner, built = Inner(), []

    def build(cfg, policy, env_spec, overrides, outer):
        built.append((type(policy).__name__, len(overrides), outer == spec.placement, cfg.collector.kind))
        inner.publish(policy)
        return inner

    leaves = (Leaf(("action",), (), torch.int64), Leaf(POLICY_VERSION, (), torch.int64))
    link = Link(leaves, 448)
    with closing(link.transport):
        source = NestedSource(spec, link, build)
        lines = [str(each) for each in built]

        def part(worker, version, number):
            arrays = np.array([number + 0.5]), np.array([number]), 0.5 * number, 0.25 * number
            metrics = np.full((2, 1), float(number))
            return worker, SlotReport(version, 3, number, 2.0 * number, *arrays, metrics)

        def fill(reset=None, *parts):
            action = torch.arange(6).reshape(2, 3) + len(lines)
            inner.batches.append(
                (TensorDict({"action": action, "collector": {"policy_version": action}}, [2, 3]), parts)
            )
            report = source.fill(Fill(1, reset))
            values = {name: getattr(report, name) for name in SlotReport.__slots__}
            lines.append(
                str({name: np.asarray(each).tolist() if name != "added" else each for name, each in values.items()})
            )
            lines.append(str({".".join(key): each.tolist() for key, each in link.slots[1].tensors.items()}))

        def publish(value):
            link.transport.publish({None: lambda buffer: buffer.fill_(value)})
            for _ in range(2):
                source.refresh()

        publish(1)
        fill(None, part(0, 0, 1), part(1, 1, 2))
        publish(2)
        publish(3)
        fill(Reset(4), part(0, 1, 3))
        fill(None, part(1, 3, 4), part(0, 2, 5))
        for request in (
            Request("ready"),
            Request("get_attr", ("size",)),
            Request("change", ([("call", "go", ((1,), {})), ("set_attr", "size", (True, [1, 2, 3, 4]))],)),
            Request("change", ([("set_attr", "size", (False, [1, 2]))],)),
            Request("get_attr", ()),
            Request("envs"),
        ):
            source.reply(request)
        inner.batches = [WorkerError("gone")] * 2
        with pytest.raises(WorkerError):
            source.fill(Fill(0))
        link.stop = [1]
        with pytest.raises(RolloutStopped):
            source.fill(Fill(0))
        source.close()
    expected("nested", "\n".join([*lines, *map(str, inner.calls), *map(str, link.replies)]))


# --- profiles ---
