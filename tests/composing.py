"""Configurations by overrides, as `collectx.cli.compose.compose` makes them, but each set of choices is composed once:
Hydra takes some 60 ms for a composition, which it spends on YAML, on copies of OmegaConf's nodes and on its grammar.
"""

import copy
import functools

from omegaconf import OmegaConf

from collectx.cli.compose import Composer, parsed, typed
from collectx.config.schema.run import RunConfig
from collectx.run import preflight


@functools.cache
def _composer() -> Composer:
    return Composer()


@functools.cache
def _choices(words: tuple[str, ...]):
    return _composer().load(_composer().check(words).overrides)


def examine(line: str = "") -> tuple[RunConfig, list[str]]:
    """The configuration of space-separated `group=choice` and `group.key=value`, and all of its problems."""
    values = [word for word in line.split() if "." in word.partition("=")[0] or word.startswith("seed=")]
    node = copy.deepcopy(_choices(tuple(word for word in line.split() if word not in values)))
    for override in parsed(values):
        OmegaConf.update(node, override.key_or_group, override.value(), force_add=True)
    cfg, problems, _ = typed(node, node.hydra)
    return cfg, [*problems, *preflight.rule_problems(cfg)]


def composed(line: str = "") -> RunConfig:
    """As `examine`, of a configuration without problems."""
    cfg, problems = examine(line)
    assert not problems, problems
    return cfg
