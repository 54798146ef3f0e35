"""The table of what other libraries call the options."""

import inspect
import re
from pathlib import Path

import pytest

from collectx.cli.compose import Composer
from collectx.cli.main import SUBCOMMANDS
from collectx.config import other_names
from collectx.config.check import known_paths

ROOT = Path(__file__).parents[3]
ROWS = [row.strip("|").split("|") for row in other_names.TABLE.read_text().splitlines()[2:]]
# Arguments of Stable-Baselines3 that are not about learning or collecting, or that no option is like.
UNLIKE = {
    *("self", "env", "policy", "seed", "gamma", "_init_setup_model", "stats_window_size", "policy_kwargs"),
    *("optimize_memory_usage", "replay_buffer_class", "replay_buffer_kwargs", "rollout_buffer_class"),
    *("rollout_buffer_kwargs", "action_noise", "sde_sample_freq", "use_sde_at_warmup"),
}


def test_the_table_names_options_that_exist():
    groups, options = Composer().groups, {*known_paths(), "hydra.run.dir", "hydra.verbose"}
    for first, *_ in ROWS:
        for meant in re.findall(r"`((?:collectx )?[^` ]+)(?: env.id=[^`]+)?`", first) or re.findall(
            r"\(\.\./(.+)\)", first
        ):
            path, _, value = meant.partition("=")
            is_choice = value in (*groups.get(path, ()), "NAME") and path in groups
            is_command = meant.split()[0] == "collectx" and meant.split()[1] in SUBCOMMANDS
            is_option = path in options or path.startswith("env.kwargs.")
            assert is_choice or is_command or is_option or (ROOT / "docs" / meant).exists(), meant


@pytest.mark.ci
def test_each_argument_of_stable_baselines3_is_in_its_column():
    import stable_baselines3 as sb3

    column = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[1])}
    arguments = {
        name for algorithm in (sb3.PPO, sb3.DQN, sb3.SAC) for name in inspect.signature(algorithm.__init__).parameters
    }
    assert not arguments - column - UNLIKE


def test_the_nearest_part_of_a_path_decides():
    assert other_names.meant("policy_kwargs.net_arch") == ["policy.hidden_sizes"]
    assert other_names.meant("env_config.gravity") == ["env.kwargs"]
    assert other_names.meant("gravity") == []
