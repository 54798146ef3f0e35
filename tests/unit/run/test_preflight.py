"""Ids of envs that Gymnasium does not know; commands that a parallel launcher starts several times."""

import pytest
from composed_overrides import composed

from collectx.run.preflight import copies, env_problems


@pytest.mark.parametrize(
    ("variables", "text", "is_refused"),
    [
        ({}, "", False),
        ({"WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "7"}, "torchrun runs 3 copies", True),
        ({"WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "7"}, "torchrun runs 1 copy of this command, but collectx", False),
        ({"WORLD_SIZE": "3"}, "", False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun runs 2 copies", False),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "srun runs 4 copies", False),
        ({"SLURM_STEP_NUM_TASKS": "1"}, "", False),
    ],
    ids=str,
)
def test_copies_are_told_and_those_of_torchrun_refused(monkeypatch, variables, text, is_refused):
    for name in ("WORLD_SIZE", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found, refused = copies()
    assert found.startswith(text)
    assert bool(found) is bool(text)
    assert refused is is_refused


@pytest.mark.parametrize(
    ("env_id", "text"),
    [
        ("CartPole", "env.id=CartPole does not exist. Did you mean env.id=CartPole-v1?"),
        ("CartPol-v1", "`CartPole`? If a module registers it, name the module too: env.id=MODULE:CartPol-v1"),
        ("CartPole-v9", "It provides versioned environments: [ `v0`, `v1` ]."),
    ],
)
def test_an_unknown_id_of_an_env_has_a_near_one(env_id, text):
    (problem,) = env_problems(composed(f"env=gym env.id={env_id}"))
    assert problem.endswith(text)
