"""Envs that keep their state in any of the ways of Python continue as an uncut run, or are named at the start."""

from __future__ import annotations

import pytest
import torch
from collecting import config, gym, start, through_a_file
from worlds import shapes

from collectx import env as envs
from collectx import state as states
from collectx.run.checkpointer import announce_unsaved


def _env(name):
    return gym(2, entry_point="worlds.shapes:ShapeEnv", name=name)


def _collector(name):
    return start("single", "inline", _env(name), frames_per_batch=14, total_frames=280)


def _batches(collector, num_batches):
    return [next(collector).clone() for _ in range(num_batches)]


@pytest.mark.parametrize("name", [name for name in shapes.shapes() if name not in shapes.NAMED])
def test_an_env_continues_as_the_uncut_one(name):
    """The cut is within an episode, and the state that the classes and the module have afterwards is that of the uncut
    run's end."""
    with _collector(name) as saved:
        _batches(saved, 4)
        state = through_a_file([saved.ask("state")[0], states.save_generators()])
        expected = _batches(saved, 8)
    with _collector(name) as other:
        assert other.ask("load", per_worker={0: (state[0],)}) == {0: None}
        # A worker in this process leaves the generators of random and numpy to the trainer.
        states.load_generators({key: each for key, each in state[1].items() if key != "torch"})
        for one, two in zip(_batches(other, 8), expected, strict=True):
            assert torch.equal(one["observation"], two["observation"])
            assert torch.equal(one["next", "done"], two["next", "done"])


@pytest.mark.parametrize("name", shapes.NAMED)
def test_an_env_that_cannot_be_saved_is_named(name):
    announced = []
    with _collector(name) as collector:
        cfg = config("single", "inline", _env(name))
        envs.read_spec(cfg.env, examine=announce_unsaved(cfg, lambda _, reason: announced.append(reason)))
        next(collector)
        assert "ShapeEnv.shape" in collector.ask("state")[0]["rollout"]["reason"]
    # The generator is made in a reset.
    assert len(announced) == (name != "Generator")


def test_there_are_about_a_hundred_shapes():
    assert len(shapes.shapes()) >= 98
