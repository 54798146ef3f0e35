"""Wrong configurations: unknown names, types and ranges, all problems at once. Rules are in test_rules.py."""

import dataclasses
import typing

import pytest
from composed_overrides import examine

from collectx.cli import signatures
from collectx.cli.compose import compose
from collectx.config.check import check_option
from collectx.config.convert import members
from collectx.config.problem import Problem
from collectx.config.registry import GROUPS, schemas
from collectx.config.schema.run import SECTIONS
from collectx.errors import ConfigError

AN_INTEGER = "is not an integer."
# An override -> a part of its only message, which names the key.
WRONG_VALUES = {
    "checkpoint=none": "Set one of its options, as in checkpoint.every_min=null.",
    "trainer=custom": "Set trainer.target=MODULE:NAME.",
    "env.num_envs=2.5": AN_INTEGER,
    "env.num_envs=null": AN_INTEGER,
    "env.num_envs=0": "at least 1.",
    "env.id=[a]": "is neither a text nor null.",
    "env.kind=gim": "is unknown. Did you mean gym?",
    "env.kind=[gym]": "Valid names: gym, gym_vector,",
    "env.kind=${nowhere}": "cannot be resolved: Interpolation key 'nowhere' not found",
    "collector.zero_copy=1": "is neither true nor false.",
    "collector.max_frames_per_traj=0": "at least 1, or null.",
    "collector.init_random_frames=-1": "at least 0, or null.",
    "collector.total_frames=0": "at least 1, or -1 for no limit.",
    "collector.total_frames=1e30": "at least 1 and below 2**63, or -1 for no limit.",
    "collector.frames_per_batch=1e30": "at least 1 and below 2**63.",
    "policy.hidden_sizes=[64,1e30]": "at least 1 and below 2**63.",
    "collector.preemptive_threshold=1.5": "must be from 0 to 1, or null.",
    "collector.exploration_type=randon": "is unknown. Did you mean random? It must be random, mode,",
    "collector.traj_format=cut": "must be padded or cat.",
    "policy.hidden_sizes=64": "a list of integers, such as [1,2].",
    "policy.hidden_sizes=[64,-1]": "at least 1.",
    "trainer.gamma=1.5": "must be from 0 to 1.",
    "trainer.learning_rate=0": "greater than 0 and finite.",
    "trainer.learning_rate=inf": "greater than 0 and finite.",
    "trainer.max_grad_norm=0": "greater than 0.",
    "seed=-1": "at least 0 and below 2**61.",
    "seed=1e30": "at least 0 and below 2**61.",
    "run.overwrite=1": "is neither true nor false.",
    "collector.num_slots=": "is empty. Give an integer.",
    "run.resume=true": "must be never or auto.",
    "env=envpool": "env.id=VALUE",
    "env=counting env.observation_size=2": "at least 3.",
    "env=counting env.episode_length=0": "at least 1.",
    "env=gym_vector env.id=X env.vectorization_mode=threads": "must be vector_entry_point, sync or async.",
    "policy.activation=sigmoid": "must be tanh, relu, silu, gelu or elu.",
}
# Overrides -> the only message, from the source of what takes the arguments.
WRONG_ARGUMENTS = {
    "env.kwargs={sutton_reward:true}": "is not an argument of gymnasium.envs.classic_control.cartpole:CartPoleEnv. "
    "Did you mean env.kwargs.sutton_barto_reward?",
    "env.entry_point=user_code.faulty:FaultyEnv env.id=null env.kwargs.at_stpe=1": "Did you mean env.kwargs.at_step?",
    "env.wrappers=[{TimeLimit:{max_episode_step:1}}]": "Did you mean env.wrappers[0].max_episode_steps?",
    "policy=custom policy.target=user_code.cartpoles:Constant policy.kwargs.sizes=3": "policy.kwargs.sizes is not an "
    "argument of ",
    "env.kwargs={max_episode_steps:3,render_mode:null} env.wrappers=[{TimeLimit:{max_episode_steps:3}}]": None,
    "env=gym_vector env.id=CartPole-v1 env.vectorization_mode=sync env.kwargs={max_episode_steps:3}": None,
    "env=gym env.id=Nowhere-v0 env.kwargs.x=1": None,
    "env=halfcheetah env.kwargs.x=1": None,  # it takes any
    "policy=custom policy.target=nowhere.at:all policy.kwargs.x=1": None,
}


@pytest.mark.parametrize("override", WRONG_VALUES)
def test_a_wrong_value_is_one_problem(override: str):
    (problem,) = examine(override)[1]
    key = "env.id" if override == "env=envpool" else override.split()[-1].partition("=")[0]
    assert problem.startswith(key)
    assert WRONG_VALUES[override] in problem


def test_all_problems_come_at_once():
    expected = {
        "env=cartpol": ["env=cartpol does not exist. Did you mean env=cartpole? To list all: collectx list env"],
        "env.nmu_envs=4": [],  # nothing can be said about a choice that is not there
        "launcher=null": ["launcher=null does not exist. Valid names: inline, local,"],
        "enb=pendulum": ["enb is not an option. Did you mean env?"],
        "enviroment=cartpole": ["enviroment is not an option. Did you mean env=NAME?"],
        "colector.x=3": ["colector.x is not an option. Did you mean collector?"],
        "colector.num_workers=3": ["colector.num_workers is not an option. Did you mean collector.num_workers?"],
        "device=cuda": ["device is not an option. Did you mean devices=NAME or devices.device?"],
        "eval.every=3": ["eval.every is not an option. Did you mean eval.every_batches?"],
        "num_workers=3": ["num_workers is not an option. Did you mean collector.num_workers?"],
        "run.overwrit=true": ["run.overwrit is not an option. Did you mean run.overwrite?"],
        "sed=1": ["sed is not an option. Did you mean seed?"],
        "collector.num_wrokers=3": [
            "collector.num_wrokers is not an option of collector=multi_sync. Did you mean collector.num_workers?"
        ],
        "+policy.hidden_size=3": [
            "policy.hidden_size is not an option of policy=mlp. Did you mean policy.hidden_sizes?"
        ],
        "++trainer.lerning_rate=1": [
            "trainer.lerning_rate is not an option of trainer=ppo. Did you mean trainer.learning_rate?"
        ],
        "+trainer.sub.lerning_rate=1": ["trainer.sub.lerning_rate is not an option of trainer=ppo. "],
        "collector.num_slots=${nowhere}": [
            "collector.num_slots cannot be resolved: Interpolation key 'nowhere' not found"
        ],
        "debug=": ["debug= names no choice. Choose one of: inline, tiny."],
        "devices=gpu": ["devices=gpu does not exist. Did you mean devices=cuda?"],
        "seed": ["seed has no value. Write key=value"],
        "=": ["= has no key. Write key=value"],
        "env.id=a b:{": ["env.id=a b:{ cannot be read. Close all brackets"],
        "policy.hidden_sizes=x": ["policy.hidden_sizes=x is not a list of integers"],
    }
    with pytest.raises(ConfigError) as raised:
        compose(list(expected))
    problems = list(raised.value.problems)
    for words in filter(None, expected.values()):
        (problem,) = (problem for problem in problems if problem.startswith(words[0]))
        assert all(word in problem for word in words), problem
        problems.remove(problem)
    assert problems == []


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("policy=net:Actor", "policy=custom policy.target=net:Actor"),
        ("env=mine:Env", "env=gym env.entry_point=mine:Env"),
        ("logger=mine:Logger", "logger=custom logger.custom.target=mine:Logger"),
    ],
)
def test_a_class_as_a_choice_is_answered_with_what_to_type(typed, meant):
    with pytest.raises(ConfigError) as raised:
        compose([typed])
    assert list(raised.value.problems) == [f"{typed} does not exist. To use your own, type {meant}"]


@pytest.mark.sample(5)
@pytest.mark.parametrize("line", WRONG_ARGUMENTS)
def test_arguments_that_the_target_does_not_have(line: str):
    found = signatures.problems(examine(line)[0])
    assert len(found) == (WRONG_ARGUMENTS[line] is not None)
    assert all(WRONG_ARGUMENTS[line] in problem for problem in found), found
    assert signatures.problems(examine(f"{line} launcher=slurm")[0]) == []  # the nodes may have other packages


SOURCES = {
    "def make(self, /, size): ...": ("size",),
    "class make:\n def __init__(self, /, size, *, more): ...": ("size", "more"),
    "class make:\n def __init__(self, hidden, /, size): ...": ("size",),
    "class Base:\n def __init__(self, size): ...\nclass make(Base): ...": ("size",),
    "def make(size, **others): ...": None,
    "make = 3": None,
    "raise RuntimeError": None,
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_arguments_of_what_is_imported(source: str, tmp_path, monkeypatch):
    module = f"sourced{[*SOURCES].index(source)}"
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert signatures.parameters(f"{module}:make") == SOURCES[source]


def test_no_integer_is_too_large_for_64_bits():
    classes = {*SECTIONS.values(), *(cls for group in GROUPS for cls in schemas(group).values())}
    options = [
        (field, hint)
        for cls in classes
        for field in dataclasses.fields(cls)
        if int in members(hint := typing.get_type_hints(cls)[field.name])
        and not {"maximum", "bits"} & field.metadata.keys()
    ]
    assert len(options) > 50
    for field, hint in options:
        assert check_option(field.name, 2**63 - 1, hint, field.metadata) == 2**63 - 1
        problem = check_option(field.name, 1e30, hint, field.metadata)
        assert isinstance(problem, Problem), field.name
        assert "below 2**63" in problem.text()
