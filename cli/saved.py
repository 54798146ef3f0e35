"""Composes from the snapshot of a run, for `collectx reproduce` and `collectx resume`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from collectx.cli.arguments import Arguments
from collectx.cli.compose import Composer
from collectx.config.registry import GROUPS
from collectx.errors import ConfigError
from collectx.run import RunFolder, resumed

_PRIMARY = "_collectx_snapshot"


def split_folders(arguments: Arguments) -> tuple[list[str], tuple[str, ...]]:
    """The run folders and the overrides among the words. A sweep names its points' folders by overrides, such as
    `collector.num_workers=2`."""
    folders = [word for word in arguments.words if Path(word).is_dir() or not ("=" in word or word.startswith("~"))]
    return folders, tuple(word for word in arguments.words if word not in folders)


def read_snapshot(folder: RunFolder, choose: Callable[[RunFolder], Path]) -> dict[str, Any]:
    """The saved configuration as plain data. `choose` returns its file.

    Raises:
        ConfigError: it does not exist, or cannot be read.
    """
    if not folder.config.is_file():
        raise ConfigError([f"{folder.path} is not a run folder: {folder.config} does not exist."])
    content = resumed.read_config(choose(folder))
    # The run folder is not part of the configuration.
    return {key: value for key, value in content.items() if key != "hydra"}


def snapshot_composer(saved: dict[str, Any], overrides: Sequence[str], config_dir: str | None) -> Composer:
    """Composes from the snapshot, and groups that an override names from the packaged choices."""
    named = {text.lstrip("+").partition("=")[0] for text in overrides}
    replaced = [group for group in GROUPS if group in named]
    content = {key: value for key, value in saved.items() if key not in replaced}
    # The saved run may have replaced or resumed another.
    if isinstance(content.get("run"), dict):
        content["run"] = content["run"] | {"overwrite": False, "resume": "never"}
    content["defaults"] = [
        "_hydra",
        # The override replaces this choice.
        *({group: (saved.get(group) or {}).get("kind", "cpu")} for group in replaced),
        "_self_",
    ]
    ConfigStore.instance().store(_PRIMARY, content)
    return Composer(config_dir, _PRIMARY)
