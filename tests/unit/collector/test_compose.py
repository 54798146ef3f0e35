"""What a collector is composed of, for each kind of configuration: slots, batches, schedule and workers."""

import re
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
from configurations import Log, config, counting, gym_vector, mlp

from collectx import env as envs
from collectx import policy as policies
from collectx.collector import RecordedBatch, compose, slot_spec_of
from collectx.collector.compose import start_collector
from collectx.collector.pool import Channel
from collectx.errors import ConfigError
from collectx.rules import fits, problems
from collectx.transport.inline import InlineTransport
from collectx.transport.slab import SlabLayout
from collectx.user_objects import Hooks
from collectx.worker.spec import ConfigOverrides

RECORD = [RecordedBatch(0, 0, 0), RecordedBatch(1, 0, 1), RecordedBatch(1, 0, 1)]
RESUME = {"version": 7, "weights": torch.zeros(0, dtype=torch.uint8), "incarnations": {0: 2, 1: 0}, "workers": {0: {}}}
RESUME |= {"restart_counts": {0: 2, 1: 0}}
WRITES = [ConfigOverrides(hooks=Hooks(write_batch=print))] * 2
CASES = {
    "sync": ({}, {}),
    "sync-envs": ({"env": counting(3), "frames_per_batch": 30}, {}),
    "sync-overlap": ({"overlap": 1, "policy": mlp()}, {}),
    "sync-preemptive": ({"preemptive_threshold": 0.5}, {}),
    "sync-drop": ({"on_worker_failure": "drop", "min_workers": 1, "frames_per_batch": 30, "num_workers": 3}, {}),
    "sync-compact": ({"compact_obs": True, "zero_copy": True}, {}),
    "sync-storing": ({"storing_device": "cpu"}, {}),
    "async": ({"kind": "multi_async", "num_slots": 3}, {}),
    "single": ({"kind": "single"}, {}),
    "async-lag": ({"kind": "multi_async", "max_policy_lag": 2}, {}),
    "async-recorded": ({"kind": "multi_async"}, {"recorded": RECORD}),
    "async-written": ({"kind": "multi_async"}, {"overrides": WRITES}),
    "async-elastic-resumed": (
        {"kind": "multi_async", "min_workers": 1, "on_worker_failure": "restart", "max_restarts": 4},
        {"resume": RESUME},
    ),
    "network": ({"kind": "distributed_sync", "policy": mlp()}, {}),
    "nested": ({"kind": "distributed", "num_workers_per_collector": 3, "frames_per_batch": 24}, {}),
    "served": ({"kind": "multi_async", "inference": {}, "policy": mlp(), "env": counting(2)}, {}),
    "served-random": ({"kind": "multi_async", "inference": {}}, {}),
    "next-step": ({"env": gym_vector(2, "NextStep")}, {}),
}


class Recorder:
    """A launcher that starts no process, and keeps what it and its transport are told. The slots are in this
    process."""

    max_requeues = 3

    def __init__(self):
        self.calls = []

    def open_channel(self, place, launcher, slots, spec, is_served, events):
        self.slots, self.is_served = slots, is_served
        self.transport = InlineTransport(slots)
        self.transport.expect = self.expect
        self.transport.send_request = lambda worker, request: self.calls.append(("request", worker, *request))
        return Channel(self.transport, lambda spec: spec)

    def expect(self, worker, to_json):
        place = to_json()["placement"]
        self.calls.append(("expect", worker, f"incarnation {place['incarnation']} after {place['restart_count']}"))

    def start(self, worker, entry, num_replaced, previous):
        self.calls.append(("start", worker))


def composed(knobs, arguments, monkeypatch):
    """Lines about a collector."""
    recorder, log = Recorder(), Log()
    monkeypatch.setattr(compose, "open_channel", recorder.open_channel)
    cfg = config(**knobs)
    spec = envs.read_spec(cfg.env, False)
    policy = policies.build(cfg.policy, spec, cfg.seed)
    with start_collector(cfg, policy, spec, log, launcher=recorder, **arguments) as core:
        slots = recorder.slots
        lines = [f"slots: {name} = {value}" for name, value in told(slots).items() if name != "leaves"]
        lines += [f"leaf: {'.'.join(leaf.key)} {[*leaf.shape]} {leaf.dtype}" for leaf in slots.leaves]
        lines += [f"is served: {recorder.is_served}", f"version: {core.policy_version}"]
        lines += [f"{each}" for each in (*recorder.calls, *log.lines)]
        recorder.transport.slab.leases.on_lack()
        assert log.lines[-1] == ("batches_copied", {})
        assert slot_spec_of(cfg, policy, spec).layout().nbytes == slots.layout().nbytes
    return lines


def told(spec):
    return {each.name: getattr(spec, each.name) for each in fields(spec) if each.init}


def test_what_collectors_are_composed_of(monkeypatch, expected):
    """The first sync and the first async one as a whole, and how the others differ from them."""
    lines, wholes = [], {}
    for name, case in CASES.items():
        found = composed(*case, monkeypatch)
        first = wholes.setdefault("slots: stacked = True" in found, found)
        lines += ["", f"# {name}"]
        if found is first:
            lines += found
        lines += [f"- {line}" for line in first if line not in found]
        lines += [f"+ {line}" for line in found if line not in first]
    expected("compose", "\n".join(lines))


def test_what_envs_that_spend_a_step_on_a_reset_do_not_support():
    """All of it at once, where only the env that was made shows its mode."""
    options = {"max_policy_lag": 1, "max_frames_per_traj": 9, "inference": {}, "policy": mlp()}
    cfg = config("multi_async", env=gym_vector(2, "NextStep"), **options)
    assert not problems(cfg)
    spec = envs.read_spec(cfg.env, False)
    with pytest.raises(ConfigError) as refused:
        start_collector(cfg, policies.build(cfg.policy, spec, cfg.seed), spec)
    remedy = "Make the env with the autoreset_mode disabled or same_step"
    assert [
        text.partition(" cannot be used: with autoreset_mode=next_step, ")[0] for text in refused.value.problems
    ] == [
        "collector.max_frames_per_traj=9",
        "collector.max_policy_lag=1",
        "inference=server",
    ]
    assert [text.partition(remedy)[2] for text in refused.value.problems] == [
        ".",
        ", or use collector.max_policy_lag=null.",
        ", or use inference=local.",
    ]


def refusal(check, *arguments):
    """Returns what a check says; None if it finds nothing."""
    try:
        check(*arguments)
    except ConfigError as error:
        return str(error)


def test_slots_that_do_not_fit_in_memory_are_refused(monkeypatch, within):
    cfg = config("multi_async", frames_per_batch=1000)
    spec = envs.read_spec(cfg.env, False)
    policy = policies.build(cfg.policy, spec, 0)
    nbytes = SlabLayout(replace(slot_spec_of(cfg, policy, spec), num_spare=0)).nbytes
    recorder = Recorder()
    monkeypatch.setattr(compose, "open_channel", recorder.open_channel)

    def said(available, cfg=cfg):
        within(fits, "psutil", virtual_memory=lambda: SimpleNamespace(total=available))
        return refusal(lambda: start_collector(cfg, policy, spec, launcher=recorder).close())

    assert said(nbytes) is None
    assert "Use fewer frames, or collector.num_slots below 2" in said(nbytes - 1)
    assert "num_slots" not in said(1, config())
    many = config("multi_async", frames_per_batch=10**10)
    assert re.search(r"need [\d,]+ GB, but this machine has 12 GB of memory", said(12 * 10**9, many))
