"""Overrides and flags in any order."""

from __future__ import annotations

import re

import pytest

from collectx.cli.arguments import split
from collectx.errors import ConfigError


@pytest.mark.parametrize(
    ("argv", "words", "flags"),
    [
        (
            ["a=1", "-m", "b=1,2", "--config-dir", "conf", "~c", "--cfg=job"],
            ("a=1", "b=1,2", "~c"),
            ["--multirun", "--config-dir", "conf", "--cfg", "job"],
        ),
        (["--info", "a=1"], ("a=1",), ["--info", "all"]),
        (["-i", "plugins"], (), ["--info", "plugins"]),
    ],
)
def test_overrides_may_stand_on_both_sides_of_flags(argv, words, flags):
    arguments = split(argv)
    assert (arguments.words, arguments.hydra_argv()) == (words, flags)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--multirunn"], "did you mean --multirun?"),
        (["--experimental-rerun=x"], "collectx reproduce"),
        (["--config-path", "x"], "--config-dir"),
        (["--config-dir"], "needs a value"),
    ],
)
def test_wrong_flags(argv, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        split(argv)
