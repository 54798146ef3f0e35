"""Wrong configurations: all problems at once, the nearest name, the arithmetic."""

from __future__ import annotations

import re

import pytest

from collectx.cli.compose import compose
from collectx.errors import ConfigError
from collectx.run import machine
from collectx.run.advice import advice

ONE_PROBLEM = {
    # unknown names
    "collector.num_wrokers=3": r"^collector\.num_wrokers: .*did you mean collector\.num_workers\?",
    "+collector.num_wrokers=3": r"^collector\.num_wrokers: .*did you mean collector\.num_workers\?",
    "++trainer.lerning_rate=1": r"did you mean trainer\.learning_rate\?",
    "+trainer.sub.lerning_rate=1": r"^trainer\.sub\.lerning_rate: trainer=ppo has no such key",
    "num_workers=3": r"^num_workers: no such key; did you mean collector\.num_workers\?",
    "colector.num_workers=3": r"did you mean collector\.num_workers\?",
    "colector.x=3": r"^colector\.x: no such key; did you mean collector\?",
    "sed=1": r"^sed: no such key; did you mean seed\?",
    "env=cartpol": r"^env=cartpol: no such choice; did you mean cartpole\? \(valid: .*pendulum",
    "trainer=null": r"^trainer=null: no such choice",
    "enb=pendulum": r"^enb=pendulum: no such group; did you mean env\?",
    "env.kind=gim": r"^env\.kind=gim is not known; did you mean gym\?",
    # types and ranges
    "env.num_envs=abc": r"^env\.num_envs=abc: must be an integer\.",
    "env.num_envs=2.5": r"must be an integer\.",
    "env.num_envs=0": r"^env\.num_envs=0: must be at least 1\.",
    "env.num_envs=null": r"must be an integer\.",
    "env.id=[a]": r"must be a text or null",
    "collector.zero_copy=1": r"must be true or false",
    "collector.max_frames_per_traj=0": r"^collector\.max_frames_per_traj=0: must be at least 1\.",
    "collector.init_random_frames=-1": r"must be at least 0\.",
    "collector.reset_at_each_iter=null": r"must be true or false",
    "collector.total_frames=0": r"must be at least 1, or -1\.",
    "policy.hidden_sizes=64": r"must be a list of integers, such as \[1,2\]\.",
    "policy.hidden_sizes=[64,-1]": r"must be at least 1\.",
    "trainer.gamma=1.5": r"must be at least 0 and at most 1\.",
    "trainer.learning_rate=0": r"must be greater than 0\.",
    "collector.exploration_type=randon": r"one of random, mode, mean, median, deterministic; did you mean random\?",
    "seed=-1": r"^seed=-1: must be at least 0\.",
    "env=envpool": r"^env\.id is not set: give env\.id=VALUE\.",
    "collector.num_slots=${nowhere}": r"^collector\.num_slots: Interpolation key 'nowhere' not found",
    # what cannot be read
    "env.num_envs": r"not an override; write key=value",
    "env.id=a b:{": r"cannot be read",
    # rules
    "collector.total_frames=1000": (
        r"^collector\.total_frames=1000 is not a multiple of collector\.frames_per_batch=512 \(1000 / 512 = 1\.95\): "
        r"use 512 or 1024\."
    ),
    "collector.frames_per_batch=8 collector.total_frames=-1": (
        r"=8 is not a multiple of collector\.num_workers=2 x env\.num_envs=8 \(8 / 16 = 0\.50\): use 16\."
    ),
    "collector=multi_async collector.frames_per_batch=100 collector.total_frames=-1": (
        r"^collector\.frames_per_batch=100 is not a multiple of env\.num_envs=8 \(100 / 8 = 12\.50\): use 96 or 104\."
    ),
    "collector=single collector.num_workers=2": r"collector=single has one worker",
    "backend=shared_memory launcher=inline": r"launcher=inline is one process.*backend=auto",
    "backend=shared_memory collector=single": r"collector=single is one process",
    "backend=inline": r"has several processes: use backend=auto or shared_memory, or launcher=inline",
    "env=gym": r"^env\.id is not set: give a Gymnasium id",
    "env.entry_point=a:B": r"both say which env to make",
    "env=gym_vector env.id=X env.autoreset_mode=next_step collector.max_frames_per_traj=9": (
        r"^collector\.max_frames_per_traj=9: .*use env\.autoreset_mode=disabled or same_step\.$"
    ),
    "env=gym_vector env.id=X env.vectorization_mode=vector_entry_point env.wrappers=[a.B]": r"no single envs to wrap",
    "collector=multi_async trainer=meter collector.preemptive_threshold=0.5": r"comes from one worker and waits for no",
    "collector=single trainer=meter collector.preemptive_threshold=1": r"collector=single has no workers of which",
    "collector=distributed_sync trainer=meter collector.preemptive_threshold=0.5": r"over backend=gloo workers are not",
    "collector.preemptive_threshold=1.5": r"^collector\.preemptive_threshold=1\.5: must be at least 0 and at most 1\.",
    "collector.preemptive_threshold=0.5": r"trainer=ppo learns from every place: .*collector\.traj_format=cat\.$",
    "collector.trajs_per_batch=4": r"trajs_per_batch=4: padded batches .*: use collector\.traj_format=cat\.$",
    "collector.trajs_per_batch=0": r"must be at least 1\.",
    "collector.traj_format=cut": r"must be one of padded, cat",
    "collector.compact_obs=true": r"trainer=ppo learns from the observation below next: use false",
    "policy=cnn policy.strides=[1]": r"policy\.strides has 1: one entry for each convolution",
    "policy=random": r"there is nothing to train",
    "devices.device=gpu": r"^devices\.device=gpu: not a device: use cpu, cuda or cuda:N\.",
}


@pytest.mark.parametrize("line", ONE_PROBLEM)
def test_one_problem_gives_one_message(line: str):
    overrides = [line] if line in ("env.id=a b:{",) else line.split()
    with pytest.raises(ConfigError) as raised:
        compose(overrides)
    (problem,) = raised.value.problems
    assert re.search(ONE_PROBLEM[line], problem), problem


def test_all_problems_come_at_once():
    wrong = [
        "env=cartpol",
        "env.nmu_envs=4",  # nothing can be said about a choice that is not there
        "+collector.num_wrokers=3",
        "collector.frames_per_batch=1000",
        "collector.total_frames=1500",
        "trainer.gamma=2",
        "policy.hidden_sizes=x",
        "seed",
    ]
    with pytest.raises(ConfigError) as raised:
        compose(wrong)
    starts = {problem.split(":")[0] for problem in raised.value.problems}
    assert starts == {
        "env=cartpol",
        "seed",
        "policy.hidden_sizes=x",
        "collector.num_wrokers",
        "trainer.gamma=2",
        "collector.total_frames=1500 is not a multiple of collector.frames_per_batch=1000 (1500 / 1000 = 1.50)",
    }


def test_both_keys_that_need_resets_are_named_at_once():
    wrong = ["env=gym_vector", "env.id=X", "env.autoreset_mode=next_step"]
    with pytest.raises(ConfigError) as raised:
        compose([*wrong, "collector.max_frames_per_traj=9", "collector.reset_at_each_iter=true"])
    starts = [problem.split(":")[0] for problem in raised.value.problems]
    assert starts == ["collector.max_frames_per_traj=9", "collector.reset_at_each_iter=true"]
    compose([*wrong, "collector.init_random_frames=9", "collector.set_truncated=true"])


def test_the_arithmetic_of_the_issue():
    with pytest.raises(ConfigError) as raised:
        compose(["collector.frames_per_batch=1000", "collector.num_workers=3", "collector.total_frames=-1"])
    assert raised.value.problems == (
        "collector.frames_per_batch=1000 is not a multiple of collector.num_workers=3 x env.num_envs=8 "
        "(1000 / 24 = 41.67): use 984 or 1008.",
    )


@pytest.mark.parametrize(
    ("trainer", "policy", "advice"),
    [
        ("dqn", "mlp", "use policy=q_mlp or policy=q_cnn"),
        ("dqn", "random", "use policy=q_mlp or policy=q_cnn"),
        ("ppo", "q_mlp", "use policy=mlp, or trainer=dqn"),
        ("impala", "q_cnn", "use policy=cnn, or trainer=dqn"),
    ],
)
def test_a_policy_that_the_trainer_cannot_train(trainer, policy, advice):
    with pytest.raises(ConfigError) as raised:
        compose([f"trainer={trainer}", f"policy={policy}"])
    (problem,) = raised.value.problems
    assert problem.startswith(f"trainer={trainer} policy={policy}: ")
    assert advice in problem


def test_a_device_that_is_not_there():
    import torch

    index = torch.cuda.device_count()
    (problem, *_) = machine.device_problems(compose(["devices=cuda", f"devices.device=cuda:{index}"]))
    assert problem.startswith(f"devices.device=cuda:{index}: no such device; torch sees cpu")
    assert machine.device_problems(compose()) == []


def test_a_questionable_pair_is_advice_and_no_problem():
    assert "impala" in advice(compose(["collector=multi_async"]))[0]
    assert advice(compose()) == []
    random = advice(compose(["collector.init_random_frames=192000"]))
    assert ["log-probability" in random[0], "the policy never acts" in random[1]] == [True, True]
    assert advice(compose(["collector.init_random_frames=512", "trainer=meter"])) == []
    assert advice(compose(["experiment=cartpole_impala"])) == []
