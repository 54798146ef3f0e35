"""What cannot be built is refused with the key to change, and a missing package with the extra that has it."""

import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from configurations import gym, gym_vector
from env_stepping import Stepper
from gymnasium.envs.registration import registry
from gymnasium.error import DependencyNotInstalled

from collectx.config.schema.env import EnvPoolEnvConfig, TorchrlEnvConfig
from collectx.env import build
from collectx.errors import CollectxError, ConfigError, DataError
from collectx.user_objects import resolve


def envpool(id="CartPole-v1", **kwargs):
    return EnvPoolEnvConfig(kind="envpool", num_envs=16, id=id, kwargs=kwargs, num_threads=2)


def wrapped(*wrappers):
    return replace(gym(), wrappers=list(wrappers))


def missing(text):
    """Configures an env of which Gymnasium says that it lacks a package."""

    def make():
        raise DependencyNotInstalled(text)

    return gym(entry_point=make)


TORCHRL = pytest.mark.skipif(find_spec("torchrl") is None, reason="needs the torchrl extra")
IN_ENVPOOL = pytest.mark.xdist_group("envpool")  # it takes two seconds to import
REFUSED = [
    (gym(entry_point="no.such:thing"), "env.entry_point=no.such:thing cannot be imported"),
    (
        gym(entry_point="user_code.cartpoles:cartpol"),
        "has no cartpol. Did you mean user_code.cartpoles:cartpole",
    ),
    (gym(entry_point="types:SimpleNamespace"), r"returned an object of type SimpleNamespace, which is not an env"),
    (gym(id="CartPole-v1", foo=1), r"env.kwargs.foo is not an argument of CartPole-v1"),
    (gym(entry_point="os:sep"), "env.entry_point=os:sep is a value of type str. Name a class or a function"),
    (wrapped({"a": 1}), r"env.wrappers\[0\]=.* must be a name, or a name with arguments"),
    (wrapped({"_target_": "gymnasium.wrappers.Nope"}), r"env.wrappers\[0\]=gymnasium.wrappers.Nope"),
    (wrapped("ClipAction"), r"env.wrappers\[0\]=ClipAction cannot wrap CartPole-v1: .* use an env that it fits"),
    (
        replace(gym_vector(3, None, "async"), id=None, entry_point="user_code.cartpoles:cartpole"),
        "env.entry_point=user_code.cartpoles:cartpole has no parameter num_envs, .* register the env and use env.id",
    ),
    (gym_vector(3, "sometimes", "sync"), "autoreset_mode=sometimes is unknown. Valid names: next_step"),
    (gym_vector(3, "disabled"), "in this vectorization mode"),
    (replace(gym_vector(3, None, "sync"), info_keys=["nothing"]), "contains 'nothing'"),
    (replace(gym(), info_keys=["nothing"]), "contains 'nothing', but the infos of an episode"),
    (
        replace(gym(), exclude_keys=["mission"]),
        "exclude_keys cannot contain 'mission', which is not in the observation. Valid names: observation",
    ),
    (missing('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`'), "MuJoCo .*: .*collectx.mujoco.'$"),
    (missing("opencv-python package not installed, run `pip`"), "opencv-python package not .*: .*collectx.atari.'$"),
    (
        missing("box2d is not installed, run `pip install swig`"),
        "box2d is not installed. Install it: pip install swig$",
    ),
    (
        TorchrlEnvConfig(kind="torchrl", num_envs=2, target="gymnasium.spaces:Discrete", kwargs={"n": 2}),
        "returned an object of type Discrete, which is not a TorchRL EnvBase",
    ),
    pytest.param(
        TorchrlEnvConfig(kind="torchrl", num_envs=2, target="user_code.torchrlenvs:serial"),
        "Use env.num_envs=3",
        marks=TORCHRL,
    ),
    pytest.param(envpool("CartPole-v99"), "CartPole-v99 is not an EnvPool task", marks=IN_ENVPOOL),
    pytest.param(
        envpool(batch_size=3, seed=1), r"env\.kwargs cannot contain 'batch_size' and 'seed'", marks=IN_ENVPOOL
    ),
]


@pytest.mark.parametrize(("cfg", "message"), REFUSED)
def test_a_wrong_configuration(cfg, message):
    with pytest.raises(CollectxError, match=message):
        build(cfg)


BROKEN = "import gymnasium\n\n\ndef make(:\n    pass\n"
NEEDS_SIZE = """
import gymnasium


class Env(gymnasium.Env):
    def __init__(self, size, *, width, depth=1):
        super().__init__(size)


gymnasium.register("Needs-v0", entry_point=Env, kwargs={"width": 3})
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Yields a function that writes the module `user_module` with this source, and returns its path."""

    def make(source):
        (tmp_path / "user_module.py").write_text(source)
        return tmp_path / "user_module.py"

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "user_module", raising=False)
    yield make
    sys.modules.pop("user_module", None)
    registry.pop("Needs-v0", None)


IMPORTS = pytest.mark.parametrize(
    "make",
    [
        lambda: build(gym(entry_point="user_module:make")),
        lambda: build(gym(id="user_module:Any-v0")),
        lambda: build(gym_vector(2, None, "sync", id="user_module:Any-v0")),
        lambda: resolve("user_module:make", "policy.target"),
    ],
    ids=["entry_point", "id", "vector", "policy"],
)


@IMPORTS
def test_a_syntax_error_of_a_users_module_names_file_and_line(module, make):
    path = module(BROKEN)
    with pytest.raises(
        ConfigError, match=rf"user_module:.* cannot be imported: SyntaxError in {path}, line 4: .* in `def make\(:`$"
    ):
        make()


@IMPORTS
def test_a_users_module_that_ends_the_process_is_a_refusal_with_file_and_line(module, make):
    path = module("import sys\n\nsys.exit(0)")
    with pytest.raises(
        ConfigError, match=rf"user_module:.* cannot be imported: SystemExit in {path}, line 3, in `sys.exit\(0\)`$"
    ):
        make()


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: build(gym(entry_point="user_module:Env")), ["size", "width"]),
        (lambda: build(gym(id="user_module:Needs-v0")), ["size"]),
        (lambda: build(gym_vector(2, None, "sync", id="user_module:Needs-v0")), ["size"]),
        (lambda: build(TorchrlEnvConfig(kind="torchrl", num_envs=1, target="user_module:Env")), ["size", "width"]),
    ],
    ids=["entry_point", "id", "vector", "torchrl"],
)
def test_a_missing_argument_of_an_envs_constructor_is_named_as_an_option(module, make, names):
    module(NEEDS_SIZE)
    with pytest.raises(ConfigError) as caught:
        make()
    assert list(caught.value.problems) == [
        f"env.kwargs.{name} is not set, but Env requires it. Set env.kwargs.{name}=VALUE." for name in names
    ]


def test_a_type_error_of_a_constructor_that_has_its_arguments_is_the_users(module):
    module(NEEDS_SIZE)
    with pytest.raises(TypeError, match="takes"):
        build(replace(gym(entry_point="user_module:Env"), kwargs={"size": 1, "width": 2}))


@pytest.mark.parametrize(
    ("package", "extra", "make"),
    [
        ("ale_py", "atari", lambda: build(gym(id="ALE/Pong-v5"))),
        ("envpool", "envpool", lambda: build(envpool())),
        ("minigrid", "minigrid", lambda: build(gym(id="minigrid:MiniGrid-Empty-5x5-v0"))),
        ("torchrl", "torchrl", lambda: resolve("torchrl.envs:GymEnv", "env.target")),
    ],
)
def test_a_missing_package(package, extra, make, monkeypatch):
    # Another test may have imported it.
    for name in (package, *(each for each in sys.modules if each.startswith(f"{package}."))):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"pip install 'collectx\[{extra}\]'$"):
        make()


def test_a_missing_module_that_registers_an_id():
    with pytest.raises(ConfigError, match=r"No module named 'nowhere'\. Is it installed, or on PYTHONPATH\?$"):
        build(gym(id="nowhere:Env-v0"))
    with pytest.raises(ConfigError, match=r"doesn't exist\.?$"):  # it names a package that is installed
        build(gym(id="gymnasium:MuJoCo-v0"))


def test_a_missing_package_of_gymnasium_is_answered_with_its_commands(module):
    module(
        "import gymnasium\ndef Env():\n    raise gymnasium.error.DependencyNotInstalled("
        "'Box2D is not installed, you can install it by run `pip install swig` followed by `pip install box2d`')\n"
    )
    with pytest.raises(ConfigError, match=r"not installed\. Install it: pip install swig && pip install box2d$"):
        build(gym(entry_point="user_module:Env"))


FOREIGN = """
import gymnasium, numpy as np
from collectx.env.gym import GymEnv

class OldBox:
    shape, dtype = (3,), np.float32
OldBox.__module__ = "gym.spaces.box"

class Old(gymnasium.Env):
    observation_space, action_space = OldBox(), gymnasium.spaces.Discrete(2)
    def step(self, action): ...

class Parallel:
    possible_agents = ["a"]
    def observation_space(self, agent): ...
    def action_space(self, agent): ...
    def step(self, actions): ...

class DmEnv:
    def observation_spec(self): ...
    def action_spec(self): ...
    def step(self, action): ...

class Compatible(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    def __getattr__(self, name):
        return getattr(DmEnv(), name)

class OwnSpace(gymnasium.Env):
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    class observation_space:
        shape, dtype = (2,), np.float32
        def __repr__(self):
            return "OwnSpace"
    observation_space = observation_space()

class Returning(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    def __init__(self, at_reset=(np.zeros(2, np.float32), {}), at_step=None):
        self.at_reset, self.at_step = at_reset, at_step
    def reset(self, *, seed=None, options=None):
        return self.at_reset
    def step(self, action):
        if self.at_step == "raise":
            raise AssertionError("not allowed")
        return self.at_step
"""


def test_a_wrapper_that_passes_on_the_attributes_of_an_env_of_dm_env_is_accepted(module):
    module(FOREIGN)
    build(gym(entry_point="user_module:Compatible"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Old", "of the old package gym. Declare gymnasium.spaces.OldBox, or wrap the env with shimmy.GymV26"),
        ("Parallel", "Parallel is a multi-agent env of PettingZoo. Use env=torchrl"),
        ("DmEnv", "DmEnv has the interface of dm_env. Wrap it with shimmy.DmControl"),
        ("OwnSpace", "its space OwnSpace is not one of gymnasium.spaces. Convert it to a Box"),
    ],
)
def test_envs_of_other_packages_are_named(module, name, message):
    module(FOREIGN)
    with pytest.raises(CollectxError) as caught:
        build(gym(entry_point=f"user_module:{name}"))
    assert message in str(caught.value)


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"env 0: step\(\) returned None. Return observation, reward, terminated, truncated, info"),
        ({"at_step": 3}, r"env 0: step\(\) returned one value of type int. Return"),
        ({"at_step": (1, 2, 3)}, r"env 0: step\(\) returned 3 values. Return"),
        ({"at_reset": None}, r"env 0: reset\(\) returned None. Write reset"),
    ],
)
def test_a_step_or_a_reset_that_returns_something_else(module, num_envs, arguments, message):
    module(FOREIGN)
    with pytest.raises(DataError, match=message):
        Stepper(build(gym(num_envs, entry_point="user_module:Returning", **arguments))).reset().step()


def test_an_env_that_refuses_an_action_outside_of_its_box_gets_a_wrapper_to_add(module):
    module(FOREIGN)
    stepper = Stepper(build(gym(2, entry_point="user_module:Returning", at_step="raise"))).reset()
    with pytest.raises(AssertionError) as caught:
        stepper.step(np.full((2, 2), 3.0, np.float32))
    assert any("is not in Box" in note and "env.wrappers=[ClipAction]" in note for note in caught.value.__notes__)
    with pytest.raises(AssertionError) as caught:
        stepper.step(np.zeros((2, 2), np.float32))
    assert not any("ClipAction" in note for note in caught.value.__notes__)


def test_an_env_that_raises_while_its_infos_are_searched_is_told_so(module):
    module(FOREIGN)
    with pytest.raises(AssertionError) as caught:
        build(replace(gym(1, entry_point="user_module:Returning", at_step="raise"), info_keys=["speed"]))
    assert "with random actions, to learn the shape of speed in its infos" in caught.value.__notes__[0]
