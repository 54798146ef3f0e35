"""Overrides and flags in any order."""

from __future__ import annotations

import pytest

from collectx.cli.arguments import split
from collectx.errors import ConfigError


def test_overrides_may_stand_on_both_sides_of_flags():
    arguments = split(["a=1", "-m", "b=1,2", "--config-dir", "conf", "~c", "--cfg=job"])
    assert arguments.words == ("a=1", "b=1,2", "~c")
    assert arguments.hydra_argv() == ["--multirun", "--config-dir", "conf", "--cfg", "job"]
    assert arguments.config_dir == "conf"
    assert arguments.config_name == "config"


@pytest.mark.parametrize(
    ("argv", "value", "words"), [(["--info", "a=1"], "all", ("a=1",)), (["-i", "plugins"], "plugins", ())]
)
def test_the_value_of_info_is_optional(argv, value, words):
    arguments = split(argv)
    assert (arguments.flags, arguments.words) == ({"info": value}, words)


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
    with pytest.raises(ConfigError) as raised:
        split(argv)
    assert message in str(raised.value)
