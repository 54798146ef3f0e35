"""What a machine lacks for a configuration, and commands that a parallel launcher starts several times."""

import gymnasium
import pytest
import torch
from composed_overrides import composed, examine

from collectx.errors import DamagedFileError
from collectx.run import preflight
from collectx.run.preflight import copies, env_problems


@pytest.mark.parametrize(
    ("variables", "text", "is_refused"),
    [
        ({}, "", False),
        ({"WORLD_SIZE": "3", "TORCHELASTIC_RUN_ID": "7"}, "torchrun runs 3 copies", True),
        ({"WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "7"}, "torchrun runs 1 copy of this command, but collectx", False),
        ({"WORLD_SIZE": "3"}, "", False),
        ({"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "7"}, "torchrun runs 2 copies", True),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun runs 2 copies", False),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, "", False),
        ({"OMPI_COMM_WORLD_SIZE": "x"}, "", False),
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
    assert ("unset WORLD_SIZE TORCHELASTIC_RUN_ID" in found) is text.startswith("torchrun")
    assert bool(found) is bool(text)
    assert refused is is_refused


@pytest.mark.parametrize(
    ("env_id", "text"),
    [
        ("CartPole", "env.id=CartPole is unknown. Did you mean env.id=CartPole-v1?"),
        (
            "CartPol-v1",
            "Did you mean env.id=CartPole-v1? If a module registers it, name the module too: env.id=MODULE:CartPol-v1",
        ),
        (
            "dm_control/cartpole-swingup-v0",
            "is unknown. If a module registers it, name the module too: env.id=MODULE:dm_control/cartpole-swingup-v0",
        ),
        ("CartPole-v9", "is unknown. Did you mean env.id=CartPole-v1?"),
        # Of no env, as another test may have imported the package.
        ("MiniGrid-Nowhere-v0", "is unknown. Use env=minigrid env.id=minigrid:MiniGrid-Nowhere-v0"),
    ],
)
def test_an_unknown_id_of_an_env_has_a_near_one(env_id, text):
    (problem,) = env_problems(composed(f"env=gym env.id={env_id}"))
    assert problem.endswith(text)


def registered(monkeypatch, known):
    def spec(name):
        if name not in known:
            raise gymnasium.error.NameNotFound(f"no {name}")

    monkeypatch.setattr(gymnasium, "spec", spec)
    # ALE registers its names as soon as another test imports it.
    monkeypatch.setattr(gymnasium, "registry", dict.fromkeys(known))


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        ("env.id=Here-v0", []),
        (
            "env.id=Gone-v0",
            ["env.id=Gone-v0 is unknown. If a module registers it, name the module too: env.id=MODULE:Gone-v0"],
        ),
        ("env.id=module:Gone-v0", []),
        ("env.id=ALE/Gone-v0", []),
        ("env.id=ALE/Pong", ["env.id=ALE/Pong has no version. Did you mean env.id=ALE/Pong-v5?"]),
        ("env.id=null env.entry_point=user_code.cartpoles:with_pid", []),
        ("env=counting", []),
        ("env=gym_vector env.id=Gone-v0", ["env.id=Gone-v0"]),
    ],
)
def test_ids_that_gymnasium_does_not_know(monkeypatch, words, problems):
    registered(monkeypatch, {"Here-v0"})
    found = preflight.env_problems(composed(words))
    assert len(found) == len(problems)
    assert all(text.startswith(start) for text, start in zip(found, problems, strict=True))


NO_CUDA = "the installed torch has no CUDA support. Use cpu, or install a CUDA build of torch."
NO_GPU = "torch sees no GPU here. Use cpu, or check nvidia-smi and CUDA_VISIBLE_DEVICES."


@pytest.mark.parametrize(
    ("device", "version", "gpus", "reason"),
    [
        ("cpu", None, 0, None),
        ("cpu:0", None, 0, None),
        ("cpu:1", None, 0, "there is no such device. Use cpu."),
        ("cuda", None, 0, NO_CUDA),
        ("cuda", "12", 0, NO_GPU),
        ("cuda:0", "12", 1, None),
        ("cuda", "12", 1, None),
        ("cuda:1", "12", 1, "there is no such device. Use cpu or cuda:0."),
        ("cuda:2", "12", 2, "there is no such device. Use cpu, cuda:0 or cuda:1."),
        ("xpu", "12", 1, "there is no such device. Use cpu or cuda:0."),
    ],
)
def test_devices_that_a_machine_lacks(monkeypatch, device, version, gpus, reason):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.version, "cuda", version)
    assert preflight.missing_device(device) == reason


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", []),
        ("devices.device=cpu", []),
        ("devices.device=cuda:7", ["device"]),
        ("devices.policy_device=cuda:7 devices.storing_device=cuda:8", ["storing_device", "policy_device"]),
        # The GPU of a worker is that of another machine.
        ("launcher=submitit collector=multi_async devices.policy_device=cuda:7", []),
    ],
)
def test_devices_of_this_machine_are_checked(monkeypatch, words, names):
    monkeypatch.setattr(preflight, "missing_device", lambda device: f"no {device}")
    cfg = composed(words)
    found = preflight.device_problems(cfg)
    assert sorted(found) == sorted(
        f"devices.{name}={getattr(cfg.devices, name)} cannot be used: no {getattr(cfg.devices, name)}" for name in names
    )


@pytest.mark.parametrize(
    ("order", "words", "problem"),
    [
        ([(0, 1), (2, 0)], "collector.num_workers=3", None),
        ([(0, 1), (2, 0)], "collector.num_workers=2", "that run had at least 3 workers, but collector.num_workers=2"),
        ([(0,)], "collector.num_workers=1", None),
        (DamagedFileError("line 3 is damaged"), "", "line 3 is damaged"),
        ([(0,)], "collector=multi_sync", "the batches of collector=multi_sync always come in the same order"),
    ],
)
def test_a_recorded_order_must_be_repeatable(monkeypatch, order, words, problem):
    def recorded(folder, *learners):
        if isinstance(order, Exception):
            raise order
        return order

    monkeypatch.setattr(preflight, "recorded_order", recorded)
    cfg = composed(f"env=counting trainer=meter collector=multi_async {words}")
    assert "collector.order_of" not in "".join(preflight.rule_problems(cfg))
    cfg.collector.order_of = "run"
    found = [text for text in preflight.rule_problems(cfg) if "collector.order_of" in text]
    assert len(found) == (problem is not None)
    assert all(problem in text for text in found)


def test_an_id_without_its_namespace_is_completed():
    pytest.importorskip("ale_py")
    problem = "env.id=Pong-v5 is unknown. Did you mean env.id=ALE/Pong-v5?"
    assert env_problems(composed("env=pong env.id=Pong-v5")) == [problem]


@pytest.mark.parametrize(("words", "is_crowded"), [("", False), ("00 launcher=slurm", False), ("000", True)])
def test_a_batch_for_too_many_workers_tells_of_the_cores(monkeypatch, words, is_crowded):
    monkeypatch.setattr("collectx.run.cores.num_cores", lambda: 8)
    _, (text,) = examine(f"collector.num_workers=3{words}")
    assert ("But 3001 processes share 8 usable cores" in text) == is_crowded


def test_an_old_version_of_an_env_is_noted():
    note = "env.id=CartPole-v0 is an old version. The newest one: env.id=CartPole-v1"
    assert preflight.version_note(composed("env.id=CartPole-v0")) == note
    assert not preflight.version_note(composed("env.id=CartPole-v1"))
    assert not preflight.version_note(composed("env=counting"))
