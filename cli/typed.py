"""From Hydra's composition to a typed configuration. The composition itself is untyped: Hydra would stop at the first
problem, and its advice to put a `+` before an unknown key would switch its own check off.

Called by every subcommand that runs something, before anything starts.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from collectx.config.check import UNSET, Unresolved, check
from collectx.config.registry import GROUPS
from collectx.config.schema.run import RunConfig


def typed(node: DictConfig, ignore: Collection[str] = ()) -> tuple[RunConfig, list[str]]:
    """The configuration of a composition without Hydra's part, and its problems; see `collectx.config.check.check`."""
    cfg, problems = check({str(key): _plain(node, str(key)) for key in node}, ignore)
    return cfg, [problem.text() for problem in problems]


def _plain(node: DictConfig, key: str) -> Any:
    """The value of a key as plain data, interpolations resolved: those of a group one by one."""
    if OmegaConf.is_missing(node, key):
        return UNSET
    try:
        value = node[key]
        if isinstance(value, DictConfig) and not value._is_none() and key in GROUPS:
            return {str(name): _plain(value, str(name)) for name in value}
        if isinstance(value, (DictConfig, ListConfig)):
            return OmegaConf.to_container(value, resolve=True)
        return value
    except OmegaConfBaseException as error:
        return Unresolved(str(error).splitlines()[0])
