"""Removes keys of an experiment for a choice that the command line replaces: `experiment=cartpole_ppo trainer=meter`
removes the keys that only PPO has.

Called for every composed configuration.
"""

from __future__ import annotations

import dataclasses

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig

from collectx.config.registry import GROUPS, KINDS


def unused_keys(node: DictConfig, loader: ConfigLoader) -> dict[str, str]:
    """The keys to remove from a composed configuration: paths such as `trainer.gamma`, each with the experiment that
    sets it, `experiment=cartpole_ppo`."""
    overrides = [str(text).lstrip("+~") for text in node.hydra.overrides.task]
    groups = {group for group in GROUPS if KINDS[group] and any(text.startswith(f"{group}=") for text in overrides)}
    if not groups:
        return {}
    assert isinstance(loader, ConfigLoaderImpl)
    unused = {}
    for preset, choice in node.hydra.runtime.choices.items():
        if preset in GROUPS or "/" in str(preset) or choice is None:
            continue
        loaded = loader.repository.load_config(f"{preset}/{choice}")
        if loaded is None or not isinstance(loaded.config, DictConfig):
            continue
        for group, section in loaded.config.items():
            if group not in groups or not isinstance(section, DictConfig):
                continue
            kind = KINDS[str(group)].get(node[group].kind)
            known = {field.name for field in dataclasses.fields(kind.schema)} if kind is not None else set(section)
            for path in (f"{group}.{key!s}" for key in section if key not in known):
                if not any(text.startswith((f"{path}=", f"{path}.")) for text in overrides):
                    unused[path] = f"{preset}={choice}"
    return unused


def describe(node: DictConfig, unused: dict[str, str]) -> str:
    """The message about `unused_keys`."""
    groups = dict.fromkeys(path.partition(".")[0] for path in unused)
    chosen = " ".join(f"{group}={node.hydra.runtime.choices[group]}" for group in groups)
    return f"{chosen}: has no {', '.join(unused)}, which {' and '.join(dict.fromkeys(unused.values()))} sets: left out."
