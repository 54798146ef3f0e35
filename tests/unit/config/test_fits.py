"""What options require of the envs that were made."""

from types import SimpleNamespace

import pytest
import torch
from configurations import config
from gymnasium import spaces

from collectx.batch import Leaf
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.rules import fits

SEEN, ACTION = Leaf(("observation",), (1,), torch.float32), Leaf(("action",), (), torch.int64)
STEP_COUNT = Leaf(("step_count",), (1,), torch.int64)
LIMIT, EACH = {"max_frames_per_traj": 3}, {"reset_at_each_iter": True}


def said(knobs, has_interruptor=False, observation=(SEEN,), **given):
    """The problems of a configuration with envs of this spec."""
    spec = EnvSpec(2, observation, (ACTION,), spaces.Box(0, 1, (1,)), spaces.Discrete(2), **given)
    try:
        fits.check(config(**knobs), spec, has_interruptor)
    except ConfigError as error:
        return [*map(str, error.problems)]
    return []


RAGGED, EARLY = {"ragged": True, "can_reset_early": False}, {"can_reset_early": False}
COUNTED = {"observation": (SEEN, STEP_COUNT)}


@pytest.mark.parametrize(
    ("knobs", "spec", "begins"),
    [
        (LIMIT | EACH, {"has_interruptor": True}, []),
        ({}, EARLY | {"has_interruptor": True}, []),
        ({"set_truncated": True}, RAGGED, []),
        ({}, RAGGED | {"has_interruptor": True}, ["interruptor cannot be used with this vector env: "]),
        (LIMIT, RAGGED, ["collector.max_frames_per_traj=3 cannot be used: with autoreset_mode=next_step, "]),
        (LIMIT, EARLY, ["collector.max_frames_per_traj=3 cannot be used: this vector env resets its envs by itself"]),
        (EACH, EARLY, ["collector.reset_at_each_iter="]),
        (LIMIT | EACH, EARLY, ["collector.max_frames_per_traj=3 cannot", "collector.reset_at_each_iter="]),
        ({}, COUNTED, []),
        (LIMIT, COUNTED, ["collector.max_frames_per_traj=3 cannot be used: the env already observes step_count"]),
        (LIMIT, COUNTED | EARLY, ["collector.max_frames_per_traj=3 cannot", "collector.max_frames_per_traj=3 cannot"]),
    ],
)
def test_what_envs_have_to_support(knobs, spec, begins):
    problems = said(knobs, **spec)
    assert [problem[: len(begin)] for problem, begin in zip(problems, begins, strict=True)] == begins


# Options, the device of the env's tensors, and whether the policy has states.
ON_DEVICES = [
    ({}, None, False),
    ({"env_device": "cpu"}, None, False),
    ({"env_device": "cuda:0"}, None, False),
    ({"kind": "single", "policy_device": "cuda:0"}, "cuda:0", False),
    ({"kind": "single", "policy_device": "cuda"}, "cuda:0", False),
    ({"kind": "single"}, "cuda:0", False),
    ({"kind": "single", "policy_device": "cuda:0", "storing_device": "cuda:1"}, "cuda:0", False),
    ({"kind": "single", "policy_device": "cuda:0", "env_device": "cpu"}, "cuda:0", False),
    ({"kind": "single", "device": "cpu"}, "cuda:0", False),
    ({"kind": "single", "policy_device": "cuda:0"}, "cuda:0", True),
    ({"kind": "single"}, "cpu", True),
    ({"kind": "multi_sync"}, "cpu", False),
    ({"kind": "multi_sync", "policy_device": "cuda:0"}, "cuda:0", False),
    ({"kind": "multi_sync", "inference": {}}, "cpu", False),
]


def test_which_devices_of_an_env_that_returns_tensors_are_refused(expected, monkeypatch):
    # Without a GPU, torch does not know which one is meant.
    first = {torch.device("cuda"): torch.device("cuda:0")}
    monkeypatch.setattr(fits, "with_index", lambda device: first.get(device, device))
    lines = []
    for knobs, device, has_states in ON_DEVICES:
        there = None if device is None else torch.device(device)
        found = [*map(str, said(knobs, device=there))]
        if has_states:
            spec, actor = SimpleNamespace(device=there), SimpleNamespace(states=(1,), leaves=(), module=None)
            with pytest.raises(ConfigError) as refused:
                fits.check_slots(config(**knobs), spec, actor, None)
            found = [str(refused.value)]
        lines.append(f"{knobs} {device} {has_states}: {' '.join(found) or None}")
    expected("env-devices", "\n".join(lines))
