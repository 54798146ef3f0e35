"""Keys of an experiment for a choice that the command line replaces: `experiment=cartpole_ppo trainer=meter` leaves out
what only PPO has. Keys that the other choice has too stay.

Called for every composed configuration. Must not know what the keys mean.
"""

from __future__ import annotations

import dataclasses

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from omegaconf import DictConfig

from collectx.config import GROUPS, KINDS


def surplus(node: DictConfig, loader: ConfigLoader) -> dict[str, str]:
    """What to leave out of a composed configuration, Hydra's part included: paths, as `trainer.gamma`, each with the
    experiment, as `experiment=cartpole_ppo`, that has it."""
    named = [str(text).lstrip("+~") for text in node.hydra.overrides.task]
    groups = {group for group in GROUPS if KINDS[group] and any(text.startswith(f"{group}=") for text in named)}
    if not groups:
        return {}
    assert isinstance(loader, ConfigLoaderImpl)
    found = {}
    for whole, choice in node.hydra.runtime.choices.items():
        if whole in GROUPS or "/" in str(whole) or choice is None:
            continue
        loaded = loader.repository.load_config(f"{whole}/{choice}")
        if loaded is None or not isinstance(loaded.config, DictConfig):
            continue
        for group, section in loaded.config.items():
            if group not in groups or not isinstance(section, DictConfig):
                continue
            cls = KINDS[str(group)].get(node[group].kind)
            known = {field.name for field in dataclasses.fields(cls)} if cls is not None else set(section)
            for path in (f"{group}.{key!s}" for key in section if key not in known):
                if not any(text.startswith((f"{path}=", f"{path}.")) for text in named):
                    found[path] = f"{whole}={choice}"
    return found


def note(node: DictConfig, found: dict[str, str]) -> str:
    """The sentence about `surplus`."""
    groups = dict.fromkeys(path.partition(".")[0] for path in found)
    chosen = " ".join(f"{group}={node.hydra.runtime.choices[group]}" for group in groups)
    return f"{chosen}: has no {', '.join(found)}, which {' and '.join(dict.fromkeys(found.values()))} sets: left out."
