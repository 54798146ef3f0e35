"""Every packaged file composes; the user's own files; what `compose` returns."""

import os
from importlib import resources
from pathlib import Path

import pytest
from composed_overrides import with_choices

from collectx.cli import list as listing
from collectx.cli import main
from collectx.cli.compose import Composer, compose, typed
from collectx.cli.sweep import names, run_folders
from collectx.config.problem import Missing
from collectx.config.registry import GROUPS, KINDS
from collectx.config.schema.env import CountingEnvConfig, GymEnvConfig
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import PpoTrainerConfig
from collectx.errors import ConfigError

CONF = Path(str(resources.files("collectx.conf")))
FILES = sorted(CONF.glob("*/*.yaml"))


def choices(group: str) -> list[str]:
    return [path.stem for path in FILES if path.parent.name == group and not path.stem.startswith("_")]


def test_the_default_is_ppo_on_cartpole_with_two_workers():
    cfg = compose()
    assert (type(cfg), type(cfg.trainer)) == (RunConfig, PpoTrainerConfig)
    assert (cfg.env.id, cfg.collector.kind, cfg.collector.num_workers) == ("CartPole-v1", "multi_sync", 2)
    assert (cfg.backend.kind, cfg.launcher.kind, cfg.devices.device, cfg.seed) == ("auto", "local", "cpu", 0)
    assert (type(cfg.policy.hidden_sizes), cfg.trainer.digest) == (list, True)
    assert compose(["experiment=null", "debug=null"]) == cfg


# Types are a matter of each group alone, so that one composition has a choice of every group.
@pytest.mark.sample(5)
@pytest.mark.parametrize("index", range(max(len(choices(group)) for group in GROUPS)))
def test_every_choice_of_a_group_has_the_type_of_its_kind(index: int):
    chosen = {group: choices(group)[index % len(choices(group))] for group in GROUPS}
    composer = Composer()
    checked = composer.check([f"{group}={name}" for group, name in chosen.items()])
    node = composer.load(checked.overrides)
    read = with_choices(checked.overrides)
    assert {**read, "hydra": read.hydra.runtime.choices} == {**node, "hydra": node.hydra.runtime.choices}
    cfg, problems, _ = typed(node, node.hydra)
    # Some choices have keys that the user must set.
    assert [problem for problem in problems if not isinstance(problem, Missing)] == []
    for group in GROUPS:
        if KINDS[group]:
            assert type(getattr(cfg, group)) is KINDS[group][getattr(cfg, group).kind].schema


def test_the_short_run_of_the_tests_is_that_of_hydra():
    words = ["debug=tiny", "collector=multi_async", "trainer=impala", "env=pong"]
    read, node = with_choices(words), Composer().load(words)
    assert {**read, "hydra": None} == {**node, "hydra": None}


@pytest.mark.sample(3)
@pytest.mark.parametrize("experiment", choices("experiment"))
def test_every_experiment_can_be_debugged_and_overridden(experiment: str):
    cfg = compose([f"experiment={experiment}", "debug=inline", "env.num_envs=4"])
    assert (cfg.launcher.kind, cfg.backend.kind, cfg.env.num_envs) == ("inline", "inline", 4)


def test_every_kind_has_a_file_of_its_name():
    files = {(path.parent.name, path.stem) for path in FILES}
    assert [(group, kind) for group in GROUPS for kind in KINDS[group] if (group, kind) not in files] == []


def test_every_file_says_what_it_is():
    for path in FILES:
        lines = path.read_text().splitlines()
        head = [line for line in lines[:2] if line.startswith("# ") and not line.startswith("# @package")]
        assert head, f"{path}: no line for `collectx list`"


def test_values_take_the_type_of_the_schema_and_free_form_parts_any_key():
    line = ["env.id=Mine-v0", "env.kwargs.gravity=1.5", "env.kwargs.deep.er=[1,2]", "collector.total_frames=512e3"]
    cfg = compose([*line, "collector.worker_timeout_s=3"])
    assert cfg.env.kwargs == {"gravity": 1.5, "deep": {"er": [1, 2]}}
    assert (type(cfg.collector.total_frames), cfg.collector.total_frames) == (int, 512_000)
    assert type(cfg.collector.worker_timeout_s) is float


def test_own_files_compose_own_and_packaged_choices(tmp_path: Path):
    for name, text in {
        # What only says its kind gets the packaged values.
        "env/bare": "kind: counting\nnum_envs: 2\n",
        "env/mine": "defaults: [gym, _self_]\nid: Mine-v0\n",
        "experiment/mine": "# @package _global_\ndefaults: [override /env: mine, override /trainer: meter]\nseed: 7\n",
    }.items():
        file = tmp_path / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert compose(["env=bare"], tmp_path).env == CountingEnvConfig(
        kind="counting", num_envs=2, episode_length=10, observation_size=3, step_s=0.0
    )
    cfg = compose(["experiment=mine"], str(tmp_path))
    assert cfg.env == GymEnvConfig(
        kind="gym", num_envs=8, id="Mine-v0", entry_point=None, kwargs={}, wrappers=[], info_keys=[]
    )
    assert (cfg.trainer.kind, cfg.seed) == ("meter", 7)
    with pytest.raises(ConfigError, match=r"there is no folder '.*nowhere'\. Name the folder"):
        compose([], tmp_path / "nowhere")


def test_points_are_named_by_what_varies():
    assert names([["++a.b=1", "c=x"], ["++a.b=2", "c=x"]]) == ["a.b=1", "a.b=2"]
    assert names([["a=1"]]) == ["0"]
    assert names([["a=x/y"], ["a=z"]]) == ["a=x_y", "a=z"]
    (exact, longer), cut = names([[f"a={'x' * 118}"], [f"a={'y' * 119}"]]), f"a={'y' * 109}-"
    assert (exact, longer[:-8], len(longer)) == (f"a={'x' * 118}", cut, 120)  # the longest name
    long = names([[f"a={'x' * 300}1"], [f"a={'x' * 300}2"]])
    assert len(set(long)) == 2
    assert max(map(len, long)) <= 120


def test_keys_of_an_experiment_that_another_choice_lacks_are_left_out():
    for group, choice in (("trainer", "meter"), ("env", "envpool env.id=CartPole-v1")):
        cfg = compose(["experiment=halfcheetah_ppo", *f"{group}={choice}".split()])
        assert getattr(cfg, group).kind == choice.split()[0]
    assert compose(["experiment=cartpole_ppo", "trainer=impala"]).trainer.target_return == 475  # which IMPALA has too
    with pytest.raises(
        ConfigError,
        match=r"trainer\.gamma is an option of trainer=ppo, impala, dqn or sac, not of trainer=meter. Add one of ",
    ):
        compose(["experiment=halfcheetah_ppo", "trainer=meter", "trainer.gamma=0.5"])


@pytest.mark.parametrize("text", ["1_000_000", "1e6", "1000000"])
def test_total_frames_as_people_write_it(text, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\ncollector:\n  total_frames: {text}\n")
    assert compose([f"collector.total_frames={text}"]).collector.total_frames == 1_000_000
    assert compose(["experiment=mine"], tmp_path).collector.total_frames == 1_000_000


def _point(root, name, words, age_s=10):
    """A run folder of a sweep; the result is that many seconds newer than what Hydra wrote before the run."""
    for part in (".hydra", "snapshot"):
        (root / name / part).mkdir(parents=True)
    (root / name / ".hydra" / "overrides.yaml").write_text("\n".join(f"- {word}" for word in words))
    (root / name / "result.json").write_text('{"status": "completed"}')
    os.utime(root / name / ".hydra" / "overrides.yaml", (0, 100))
    os.utime(root / name / "result.json", (0, 100 + age_s))


def test_points_of_another_launcher_are_named_by_what_differs(tmp_path):
    for number in (0, 1, 2, 10):
        _point(tmp_path, f"{number}", ["env=counting", f"seed={number}"])
    assert run_folders(tmp_path) == [(f"seed={number}", tmp_path / f"{number}") for number in (0, 1, 2, 10)]
    _point(tmp_path, "11", ["seed=11"])  # as in a search that varies other keys at each point
    assert run_folders(tmp_path)[-1] == ("seed=11", tmp_path / "11")


@pytest.mark.parametrize(
    ("words", "age_s"),
    [
        (["seed=1"], -10),  # a later point whose folder was refused
        (["seed: [1"], 10),
    ],
    ids=str,
)
def test_points_whose_overrides_are_not_known_are_named_by_their_folders(tmp_path, words, age_s):
    _point(tmp_path, "0", ["seed=0"])
    _point(tmp_path, "part/1", words, age_s)
    assert run_folders(tmp_path) == [("0", tmp_path / "0"), ("part/1", tmp_path / "part/1")]


@pytest.mark.parametrize(
    ("text", "words", "problem"),
    [
        (
            "id: CartPole-v1",
            "env=mine",
            "env/mine.yaml does not say which kind it extends. Begin the file with `defaults: [BASE, _self_]`",
        ),
        ("defaults: [gym, _self_]\nnum_env: 4", "env=mine", "env/mine.yaml: env.num_env is not an option of env=mine"),
        ("defaults: [gym, _self_]", "env=mine env.num_env=4", "env.num_env is not an option of env=mine"),
        ("defaults: [gym\nid: x", "env=mine", "mine.yaml is not valid YAML at line 2: while parsing a flow sequence, "),
    ],
)
def test_a_problem_of_a_file_of_the_user_names_it(tmp_path, text, words, problem):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        compose(words.split(), tmp_path)
    assert any(problem in each for each in raised.value.problems)
    assert all(each.startswith("env.num_env") == (" " in words) for each in raised.value.problems if "num_env:" in each)


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("hydra.run.foo=1", "hydra.run.foo is not an option. To list all: collectx run --cfg all"),
        ("~hydra.foo", "~hydra.foo cannot be used, because hydra.foo is not an option. To list all: "),
        ("env.kwargs=[1]", "env.kwargs=[1] must be a mapping."),
        (
            "hydra.job.num=x",
            "hydra.job.num=x cannot be used: Value 'x' of type 'str' could not be converted to Integer.",
        ),
        (
            "+hydra.sweeper.params={seed: '0,1'}",
            "+hydra.sweeper.params={seed: '0,1'} cannot be used: hydra.sweeper.params can only be set in a file.",
        ),
        ("hydra.sweep=[1]", "hydra.sweep=[1] cannot replace the default, because one is a list and the other is not. "),
    ],
)
def test_an_override_that_hydra_refuses_is_named(word, problem):
    with pytest.raises(ConfigError) as raised:
        compose(["seed=1", word])
    assert raised.value.problems[0].startswith(problem)


@pytest.mark.parametrize("size", [0, 10_000])
def test_a_file_of_the_user_in_another_encoding_is_named(tmp_path, size, capsys):
    file = tmp_path / "env" / "mine.yaml"
    file.parent.mkdir()
    file.write_bytes(b"# Mine.\n" + b"# more\n" * size + b"# caf\xe9\ndefaults: [gym, _self_]")
    with pytest.raises(ConfigError) as raised:
        compose(["env=mine"], tmp_path)
    assert any(each.startswith(f"{file} is not UTF-8 (") for each in raised.value.problems), raised.value.problems
    assert listing.main(["env", "--config-dir", str(tmp_path)]) == 0
    assert "  mine         Mine.\n" in capsys.readouterr().out


def test_a_primary_file_that_does_not_exist(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"--config-name mine .* no file 'mine.yaml'\. Name the folder that contains it: --config-dir",
    ):
        Composer(tmp_path, "mine").load([])


@pytest.mark.parametrize(
    ("text", "number"), [("12:00:00", 43200), ("1:30", 90), ("1:30.5", 90.5), ("'12:00:00'", None), ("0:30:00", None)]
)
def test_a_time_that_yaml_reads_as_a_number_is_named_with_its_file_and_line(tmp_path, text, number):
    (tmp_path / "experiment").mkdir()
    path = tmp_path / "experiment" / "long.yaml"
    path.write_text(f"# @package _global_\nlauncher:\n  sbatch: {{begin: {text}}}\n")
    composed = Composer(tmp_path).examine(["experiment=long", "launcher=slurm"])
    message = f"{path}, line 3: YAML reads {text} as the number {number} (base 60). "
    message += f"If it is a time or a text, put it in quotes: '{text}'."
    assert composed.problems == [message] * (number is not None)


def test_a_configuration_that_is_shown_says_why_a_run_would_refuse_it(capsys):
    with pytest.raises(SystemExit):
        main.main(["run", "--cfg", "job", "trainer=custom"])
    shown = capsys.readouterr()
    assert "kind: custom" in shown.out
    assert shown.err == (
        "note: a run would refuse this configuration: trainer.target is missing. Add your class, which has a method "
        "train(collection): trainer.target=MODULE:NAME.\n"
    )
