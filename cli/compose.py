"""Composes groups, files and overrides into one typed configuration. No run folder, no process, no logging.

Called by the subcommands; `compose` is for tests, benchmarks and users of the library. Uses Hydra's internal config
loader, as its public one cannot compose inside a running application.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime, configure_log, setup_globals
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from hydra.version import setbase
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from collectx.cli import signatures
from collectx.cli.arguments import SEARCH_PATH
from collectx.cli.overrides import Checked, check
from collectx.config.check import UNSET, Unresolved
from collectx.config.check import check as check_config
from collectx.config.registry import GROUPS, KINDS
from collectx.config.schema.fields import incomplete
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.run import preflight


def compose(overrides: Sequence[str] = (), config_dir: str | os.PathLike[str] | None = None) -> RunConfig:
    """The configuration that `collectx run` with these overrides would use.

    Args:
        overrides: as on the command line, `["env=pendulum", "collector.num_workers=4"]`.
        config_dir: a folder of the user's choices, `<config_dir>/<group>/<name>.yaml`.

    Raises:
        ConfigError: with every problem.
    """
    composer = Composer(config_dir)
    checked = composer.check(overrides)
    composed = composer.examine(checked.overrides, checked.broken)
    if problems := [*checked.problems, *composed.problems]:
        raise ConfigError(problems)
    return composed.cfg


@dataclass(frozen=True)
class Composed:
    """A composed configuration.

    Attributes:
        node: the untyped configuration, Hydra's part included; empty if Hydra could not compose it.
        cfg: the typed configuration; options with problems are absent.
        problems: every problem of the configuration.
        note: message about keys of an experiment that were removed, or "".
    """

    node: DictConfig
    cfg: RunConfig
    problems: list[str]
    note: str = ""


class Composer:
    """Composes from the packaged choices and those of one folder of the user.

    Attributes:
        groups: the choices of every group by its name, without nested groups.
        config_name: the file that composition starts from.
    """

    def __init__(self, config_dir: str | os.PathLike[str] | None = None, config_name: str = "config"):
        if config_dir is not None and not os.path.isdir(config_dir):
            raise ConfigError([f"--config-dir {config_dir}: no such folder."])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            setbase("1.3")
        setup_globals()
        search_path = create_config_search_path(SEARCH_PATH)
        if config_dir is not None:
            # Where hydra.main puts it: behind the packaged files, which therefore cannot be replaced by accident.
            search_path.prepend("command-line", f"file://{os.path.abspath(config_dir)}", SearchPathQuery("schema"))
        self._loader = ConfigLoaderImpl(config_search_path=search_path)
        self.config_name = config_name
        self.groups: dict[str, list[str]] = {
            group: [name for name in self._loader.repository.get_group_options(group) if not name.startswith("_")]
            for group in self._loader.list_groups("")
            if group != "hydra"
        }

    def check(self, overrides: Sequence[str]) -> Checked:
        """Reads the overrides one by one; see `collectx/cli/overrides.py`."""
        return check(overrides, self.groups)

    def load(
        self, overrides: Sequence[str], mode: RunMode = RunMode.RUN, master: DictConfig | None = None
    ) -> DictConfig:
        """The untyped configuration, Hydra's part (`hydra`) included.

        Args:
            master: the configuration of the sweep, if the overrides are one of its points. It has the overrides of
                Hydra's part, and values such as the time of the sweep's folder.

        Raises:
            ConfigError: Hydra could not compose it.
        """
        try:
            if master is not None:
                return self._loader.load_sweep_config(master, list(overrides))
            return self._loader.load_configuration(self.config_name, list(overrides), mode)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            raise ConfigError([str(error).strip()]) from error

    def load_without_unused_keys(
        self, overrides: Sequence[str], master: DictConfig | None = None
    ) -> tuple[DictConfig, str]:
        """The untyped configuration without the keys of an experiment that belong to a choice which the overrides
        replace (`experiment=cartpole_ppo trainer=meter` lacks the keys that only PPO has), and the message about them,
        or ""."""
        node = self.load(overrides, master=master)
        unused = self._unused_keys(node)
        if not unused:
            return node, ""
        groups = dict.fromkeys(path.partition(".")[0] for path in unused)
        chosen = " ".join(f"{group}={node.hydra.runtime.choices[group]}" for group in groups)
        presets = " and ".join(dict.fromkeys(unused.values()))
        note = f"{chosen}: has no {', '.join(unused)}, which {presets} sets: left out."
        return self.load([*overrides, *(f"~{path}" for path in unused)], master=master), note

    def examine(
        self, overrides: Sequence[str], broken: Collection[str] = (), master: DictConfig | None = None
    ) -> Composed:
        """Composes the configuration and checks it.

        Args:
            overrides: overrides that `check` accepts.
            broken: groups that are not checked, as their choice is wrong.
            master: see `load`.
        """
        try:
            node, note = self.load_without_unused_keys(overrides, master)
        except ConfigError as error:
            return Composed(DictConfig({}), incomplete(RunConfig), list(error.problems))
        cfg, problems = typed(without_hydra(node), ignore=broken)
        return Composed(node, cfg, [*problems, *preflight.rule_problems(cfg), *signatures.problems(cfg)], note)

    def context(self, node: DictConfig) -> HydraContext:
        """Sets up logging and the user's callbacks, as `hydra.main` does, for a run or sweep that is composed."""
        JobRuntime.instance().set("name", node.hydra.job.name)
        configure_log(node.hydra.hydra_logging, node.hydra.verbose)
        return HydraContext(config_loader=self._loader, callbacks=Callbacks(node))

    def _unused_keys(self, node: DictConfig) -> dict[str, str]:
        """Paths such as `trainer.gamma`, each with the experiment that sets it, `experiment=cartpole_ppo`."""
        overrides = [text.lstrip("+~") for text in overrides_of(node)]
        groups = {group for group in GROUPS if KINDS[group] and any(text.startswith(f"{group}=") for text in overrides)}
        unused = {}
        for preset, choice in node.hydra.runtime.choices.items() if groups else ():
            if preset in GROUPS or "/" in str(preset) or choice is None:
                continue
            loaded = self._loader.repository.load_config(f"{preset}/{choice}")
            for group in groups:
                section = loaded.config.get(group) if loaded and isinstance(loaded.config, DictConfig) else None
                if not isinstance(section, DictConfig):
                    continue
                kind = KINDS[group].get(node[group].kind)
                known = {field.name for field in dataclasses.fields(kind.schema)} if kind is not None else set(section)
                for path in (f"{group}.{key!s}" for key in section if key not in known):
                    if not any(text.startswith((f"{path}=", f"{path}.")) for text in overrides):
                        unused[path] = f"{preset}={choice}"
        return unused


def without_hydra(node: DictConfig) -> DictConfig:
    """`node` without Hydra's part."""
    copy = node.copy()
    with open_dict(copy):
        copy.pop("hydra", None)
    return copy


def overrides_of(node: DictConfig, part: str = "task") -> list[str]:
    """The overrides of a composed configuration as written: those of Hydra's part (`hydra`), or the others (`task`)."""
    return [str(text) for text in OmegaConf.to_container(node.hydra.overrides[part], resolve=False) or ()]


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Parses overrides, which must have passed `check`, into Hydra's form."""
    return OverridesParser.create().parse_overrides(list(overrides))


def typed(node: DictConfig, ignore: Collection[str] = ()) -> tuple[RunConfig, list[str]]:
    """The configuration of a composition without Hydra's part, and its problems; see `collectx.config.check.check`. The
    composition itself is untyped: Hydra would stop at the first problem, and its advice to put a `+` before an unknown
    key would switch its own check off."""
    cfg, problems = check_config({str(key): _plain(node, str(key)) for key in node}, ignore)
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
