"""Configurations by overrides, as `collectx.cli.compose.compose` makes them, but each set of choices is composed once:
Hydra takes some 60 ms for a composition, which it spends on YAML, on copies of OmegaConf's nodes and on its grammar.
"""

import functools
import os
import pickle
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from collectx.cli.compose import Composer, parsed, typed
from collectx.config.registry import GROUPS
from collectx.config.schema.run import RunConfig
from collectx.run import preflight


@functools.cache
def _composer() -> Composer:
    return Composer()


@functools.cache
def _loaded(*words: str) -> bytes:
    """A composition by Hydra. Pickled, as `copy` takes five times as long."""
    return pickle.dumps(_composer().load(_composer().check(words).overrides))


@functools.cache
def _choice(group: str, name: str) -> DictConfig:
    """A choice of a group as its file says it, which may begin with that of another choice."""
    file = resources.files("collectx.conf").joinpath(group, f"{name}.yaml")
    keys = yaml.load(file.read_text(), yaml.CSafeLoader)
    others = [each for each in keys.pop("defaults", ()) if each != "_self_"]
    return OmegaConf.merge(*(_choice(group, each) for each in others), keys)


def with_choices(words: Sequence[str]) -> DictConfig:
    """The composition of these choices; their files are read without Hydra, if all are of the packaged groups, or
    `debug=tiny`."""
    chosen = dict(word.split("=", 1) for word in words)
    is_tiny = chosen.get("debug") == "tiny"
    if not all(
        (group in GROUPS and name in _composer().groups[group]) or (group == "debug" and is_tiny)
        for group, name in chosen.items()
    ):
        return pickle.loads(_loaded(*words))
    node = pickle.loads(_loaded())
    for group, name in chosen.items():
        if group in GROUPS:
            node[group] = _choice(group, name)
        node.hydra.runtime.choices[group] = name
    if is_tiny:
        node.merge_with(_choice("debug", "tiny"))
    node.hydra.overrides.task = list(words)
    return node


def examine(line: str = "") -> tuple[RunConfig, list[str]]:
    """The configuration of space-separated `group=choice` and `group.key=value`, and all of its problems."""
    values = [word for word in line.split() if _is_value(word)]
    node = with_choices([word for word in line.split() if word not in values])
    for override in parsed(values):
        OmegaConf.update(node, override.key_or_group, override.value(), force_add=True)
    cfg, problems, _ = typed(node, node.hydra)
    return cfg, [*map(str, problems), *preflight.rule_problems(cfg)]


def composed(line: str = "") -> RunConfig:
    """Examines a configuration as `examine` does, and asserts that it has no problems."""
    cfg, problems = examine(line)
    assert not problems, problems
    return cfg


def remember_compositions(patch: pytest.MonkeyPatch) -> None:
    """Within `patch`, Hydra composes each set of choices of the packaged files once, and applies values to copies."""
    loader: Any = type(_composer()._loader)
    load, made = loader.load_configuration, {}

    def remembered(self, config_name: str, overrides: list[str], run_mode: Any, **options: Any) -> DictConfig:
        sources = [(source.scheme(), source.path) for source in self.get_sources()]
        is_special = "file" in dict(sources) or re.search(r"hydra\.(searchpath|job)", " ".join(overrides))
        words = [] if is_special else parsed(overrides)
        swept = [word for word in words if word.is_sweep_override()]
        if is_special or (swept and run_mode is RunMode.RUN):
            return load(self, config_name, overrides, run_mode, **options)
        values = [word for word in words if word not in swept and _is_value(word.input_line)]
        choices = [word.input_line for word in words if word not in swept and word not in values]
        # A saved configuration.
        stored = repr(ConfigStore.instance().repo.get(f"{config_name}.yaml"))
        key = (config_name, stored, *choices, run_mode, *sources, *options.items())
        if key not in made:
            # Nodes consist of thousands of objects, which would slow each garbage collection down.
            made[key] = pickle.dumps(load(self, config_name, choices, run_mode, **options))
        node = pickle.loads(made[key])
        self._apply_overrides_to_config(values, node)
        hydras, tasks = (
            [word.input_line for word in words if word.is_hydra_override() == is_hydras] for is_hydras in (True, False)
        )
        node.hydra.overrides.hydra, node.hydra.overrides.task = hydras, tasks
        node.hydra.job.override_dirname = ",".join(sorted(task.removeprefix("++") for task in tasks))
        node.hydra.runtime.cwd = os.getcwd()
        return node

    patch.setattr(loader, "load_configuration", remembered)


def _is_value(word: str) -> bool:
    """Whether an override sets an option, and chooses no file of a group."""
    name = word.partition("=")[0]
    return ("." in name and "@" not in name) or name == "seed"
