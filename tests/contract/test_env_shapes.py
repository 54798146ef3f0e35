"""Envs that keep their state in any of the ways of Python continue as an uncut run, or are named at the start."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from configurations import config, gym, start, through_a_file
from user_code import shapes

from collectx import env as envs
from collectx import state as states
from collectx.run.checkpointer import announce_unsaved


def _env(name):
    return gym(2, entry_point="user_code.shapes:ShapeEnv", name=name)


def _minigrid(name):
    pytest.importorskip("minigrid", reason="needs the dev extra")
    return replace(gym(2, f"minigrid:MiniGrid-{name}-v0"), exclude_keys=["mission"])


def _collector(env, total_frames=280):
    return start("single", "inline", env, frames_per_batch=14, total_frames=total_frames)


def _batches(collector, num_batches):
    return [next(collector).clone() for _ in range(num_batches)]


@pytest.mark.sample(32)
@pytest.mark.parametrize("name", [name for name in shapes.shapes() if name not in shapes.NAMED])
def test_an_env_continues_as_the_uncut_one(name):
    """The cut is within an episode, and the state that the classes and the module have afterwards is that of the uncut
    run's end."""
    with _collector(_env(name)) as saved:
        _batches(saved, 4)
        state = through_a_file([saved.ask("state")[0], states.save_generators()])
        expected = _batches(saved, 8)
    with _collector(_env(name)) as other:
        assert other.ask("load", per_worker={0: (state[0],)}) == {0: None}
        # A worker in this process leaves the generators of random and numpy to the trainer.
        states.load_generators({key: each for key, each in state[1].items() if key != "torch"})
        for one, two in zip(_batches(other, 8), expected, strict=True):
            assert torch.equal(one["observation"], two["observation"])
            assert torch.equal(one["next", "done"], two["next", "done"])


@pytest.mark.parametrize("name", shapes.NAMED)
def test_an_env_that_cannot_be_saved_is_named(name):
    announced = []
    with _collector(_env(name)) as collector:
        cfg = config("single", "inline", _env(name))
        envs.read_spec(cfg.env, examine=announce_unsaved(cfg, lambda _, reason: announced.append(reason)))
        next(collector)
        assert "ShapeEnv.shape" in collector.ask("state")[0]["rollout"]["reason"]
    assert len(announced) == 1


@pytest.mark.sample(1)
@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium.*")
@pytest.mark.parametrize(
    "name", ["Empty-Random-6x6", "DoorKey-5x5", "MultiRoom-N2-S4", "Dynamic-Obstacles-5x5", "Fetch-5x5-N2"]
)
def test_minigrid_continues_as_the_uncut_one(name):
    cuts = (1, 9, 30)
    states_at, uncut = {}, []
    with _collector(_minigrid(name), 700) as saved:
        for batch in range(50):
            if batch in cuts:
                states_at[batch] = through_a_file(saved.ask("state")[0])
            uncut += _batches(saved, 1)
    for cut, state in states_at.items():
        with _collector(_minigrid(name), 700) as other:
            assert other.ask("load", per_worker={0: (state,)}) == {0: None}
            for one, two in zip(_batches(other, 20), uncut[cut:], strict=False):
                for key in one.keys(include_nested=True, leaves_only=True):
                    assert torch.equal(one[key], two[key]), key


def test_there_are_about_a_hundred_shapes():
    assert len(shapes.shapes()) >= 98
