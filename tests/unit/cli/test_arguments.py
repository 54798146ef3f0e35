"""Overrides and flags in any order."""

import os
import re

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from collectx.cli import export, plan, tune
from collectx.cli.arguments import ask_which, split, subcommand
from collectx.cli.overrides import quoted
from collectx.errors import ConfigError


def test_overrides_may_stand_on_both_sides_of_flags():
    arguments = split(["a=1", "-m", "b=1,2", "--config-dir", "conf", "~c", "--info", "--cfg=job"])
    assert arguments.words == ("a=1", "b=1,2", "~c")
    assert arguments.flags == {"multirun": "", "config-dir": "conf", "info": "all", "cfg": "job"}
    assert split(["-i", "plugins"]).flags == {"info": "plugins"}


def test_the_newest_run_that_a_subcommand_can_use_is_proposed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("failed", "weights", "checkpoint")):
        (tmp_path / "outputs" / name / "snapshot").mkdir(parents=True)
        (tmp_path / "outputs" / name / "snapshot" / "config.yaml").touch()
        os.utime(tmp_path / "outputs" / name / "snapshot", (9 - age, 9 - age))
    for name, metrics in (("failed", ""), ("weights", "{}\n")):  # the first run failed before it trained
        (tmp_path / "outputs" / name / "policy.pt").touch()
        (tmp_path / "outputs" / name / "metrics.jsonl").write_text(metrics)
    (tmp_path / "outputs" / "checkpoint" / "checkpoints" / "000000002").mkdir(parents=True)
    (tmp_path / "outputs" / "checkpoint" / "checkpoints" / "000000002" / "manifest.json").write_text("{}")
    for name, told in (
        ("watch", ": collectx watch outputs/failed."),
        ("eval", " with weights: collectx eval outputs/weights."),
        ("resume", " with a checkpoint: collectx resume outputs/checkpoint."),
    ):
        assert f"For your newest run{told}" in ask_which(f"collectx {name} DIR: do it")


@pytest.mark.parametrize(
    "text", ["a=1,b=2", "it's", "\\", "x\\", "\\'", "a\\b\\'c\\\\", "C:\\new\\", "", "'", '"', "\\\\'\\"]
)
def test_a_quoted_text_is_the_value_that_hydra_reads(text):
    assert OverridesParser.create().parse_override(f"key={quoted(text)}").value() == text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--multirunn"], "Did you mean --multirun?"),
        # Hydra's flag --run would start what the user wanted to see.
        (["--dryrun"], "unknown flag --dryrun. To see what a run would do, without starting it: collectx plan"),
        (["--dry"], "unknown flag --dry. To see what a run would do, without starting it: collectx plan"),
        (["--rn"], "unknown flag --rn, and rn is not an option. Did you mean run?"),
        (["--cfg"], "--cfg needs a value (job, hydra or all). Write it after the flag: --cfg VALUE"),
        (["--experimental-rerun=x"], "collectx reproduce"),
        (["--config-path", "x"], "--config-dir"),
        (["--config-dir"], "--config-dir needs a value. Write it after the flag: --config-dir VALUE"),
    ],
)
def test_wrong_flags(argv, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        split(argv)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["format=memmap", "weights=best"], "export: format=memmap has no option 'weights'. Leave out weights=best."),
        (["format=memmap", "fps=3"], "export: format=memmap has no option 'fps'. Leave out fps=3."),
        (["format=onnx", "task=x"], "export: format=onnx has no option 'task'. Leave out task=x."),
        (["format=onnx", "other"], "export: format=onnx takes one run folder. Leave out other."),
        (["format=parquet"], "export: there is no folder 'run'."),
    ],
)
def test_options_of_other_formats_are_refused(capsys, words, message):
    assert export.main(["run", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("subcommand", "words", "end"),
    [
        ("eval", ["--collector.num_workers=3"], "Write options without dashes: collector.num_workers=3"),
        ("eval", ["run", "--episodes", "3"], "Write options without dashes: episodes=3"),
        ("eval", ["run", "--video"], "Write options without dashes: video=true"),
        ("eval", ["run", "--max_frames_per_episode=9"], "Write options without dashes: max_frames_per_episode=9"),
        ("run", ["--env=pendulum"], "--env=pendulum. Write options without dashes: env=pendulum"),
        ("run", ["--env.kwargs.g", "9.8"], "Write options without dashes: env.kwargs.g=9.8"),
        ("run", ["--launcher.trainer.gpus=2"], "Write options without dashes: launcher.trainer.gpus=2"),
        ("run", ["--hydra.run.dir=here"], "Write options without dashes: hydra.run.dir=here"),
        # What is no option without dashes either is not proposed.
        ("run", ["--foo=3"], "unknown flag --foo=3, and foo is not an option. To list all groups: collectx list"),
        ("run", ["--num_workers", "3"], "and num_workers is not an option. Did you mean collector.num_workers?"),
        ("plan", ["--env.nothing=3"], "env.nothing is not an option. To list all: collectx list env -v"),
        ("eval", ["run", "--epsodes=3"], "and epsodes is not an option. Did you mean eval.episodes?"),
        ("tune", ["--minutes=9"], "--minutes=9. Write options without dashes: minutes=9"),
        ("cancel", ["run", "--wait=3"], "unknown flag --wait=3. To list all flags: collectx cancel --help"),
        ("plan", ["--jsn=1"], "Did you mean --json?"),
        ("eval", ["run", "--config-dr", "conf"], "Did you mean --config-dir?"),
        ("logs", ["run", "--role", "trainer"], "To list all flags: collectx logs --help"),
        ("logs", ["run", "--folow"], "Did you mean --follow?"),
    ],
)
def test_an_unknown_flag_is_answered_with_what_to_type(subcommand, words, end):
    with pytest.raises(ConfigError) as raised:
        split(words, subcommand)
    assert str(raised.value).endswith(end)


def test_only_subcommands_that_compose_have_hydras_flags():
    assert split(["-cd", "conf"], "list").config_dir == "conf"
    for words in (["outputs", "-m"], ["outputs", "-p", "x"], ["--version"], ["--info"]):
        with pytest.raises(ConfigError, match="unknown flag"):
            split(words, "status")
    assert split(["outputs", "--now"], "cancel").flags == {"now": ""}


@pytest.mark.parametrize(
    ("subcommand", "words", "flag"),
    [
        ("eval", ["run", "--cfg", "job"], "--cfg"),
        ("eval", ["run", "-c", "job"], "--cfg"),
        ("eval", ["run", "--cfg=job"], "--cfg"),
        ("eval", ["run", "--config-name", "x"], "--config-name"),
        ("list", ["-m"], "--multirun"),
        ("list", ["--info"], "--info"),
        ("plan", ["--resolve"], "--resolve"),
        ("plan", ["-i", "plugins"], "--info"),
        ("reproduce", ["run", "--config-name", "x"], "--config-name"),
        ("resume", ["run", "--run"], "--run"),
        ("tune", ["--cfg", "all"], "--cfg"),
    ],
)
def test_a_flag_of_hydra_that_a_subcommand_would_ignore_is_refused(subcommand, words, flag):
    split(words, "run")
    with pytest.raises(ConfigError, match=f"{subcommand} has no flag {flag}"):
        split(words, subcommand)


def test_resume_and_reproduce_print_what_they_would_run():
    assert split(["run", "--cfg", "job"], "resume").flags == {"cfg": "job"}
    assert split(["run", "--cfg", "job"], "reproduce").flags == {"cfg": "job"}


@pytest.mark.parametrize("main", [plan.main, tune.main])
def test_an_error_of_the_users_class_is_told_with_its_place(main, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    kwargs = ["env.kwargs.fault=raises", "env.kwargs.at_step=1"]
    assert main(["env=gym", "env.entry_point=user_code.faulty:FaultyEnv", *kwargs]) == 1
    what, of_env, place = capsys.readouterr().err.splitlines()[-3:]
    assert what == "collectx: user_code.faulty.BrokenLever: ('left', 3)"
    assert of_env == "  raised in step() of env 0 (of 1)"
    assert re.fullmatch(r"  raised in .*/user_code/faulty.py:\d+, in throw", place)


def test_an_error_of_collectx_itself_keeps_its_traceback():
    with pytest.raises(TypeError):
        subcommand("plan", len)([])
