"""Overrides and flags in any order."""

import re

import pytest

from collectx.cli import export
from collectx.cli.arguments import split
from collectx.errors import ConfigError


def test_overrides_may_stand_on_both_sides_of_flags():
    arguments = split(["a=1", "-m", "b=1,2", "--config-dir", "conf", "~c", "--info", "--cfg=job"])
    assert arguments.words == ("a=1", "b=1,2", "~c")
    assert arguments.flags == {"multirun": "", "config-dir": "conf", "info": "all", "cfg": "job"}
    assert split(["-i", "plugins"]).flags == {"info": "plugins"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--multirunn"], "Did you mean --multirun?"),
        # Hydra's flag --run would start what the user wanted to see.
        (["--dryrun"], "unknown flag --dryrun. To see what a run would do, without starting it: collectx plan"),
        (["--rn"], "unknown flag --rn. Write options without dashes: rn=true"),
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
        ("eval", ["run", "--config-dr", "conf"], "Did you mean --config-dir?"),
        ("logs", ["run", "--role", "trainer"], "To list them: collectx logs --help"),
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
