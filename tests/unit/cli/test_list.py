"""`collectx list`, and the help of `collectx run`, which shows the same."""

import re
from dataclasses import fields
from functools import partial
from importlib import resources

import pytest

from collectx.cli import list as listing
from collectx.cli import run
from collectx.config.registry import KINDS
from collectx.config.schema.run import COMMAND_SECTIONS, SECTIONS


def test_every_group_in_the_order_of_the_data_path(capsys):
    assert listing.main([]) == 0
    out = capsys.readouterr().out
    groups = [line.rstrip(":") for line in out.splitlines() if not line.startswith(" ")]
    assert groups[:8] == ["env", "policy", "collector", "inference", "backend", "launcher", "devices", "trainer"]
    assert groups[8:] == ["logger", "experiment", "debug"]
    assert "  cartpole     CartPole-v1: balance a pole" in out
    assert "@package" not in out
    assert "Ray exchanges pickles: use it on trusted networks only.\n" in out


def test_lines_are_broken_between_words_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert listing.main(["env", "-v"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert "  counting     For tests: the observation is (env, episode," in lines


def test_the_comments_of_the_defaults_name_every_choice():
    conf = resources.files("collectx.conf")
    named = re.findall(r"^  - (\w+): .*# ([\w, ]+)", (conf / "config.yaml").read_text(), re.MULTILINE)
    choices = {group: sorted(names.split(", ")) for group, names in named if group != "experiment"}
    assert len(choices) == 10
    for group, names in choices.items():
        files = [file.name for file in (conf / group).iterdir()]
        assert names == sorted(re.findall(r"^([a-z]\w*)\.yaml$", "\n".join(files), re.MULTILINE)), group


@pytest.mark.parametrize("show", [partial(listing.main, ["trainer", "-v"]), partial(run.main, ["--help", "trainer"])])
def test_the_keys_of_a_group_with_defaults_and_documentation(capsys, show):
    assert show() == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "ppo PPO with a clipped objective and GAE" in out
    assert "trainer.gamma default 0.98 (ppo, impala), 0.99 (dqn, sac). Discount factor per frame, 0 to 1." in out
    assert "trainer.target required (custom). `module:Class` with train(collection)." in out
    keys = {f"trainer.{field.name}" for kind in KINDS["trainer"].values() for field in fields(kind.schema)}
    assert [key for key in keys - {"trainer.kind"} if f" {key} " not in out] == []


def test_the_keys_of_one_choice_have_the_values_of_its_file(capsys, tmp_path):
    assert listing.main(["env", "cartpole"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("env=cartpole: CartPole-v1: balance")
    assert 'env.id default "CartPole-v1". A registered id' in out
    assert listing.main(["devices", "cuda"]) == 0
    assert 'devices.device default "cuda".' in " ".join(capsys.readouterr().out.split())
    assert listing.main(["logger", "csv"]) == 0
    assert "\n  logger.csv.file\n" in capsys.readouterr().out
    (tmp_path / "env").mkdir()
    for name, base in {"mine": "gym", "vague": "nothing"}.items():
        (tmp_path / "env" / f"{name}.yaml").write_text("kind: " + base + "\nentry_point: a:B\n")
    assert listing.main(["env", "mine", "--config-dir", str(tmp_path)]) == 0
    assert 'env.entry_point default "a:B".' in " ".join(capsys.readouterr().out.split())
    assert listing.main(["env", "vague", "--config-dir", str(tmp_path)]) == 2
    assert "env=vague has no known kind" in capsys.readouterr().err
    assert listing.main(["trainer", "pp"]) == 2
    assert "trainer=pp is unknown. Did you mean trainer=ppo?" in capsys.readouterr().err


@pytest.mark.parametrize("section", ["run", "checkpoint", "eval", *COMMAND_SECTIONS])
def test_the_keys_of_what_has_no_choices(capsys, section):
    assert listing.main([section]) == 0
    keys = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith(f"  {section}.")]
    options = (SECTIONS | COMMAND_SECTIONS)[section]
    assert keys == [f"{section}.{field.name}" for field in fields(options)]


@pytest.mark.ci
class Weighted:
    def __init__(self, policy, beta: float = 0.05, layers=(64, 64), *, size, **others): ...


@pytest.mark.parametrize(("target", "is_found"), [(f"{__name__}:Weighted", True), ("nothing:Weighted", False)])
def test_a_choice_with_a_class_of_the_user_has_its_arguments(capsys, tmp_path, target, is_found):
    (tmp_path / "trainer").mkdir()
    text = f"defaults: [custom, _self_]\ntarget: {target}\nkwargs: {{beta: 0.1}}\n"
    (tmp_path / "trainer" / "weighted.yaml").write_text(text)
    assert listing.main(["trainer", "weighted", "--config-dir", str(tmp_path)]) == 0
    of = f"An argument of {target}"
    told = [
        f"trainer.kwargs.beta\n      default 0.1. {of} (float).",
        f"trainer.kwargs.layers\n      default [64, 64]. {of}.",
        f"trainer.kwargs.size\n      required. {of}.",
    ]
    out = capsys.readouterr().out
    assert [text in out for text in told] == [is_found] * 3
    assert "kwargs.policy" not in out


def test_the_help_of_run_has_the_choices_and_no_bases_of_them(capsys):
    assert run.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "\nlauncher: inline, local, ray, slurm, submitit, submitit_delayed\n" in out
    assert "\n  learning_rate: 0.002\n" in out


@pytest.mark.ci
def test_one_group_with_choices_of_the_user(tmp_path, capsys):
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "mine.yaml").write_text("# Mine.\nkind: custom\n")
    assert listing.main(["policy", "--config-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "policy:"
    assert "  mine            Mine." in out
    assert listing.main(["polic"]) == 2
    err = capsys.readouterr().err
    assert "Did you mean policy?" in err
    assert "To list all: collectx list" in err
    assert listing.main(["env", "policy"]) == 2
    assert "name one group, not 2 (env, policy)" in capsys.readouterr().err
