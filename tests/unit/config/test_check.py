"""Wrong configurations: unknown names, types and ranges, all problems at once; values that are converted. Rules are in
test_rules.py."""

import contextlib
import dataclasses
import itertools
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from composed_overrides import examine

from collectx.cli.compose import compose
from collectx.config.check import check_config, check_option, convert, describe, members, out_of_range, wrong_type
from collectx.config.problem import PYTHON, YAML, Problem
from collectx.config.registry import GROUPS, schemas
from collectx.config.schema.run import SECTIONS
from collectx.errors import ConfigError
from collectx.run import preflight

WRONG_VALUES = [
    "checkpoint=none",
    "trainer=custom",
    "env.num_envs=2.5",
    "env.num_envs=null",
    "env.num_envs=0",
    "env.id=[a]",
    "env.kind=gim",
    "env.kind=[gym]",
    "env.kind=${nowhere}",
    "collector.zero_copy=1",
    "collector.max_frames_per_traj=0",
    "collector.init_random_frames=-1",
    "collector.total_frames=0",
    "collector.total_frames=1e30",
    "collector.frames_per_batch=1e30",
    "policy.hidden_sizes=[64,1e30]",
    "collector.preemptive_threshold=1.5",
    "collector.exploration_type=randon",
    "collector.traj_format=cut",
    "policy.hidden_sizes=64",
    "policy.hidden_sizes=[64,-1]",
    "trainer.gamma=1.5",
    "trainer.learning_rate=0",
    "trainer.learning_rate=inf",
    "trainer.max_grad_norm=0",
    "seed=-1",
    "seed=1e30",
    "run.overwrite=1",
    "collector.num_slots=",
    "run.resume=true",
    "env=envpool",
    "env=counting env.observation_size=2",
    "env=counting env.episode_length=0",
    "env=gym_vector env.id=X env.vectorization_mode=threads",
    "policy.activation=sigmoid",
    "env.num_envs=1",
    "env.num_envs=",
    "env.num_envs=${seed}",
    "collector.total_frames=-1",
    "collector.total_frames=-2",
    "collector.max_policy_lag=-1",
    "collector.sync=true",
    "collector=rpc collector.sync=1 trainer=meter",
    "policy.hidden_sizes=[]",
    "policy.hidden_sizes=[null]",
    "policy.hidden_sizes=[1,a]",
    "policy=random policy.hidden_sizes=[1] trainer=meter",
    "trainer=meter trainer.gamma=0.5",
    "trainer=dqn policy=q_mlp trainer.clip=1",
    "env.kwargs=3",
    "env.info_keys=a",
    "env.info_keys=[1.5,[a]]",
    "env.metrics=[a,{b:c}]",
    "launcher=slurm launcher.setup=a",
    "launcher=slurm launcher.time=",
    "launcher=slurm launcher.gpus=-1",
    "backend.port=0",
    "backend.port=65536",
    "backend.port=65535",
    "checkpoint.every_min=0",
    "checkpoint=3",
    "checkpoint={}",
    "checkpoint.keepbest=a",
    "eval=null",
    "logger.csv=3",
    "logger.csv.nothing=3",
    "sweep.objective=mean_retur",
    "sweep.objective=[mean_return,frames]",
    "sweep.objective=won",
    "sweep.objective=won env.metrics=[won]",
    "tune.minutes=0",
    "tune.minute=1",
    "devices.device=3",
    "trainer.kind=null",
    "trainer.kind=pp",
    "inference.kind=serve",
    "seed=a",
    "seed=0",
    "seed=1.0",
    "run.max_batches=0",
    "policy.target=net:Actor",
    "seed=0..3",
    "collector.num_workers=auto",
    "trainer=custom trainer.target=a:B trainer.lr=0.1",
    "env.name=CartPole-v1",
    "env.max_episode_steps=100 env.render_mode=human",
    "env=counting env.max_episode_steps=100",
    "trainer.n_steps=2048",
    "logger.project=x",
    "wandb=true",
    "tensorboard=true",
    "run_dir=a name=b output_dir=c log_dir=d",
    "render_mode=human",
    "gpu=0 device=cuda",
    "render=true best=true",
    "total_steps=1000 frame_stack=4",
    "env.frame_stack=4 policy.width=64 policy.net_arch=64",
    "trainer=custom trainer.target=a:B batch_size=64",
]
# Overrides -> the only message, from the source of what takes the arguments.
WRONG_ARGUMENTS = {
    "env.kwargs={sutton_reward:true}": "is not an argument of gymnasium.envs.classic_control.cartpole:CartPoleEnv. "
    "Did you mean env.kwargs.sutton_barto_reward?",
    "env.entry_point=user_code.faulty:FaultyEnv env.id=null env.kwargs.at_stpe=1": "Did you mean env.kwargs.at_step?",
    "env.wrappers=[{TimeLimit:{max_episode_step:1}}]": "Did you mean env.wrappers[0].max_episode_steps?",
    "policy=custom policy.target=user_code.cartpoles:Constant policy.kwargs.sizes=3": "policy.kwargs.sizes is not an "
    "argument of ",
    "env.entry_point=user_code.faulty:FaultyEnv env.id=null env.kwargs.at_step=many": "env.kwargs.at_step=many must be "
    "an integer, as user_code.faulty:FaultyEnv declares.",
    # What collectx passes itself is not offered.
    "env.wrappers=[{TimeLimit:{steps:1}}]": "TimeLimit. Did you mean env.wrappers[0].max_episode_steps?",
    "trainer=custom trainer.target=user_code.drawing:DrawingTrainer trainer.kwargs.learning=1": (
        "Did you mean trainer.kwargs.stop_at?"
    ),
    "env.kwargs={max_episode_steps:3,render_mode:null} env.wrappers=[{TimeLimit:{max_episode_steps:3}}]": None,
    "env=gym_vector env.id=CartPole-v1 env.vectorization_mode=sync env.kwargs={max_episode_steps:3}": None,
    "env=gym env.id=Nowhere-v0 env.kwargs.x=1": None,
    "env=halfcheetah env.kwargs.x=1": None,  # it takes any
    "policy=custom policy.target=nowhere.at:all policy.kwargs.x=1": None,
}


def test_what_is_said_about_wrong_values(expected):
    text = []
    for line in WRONG_VALUES:
        try:
            problems = examine(line)[1]
        except ConfigError as error:
            problems = error.problems
        text += [line, *(f"  ! {problem}" for problem in problems)]
    expected("wrong values", "\n".join(text))


def test_all_problems_come_at_once(expected):
    """Nothing can be said about the options of a choice that does not exist, such as env.nmu_envs."""
    words = [
        "env=cartpol",
        "env.nmu_envs=4",
        "launcher=null",
        "enb=pendulum",
        "enviroment=cartpole",
        "colector.x=3",
        "colector.num_workers=3",
        "device=cuda",
        "eval.every=3",
        "num_workers=3",
        "run.overwrit=true",
        "sed=1",
        "collector.num_wrokers=3",
        "+policy.hidden_size=3",
        "++trainer.lerning_rate=1",
        "+trainer.sub.lerning_rate=1",
        "debug=",
        "devices=gpu",
        "collector.num_slots=${nowhere}",
        "seed",
        "=",
        "env.id=a b:{",
        "policy.hidden_sizes=x",
        "logger.nothing=3",
        "gamma=0.5",
        "discount=1",
        "num_env=4",
        "trainr=ppo",
        "experiments=a",
        "colector.x.y=3",
        "+a={b:{c:1,d:2}}",
        "launcher.trainer.gpus=1",
        "minibatch_sizes=3",
    ]
    with pytest.raises(ConfigError) as raised:
        compose(words)
    expected("all problems", "\n".join(raised.value.problems))


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
    assert list(raised.value.problems) == [f"{typed} is unknown. To use your own: {meant}"]


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        ("Acrobot-v1", "env=gym env.id=Acrobot-v1"),
        ("lunarlander", "env=gym env.id=LunarLander-v3"),
        ("mine/Env-v0", "env=gym env.id=mine/Env-v0"),
        ("mine:Env-v0", "env=gym env.id=mine:Env-v0"),
        *((each, "env=pong env.id=ALE/Breakout-v5") for each in ("breakout", "ALE/Breakout-v5", "atari/breakout")),
    ],
)
def test_an_id_of_gymnasium_as_a_choice_is_answered_with_what_to_type(choice, meant):
    with pytest.raises(ConfigError, match=f"env={choice} is unknown.*: {meant}$"):
        compose([f"env={choice}"])


@pytest.mark.sample(5)
@pytest.mark.parametrize("line", WRONG_ARGUMENTS)
def test_arguments_that_the_target_does_not_have(line: str):
    found = preflight.argument_problems(examine(line)[0])
    assert len(found) == (WRONG_ARGUMENTS[line] is not None)
    assert all(WRONG_ARGUMENTS[line] in problem for problem in found), found
    assert preflight.argument_problems(examine(f"{line} launcher=slurm")[0]) == []  # the nodes may have other packages


SOURCES = {
    "def make(self, /, size): ...": ("size",),
    "class make:\n def __init__(self, /, size, *, more): ...": ("size", "more"),
    "class make:\n def __init__(self, hidden, /, size): ...": ("size",),
    "class Base:\n def __init__(self, size): ...\nclass make(Base): ...": ("size",),
    "def make(size, **others): ...": None,
    "make = 3": None,
    "raise RuntimeError": None,
    "raise SystemExit": None,
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_arguments_of_what_is_imported(source: str, tmp_path, monkeypatch):
    module = f"sourced{[*SOURCES].index(source)}"
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    found = preflight.parameters(f"{module}:make")
    assert (found and tuple(found)) == SOURCES[source]


def test_an_unknown_option_of_a_logger_is_answered_with_its_options():
    _, problems = check_config({"logger": {"wandb": {"foo": 1}}})
    said = "logger.wandb.foo is not an option. Valid names: project, entity, name, group, tags, mode."
    assert said in map(str, problems)


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
        assert "below 2**63" in str(problem)


# --- convert ---


HINTS = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "int | None": int | None,
    "float | str": float | str,
    "list[int]": list[int],
    "Sequence[float]": Sequence[float],
    "list[str | dict]": list[str | dict[str, Any]],
    "list[Any] | None": list[Any] | None,
    "dict": dict[str, Any],
    "Mapping | None": Mapping[str, Any] | None,
    "int | str | None": int | str | None,
    "tuple | int": tuple[int, ...] | int,
}
VALUES = [
    *(None, True, False, 0, 1, 2, -1, 2.0, 2.5, 1e6, float("nan"), float("inf"), "", "8", "2.5", "true", "a"),
    *([], [1], [1, 2.0], ["1", "a"], [True, 0], (1, 2), [None], {}, {"a": 1}, [{"a": 1}, "b"]),
    *(np.int64(3), np.float32(0.5), np.bool_(True), np.array(4), np.array([1, 2]), np.str_("n"), object),
]


def shown(value):
    return f"{type(value).__name__}({value})" if type(value).__module__ == "numpy" else repr(value)


def test_whole_conversions(expected):
    """The table shows the accepted values of each type; all other values are refused."""
    text = []
    for (name, hint), language in itertools.product(HINTS.items(), (YAML, PYTHON)):
        text.append(f"{name} in {'YAML' if language is YAML else 'Python'}: {describe(hint, language)}")
        text.append(f"  another value {wrong_type(hint, language)}")
        unchanged, changed = [], []
        for value in VALUES:
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                converted = convert(value, hint, language)
                is_same = type(converted) is type(value) and repr(converted) == repr(value)
                if is_same:
                    unchanged.append(shown(value))
                else:
                    changed.append(f"{shown(value)} -> {shown(converted)}")
        text += [f"  as it is: {', '.join(unchanged)}", f"  changed: {', '.join(changed)}"]
    expected("conversions", "\n".join(text))


LIMITS = [
    {"minimum": 1},
    {"minimum": 0, "maximum": 1},
    {"maximum": 3},
    {"above": 0},
    {"above": 0, "finite": True},
    {"minimum": 1, "also": (-1,)},
    {"minimum": 1, "also": (-1, -2)},
    {"minimum": 0, "bits": 31},
    {"choices": ("mode", "mean", "random")},
    {"choices": ("padded",)},
    {"choices": ("a", "b"), "also": ("c",)},
    {},
]
NUMBERS = [
    *(None, -2, -1, -0.5, 0, 0.0, 1e-9, 0.5, 1, 1.5, 3, 4, 2**31 - 1, 2**31, 2**63 - 1, 2**63, float("inf")),
    *([], [1], [1, 0], [2**63], ["mode"], ["mode", "b"]),
    *("mode", "mod", "padded", "pad", "a", "c", "zzz"),
]


@pytest.mark.parametrize("language", [YAML, PYTHON], ids=["YAML", "Python"])
def test_whole_ranges(language, expected, request):
    text = []
    for limits in LIMITS:
        text.append(f"{limits}")
        found = {}
        for value in NUMBERS:
            is_text = isinstance(value, str) or (isinstance(value, list) and isinstance([*value, 0][0], str))
            if value not in (None, []) and is_text is not ("choices" in limits):
                continue
            found.setdefault(out_of_range(value, limits, language) or "right", []).append(repr(value))
        text += [f"  {rule}: {', '.join(values)}" for rule, values in found.items()]
    expected(f"ranges in {request.node.callspec.id}", "\n".join(text))
