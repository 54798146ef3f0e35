"""Every file composes; the user's own files; what `compose` returns."""

from __future__ import annotations

import itertools
from importlib import resources
from pathlib import Path

import pytest

from collectx.cli.compose import compose, names
from collectx.config import (
    GROUPS,
    KINDS,
    CollectorConfig,
    CountingEnvConfig,
    GymEnvConfig,
    MlpPolicyConfig,
    PpoTrainerConfig,
    RunConfig,
)
from collectx.errors import ConfigError
from collectx.transport.backends import why_not

CONF = Path(str(resources.files("collectx.conf")))
FILES = sorted(
    (path.parent.name, path.stem)
    for path in CONF.glob("*/*.yaml")
    if not path.parent.name.startswith("hydra") and not path.stem.startswith("_")
)
# What a choice cannot run without.
NEEDED = {
    ("env", "gym"): ["env.id=CartPole-v1"],
    ("env", "gym_vector"): ["env.id=CartPole-v1"],
    ("env", "envpool"): ["env.id=CartPole-v1"],
    ("env", "torchrl"): ["env.target=mine:make_env"],
    ("policy", "custom"): ["policy.target=mine:Policy"],
    ("policy", "random"): ["trainer=meter"],
    ("policy", "q_mlp"): ["trainer=dqn"],
    ("policy", "q_cnn"): ["trainer=dqn"],
    ("backend", "ray"): ["launcher=ray"],
    ("collector", "ray"): ["launcher=ray"],
    ("trainer", "dqn"): ["policy=q_mlp"],
    ("trainer", "custom"): ["trainer.target=mine:Trainer"],
    ("collector", "single"): [],
    ("backend", "inline"): ["launcher=inline"],
}


def test_the_default_is_ppo_on_cartpole_with_two_workers():
    cfg = compose()
    assert isinstance(cfg, RunConfig)
    assert isinstance(cfg.env, GymEnvConfig)
    assert isinstance(cfg.policy, MlpPolicyConfig)
    assert isinstance(cfg.collector, CollectorConfig)
    assert isinstance(cfg.trainer, PpoTrainerConfig)
    assert (cfg.env.id, cfg.collector.kind, cfg.collector.num_workers) == ("CartPole-v1", "multi_sync", 2)
    assert (cfg.backend.kind, cfg.launcher.kind, cfg.devices.device, cfg.seed) == ("auto", "local", "cpu", 0)
    assert type(cfg.policy.hidden_sizes) is list


@pytest.mark.parametrize(("group", "name"), FILES)
def test_every_file_composes(group: str, name: str):
    chosen = [f"{group}={name}", *NEEDED.get((group, name), [])]
    if group == "backend" and why_not(name):
        with pytest.raises(ConfigError) as caught:
            compose(chosen)
        assert all(problem.startswith(f"backend={name}") for problem in caught.value.problems)
        return
    cfg = compose(chosen)
    if KINDS.get(group):
        assert type(getattr(cfg, group)) is KINDS[group][getattr(cfg, group).kind]


@pytest.mark.parametrize("experiment", [name for group, name in FILES if group == "experiment"])
@pytest.mark.parametrize("debug", ["inline", "tiny"])
def test_every_experiment_can_be_debugged(experiment: str, debug: str):
    cfg = compose([f"experiment={experiment}", f"debug={debug}"])
    assert cfg.collector.total_frames % cfg.collector.frames_per_batch == 0


def test_every_kind_has_a_file_of_its_name():
    for group in GROUPS:
        for kind in KINDS[group]:
            assert (CONF / group / f"{kind}.yaml").is_file(), f"{group}/{kind}"


@pytest.mark.parametrize("path", sorted(CONF.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_file_says_what_it_is_and_explains_each_key(path: Path):
    lines = path.read_text().splitlines()
    head = [line for line in lines[:2] if line.startswith("# ") and not line.startswith("# @package")]
    assert head, "no line for `collectx list`"
    if path.parent.name in GROUPS:
        for above, line in itertools.pairwise(lines):
            is_key = line[:1].isalpha() and not line.startswith("defaults:")
            assert not is_key or above.startswith("#"), f"{line}: no comment above"


def test_free_form_parts_take_any_key_without_plus():
    cfg = compose(["env.kwargs.gravity=1.5", "env.kwargs.deep.er=[1,2]"])
    assert isinstance(cfg.env, GymEnvConfig)
    assert cfg.env.kwargs == {"gravity": 1.5, "deep": {"er": [1, 2]}}


def test_numbers_become_what_the_schema_says():
    cfg = compose(["collector.total_frames=512e3", "collector.worker_timeout_s=3"])
    assert type(cfg.collector.total_frames) is int
    assert cfg.collector.total_frames == 512_000
    assert type(cfg.collector.worker_timeout_s) is float


def test_a_value_of_an_experiment_gives_way_to_the_command_line():
    assert compose(["experiment=throughput", "env.num_envs=4"]).env.num_envs == 4


def test_an_optional_group_can_be_switched_off():
    assert compose(["experiment=null", "debug=null"]) == compose()


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A user's own folder."""
    for group in ("env", "trainer", "experiment"):
        (tmp_path / group).mkdir()
    return tmp_path


def test_an_own_file_may_inherit_a_packaged_choice(conf: Path):
    (conf / "env" / "mine.yaml").write_text("# Mine.\ndefaults: [gym, _self_]\nid: Mine-v0\n")
    cfg = compose(["env=mine"], conf)
    assert cfg.env == GymEnvConfig("gym", 8, "Mine-v0", None, {}, [], [])


def test_an_own_file_that_only_says_its_kind_gets_the_packaged_values(conf: Path):
    (conf / "env" / "mine.yaml").write_text("kind: counting\nnum_envs: 2\n")
    assert compose(["env=mine"], conf).env == CountingEnvConfig("counting", 2, 10, 3, 0.0)


def test_an_own_experiment_composes_own_and_packaged_choices(conf: Path):
    (conf / "env" / "mine.yaml").write_text("defaults: [gym, _self_]\nid: Mine-v0\n")
    text = "# @package _global_\ndefaults: [override /env: mine, override /trainer: meter]\nseed: 7\n"
    (conf / "experiment" / "mine.yaml").write_text(text)
    cfg = compose(["experiment=mine"], str(conf))
    assert isinstance(cfg.env, GymEnvConfig)
    assert (cfg.env.id, cfg.trainer.kind, cfg.seed) == ("Mine-v0", "meter", 7)


def test_a_typo_in_an_own_file_is_found(conf: Path):
    (conf / "trainer" / "mine.yaml").write_text("defaults: [ppo, _self_]\nlerning_rate: 1.0\n")
    with pytest.raises(ConfigError, match=r"trainer\.lerning_rate.*did you mean trainer\.learning_rate"):
        compose(["trainer=mine"], conf)


def test_a_config_dir_that_is_not_there_is_a_problem(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such folder"):
        compose([], tmp_path / "nowhere")


def test_points_are_named_by_what_varies():
    assert names([["++a.b=1", "c=x"], ["++a.b=2", "c=x"]]) == ["a.b=1", "a.b=2"]
    assert names([["a=1"]]) == ["0"]
    assert names([["a=x/y"], ["a=z"]]) == ["a=x_y", "a=z"]
    long = names([["a=" + "x" * 300 + "1"], ["a=" + "x" * 300 + "2"]])
    assert len(set(long)) == 2
    assert max(map(len, long)) <= 120
