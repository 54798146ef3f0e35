"""Objects and tuples in the arguments of a configuration."""

import inspect
import json
import textwrap

import gymnasium
import pytest
from commands import collectx, forked, result

from collectx.cli import run
from collectx.config.schema.env import GymEnvConfig
from collectx.env import build
from collectx.errors import ConfigError
from collectx.user_objects import arguments_of, call_with_tuples

PARTS = """
    import gymnasium
    import numpy as np

    class Speed:
        def __init__(self, scale, power=1):
            self.scale, self.power = scale, power

        def __call__(self, reward):
            return float(reward) * self.scale**self.power

    def tripled(reward, factor=1):
        return float(reward) * factor

    class Env(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, rewards, size=None):
            if not isinstance(size, tuple):
                raise ValueError(f"size must be a tuple, not {size}")
            self.rewards = rewards["all"]

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(3, np.float32), {}

        def step(self, action):
            self.steps += 1
            reward = sum(each(1.0) for each in self.rewards)
            return np.zeros(3, np.float32), reward, self.steps >= 10, False, {}

    class Policy:
        def __init__(self, spec, choose):
            self.choose = choose

        def __call__(self, observation):
            return self.choose(observation[..., 0].long())

    class Trainer:
        def __init__(self, of):
            assert isinstance(of, Speed), of
            self.of = of

        def train(self, collection):
            for batch in collection:
                collection.log(scaled=self.of(1.0))

    class Logger:
        def __init__(self, file, scale):
            self.file = open(file, "a")
            self.scale = scale

        def log(self, scalars, step):
            print(self.scale(1.0), file=self.file, flush=True)

        def close(self):
            self.file.close()
"""


@pytest.mark.ci
def test_objects_are_built_wherever_a_configuration_has_arguments(tmp_path):
    (tmp_path / "parts.py").write_text(textwrap.dedent(PARTS))
    words = [
        "env=gym",
        "env.entry_point=parts:Env",
        "env.kwargs={size: [3, 4], rewards: {all: [{_target_: parts.Speed, _args_: [2], power: 2}]}}",
        "env.wrappers=[{TransformReward: {func: {_target_: parts.tripled, _partial_: true, factor: 3}}}]",
        "policy=custom",
        "policy.target=parts:Policy",
        "policy.kwargs.choose={_target_: torch.zeros_like, _partial_: true}",
        "trainer=custom",
        "trainer.target=parts:Trainer",
        "trainer.kwargs.of={_target_: parts:Speed, scale: 5}",
        "trainer.digest=true",
        "logger=custom",
        "logger.custom.target=parts:Logger",
        f"logger.custom.kwargs={{file: {tmp_path}/told.txt, scale: {{_target_: parts.Speed, scale: 7}}}}",
    ]
    collectx("run", *words, "run.max_batches=2", "hydra.run.dir=r", cwd=tmp_path)
    assert result(tmp_path / "r")["mean_return"] == 10 * 4 * 3
    lines = [json.loads(line) for line in (tmp_path / "r/metrics.jsonl").read_text().splitlines()]
    assert {line["scalars"]["scaled"] for line in lines} == {5}
    assert set((tmp_path / "told.txt").read_text().split()) == {"7.0"}
    # The folder has the words.
    assert "_target_: parts:Speed" in (tmp_path / "r/snapshot/config.yaml").read_text()
    forked("resume", "r", "run.max_batches=4", cwd=tmp_path)
    assert "mean return 120 " in forked("eval", "r", "episodes=1", cwd=tmp_path).stdout
    done = forked("reproduce", "r", cwd=tmp_path)
    assert "identical: all" in done.stdout
    assert "is imported from" not in done.stderr


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("{_target_: parts.Sped}", "env.kwargs.goal._target_=parts.Sped does not exist"),
        ("{_target_: partz.Speed}", "env.kwargs.goal._target_=partz.Speed cannot be imported"),
        ("{_target_: parts.Speed, scal: 2}", "Did you mean env.kwargs.goal.scale?"),
        (
            "[{_target_: parts.Speed, scale: {_target_: parts.nothing}}]",
            "env.kwargs.goal[0].scale._target_=parts.nothing",
        ),
    ],
)
def test_a_wrong_target_is_refused_before_anything_starts(tmp_path, monkeypatch, capsys, node, message):
    (tmp_path / "parts.py").write_text(textwrap.dedent(PARTS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run.main(["env=gym", "env.entry_point=parts:Env", f"env.kwargs.goal={node}", "hydra.run.dir=r"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_missing_argument_of_an_object_is_named():
    with pytest.raises(ConfigError, match=r"env\.kwargs\.a\.seconds is not set, but timer requires it"):
        arguments_of(dict, {"a": {"_target_": f"{__name__}.timer"}}, "env.kwargs")
    with pytest.raises(ZeroDivisionError) as raised:
        arguments_of(dict, {"a": {"_target_": f"{__name__}.timer", "seconds": 0}}, "env.kwargs")
    assert raised.value.__notes__ == [f"raised while env.kwargs.a was built from _target_={__name__}.timer"]


def timer(seconds):
    return 1 / seconds


def _annotated(
    a: "tuple[int, ...] | None", b=((1, 2), (3, 4)), c: "list[int] | tuple[int, int] | None" = None, d=0
): ...


def test_lists_become_tuples_where_the_callee_says_so():
    kwargs = {"a": [1, 2], "b": [[5, 6], [7, 8]], "c": [1, 2], "d": [1]}
    assert arguments_of(_annotated, kwargs, "") == {"a": (1, 2), "b": ((5, 6), (7, 8)), "c": [1, 2], "d": [1]}
    assert arguments_of(_annotated, {"d": {"_target_": "builtins.tuple", "_args_": [[1, 2]]}}, "") == {"d": (1, 2)}


def test_a_call_that_fails_for_another_reason_is_made_once():
    calls = []

    def refuse(**kwargs):
        calls.append(kwargs)
        raise ValueError("the port is taken")

    with pytest.raises(ValueError, match="port"):
        call_with_tuples(refuse, size=[1, 2])
    assert calls == [{"size": [1, 2]}]


# The arguments of each wrapper of Gymnasium that has any, as YAML gives them, for an env of images.
WRAPPERS = {
    "AddWhiteNoise": {"probability_of_noise_per_pixel": 0.1},
    "ClipReward": {"min_reward": -1, "max_reward": 1},
    "DelayObservation": {"delay": 2},
    "DtypeObservation": {"dtype": {"_target_": "numpy.dtype", "_args_": ["float32"]}},
    "FrameStackObservation": {"stack_size": 3, "padding_type": "zero"},
    "GrayscaleObservation": {"keep_dim": True},
    "MaxAndSkipObservation": {"skip": 2},
    "NormalizeObservation": {"epsilon": 1e-6},
    "NormalizeReward": {"gamma": 0.9},
    "ObstructView": {"obstructed_pixels_ratio": 0.3, "obstruction_width": 3},
    "OrderEnforcing": {"disable_render_order_enforcing": True},
    "RecordEpisodeStatistics": {"buffer_length": 5, "stats_key": "statistics"},
    "RepeatAction": {"num_repeats": 2},
    "RescaleObservation": {"min_obs": 0.0, "max_obs": 1.0},
    "ReshapeObservation": {"shape": [24, 72]},
    "ResizeObservation": {"shape": [12, 12]},
    "StickyAction": {"repeat_action_probability": 0.3, "repeat_action_duration": [1, 3]},
    "TimeLimit": {"max_episode_steps": 5},
    "TransformAction": {"func": {"_target_": "builtins.int", "_partial_": True}, "action_space": None},
    "TransformObservation": {"func": {"_target_": "numpy.flip", "_partial_": True}, "observation_space": None},
    "TransformReward": {"func": {"_target_": "math.copysign", "_partial_": True, "_args_": [2.0]}},
}
IMAGES = {
    "observation_space": {
        "_target_": "gymnasium.spaces.Box",
        "low": 0,
        "high": 255,
        "shape": [24, 24, 3],
        "dtype": "uint8",
    },
    "action_space": {"_target_": "gymnasium.spaces.Discrete", "n": 2},
    "length": 9,
}
# Of envs with other spaces.
OTHERS = {
    "DiscretizeAction": ("Pendulum-v1", {"bins": [5]}),
    "DiscretizeObservation": ("MountainCar-v0", {"bins": [5, 6]}),
    "FilterObservation": ("Blackjack-v1", {"filter_keys": [0, 2]}),
    "TimeAwareObservation": ("CartPole-v1", {"flatten": False}),
    "RescaleAction": ("Pendulum-v1", {"min_action": -1.0, "max_action": 1.0}),
}
# Written by their users in Python, or for envs that render.
LEFT_OUT = {"AddRenderObservation", "AtariPreprocessing", "HumanRendering", "RecordVideo", "RenderCollection"}


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize("name", [*WRAPPERS, *OTHERS])
def test_wrappers_of_gymnasium_take_arguments(name):
    env, kwargs = OTHERS.get(name) or (None, WRAPPERS.get(name))
    source = {"id": env} if env else {"entry_point": "user_code.spaceenv:SpaceEnv", "kwargs": IMAGES}
    group = build(GymEnvConfig(kind="gym", num_envs=2, wrappers=[{name: kwargs}], **source))
    group.close()


@pytest.mark.nightly
def test_every_wrapper_of_gymnasium_with_arguments_is_tried():
    classes = inspect.getmembers(gymnasium.wrappers, inspect.isclass)
    with_arguments = {name for name, cls in classes if len(inspect.signature(cls).parameters) > 1}
    assert with_arguments - LEFT_OUT == {*WRAPPERS, *OTHERS}
