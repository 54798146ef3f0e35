"""Composes from the snapshot of a run, for `collectx reproduce` and `collectx resume`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from collectx.cli.compose import Composer
from collectx.config.registry import GROUPS
from collectx.errors import ConfigError, DamagedFile
from collectx.run import RunFolder

_PRIMARY = "_collectx_snapshot"


def read_snapshot(folder: RunFolder) -> dict[str, Any]:
    """The saved configuration as plain data.

    Raises:
        ConfigError: it does not exist, or cannot be read.
    """
    if not folder.config.is_file():
        raise ConfigError([f"{folder.path} is not a run folder: {folder.config} does not exist."])
    try:
        content = OmegaConf.to_container(OmegaConf.load(folder.config))
    except (OSError, ValueError, OmegaConfBaseException, yaml.YAMLError) as error:
        raise DamagedFile([f"{folder.config}: cannot be read: {error}"]) from error
    if not isinstance(content, dict) or not content:
        raise DamagedFile([f"{folder.config}: is not a configuration"])
    # The run folder is not part of the configuration.
    return {str(key): value for key, value in content.items() if key != "hydra"}


def snapshot_composer(saved: dict[str, Any], overrides: Sequence[str], config_dir: str | None) -> Composer:
    """Composes from the snapshot, and groups that an override names from the packaged choices."""
    named = {text.lstrip("+").partition("=")[0] for text in overrides}
    replaced = [group for group in GROUPS if group in named]
    content = {key: value for key, value in saved.items() if key not in replaced}
    # The saved run may have replaced another.
    if isinstance(content.get("run"), dict):
        content["run"] = content["run"] | {"overwrite": False}
    content["defaults"] = [
        "_hydra",
        # The override replaces this choice.
        *({group: (saved.get(group) or {}).get("kind", "cpu")} for group in replaced),
        "_self_",
        {"override hydra/launcher": "points"},
        {"override hydra/job_logging": "none"},
        {"override hydra/hydra_logging": "none"},
    ]
    ConfigStore.instance().store(_PRIMARY, content)
    return Composer(config_dir, _PRIMARY)
