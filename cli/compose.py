"""Composes groups, files and overrides into one typed configuration. No run folder, no process, no logging.

Called by the subcommands; `compose` is for tests, benchmarks and users of the library. Uses Hydra's internal config
loader, as its public one cannot compose inside a running application.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import yaml
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime, configure_log, run_job, setup_globals
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode, TaskFunction
from hydra.version import setbase
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from collectx.cli import experiment, signatures
from collectx.cli.overrides import Checked, check
from collectx.cli.typed import typed
from collectx.config.registry import GROUPS
from collectx.config.schema.fields import incomplete
from collectx.config.schema.run import RunConfig, as_dict
from collectx.errors import ConfigError
from collectx.run import rules

SEARCH_PATH = "pkg://collectx.conf"
_NAME_LENGTH = 120


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
    composed = composer.examine(checked)
    if composed.problems:
        raise ConfigError(composed.problems)
    return composed.cfg


@dataclass(frozen=True)
class Composed:
    """A composed configuration.

    Attributes:
        node: the untyped configuration, Hydra's part included; empty if Hydra could not compose it.
        cfg: the typed configuration; options with problems are absent.
        problems: every problem, including those of the overrides.
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
        # Groups whose choices are files of complete runs.
        self._preset_groups = {group for group in self.groups if group not in GROUPS}

    def check(self, overrides: Sequence[str]) -> Checked:
        """Reads the overrides one by one; see `collectx/cli/overrides.py`."""
        return check(overrides, self.groups)

    def load(self, overrides: Sequence[str], mode: RunMode = RunMode.RUN) -> DictConfig:
        """The untyped configuration, Hydra's part (`hydra`) included.

        Raises:
            ConfigError: Hydra could not compose it.
        """
        try:
            return self._loader.load_configuration(self.config_name, list(overrides), mode)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
            raise ConfigError([str(error).strip()]) from error

    def examine(self, checked: Checked, overrides: Sequence[str] | None = None) -> Composed:
        """Composes the configuration and checks it.

        Args:
            checked: what `check` returned.
            overrides: one point of a sweep; by default all of `checked.overrides`.
        """
        words = checked.overrides if overrides is None else overrides
        try:
            node, note = self.without_unused_keys(words)
        except ConfigError as error:
            return Composed(DictConfig({}), incomplete(RunConfig), [*checked.problems, *error.problems])
        cfg, problems = typed(without_hydra(node), ignore=checked.broken)
        problems = [*checked.problems, *problems, *rules.problems(cfg), *signatures.problems(cfg)]
        return Composed(node, cfg, problems, note)

    def without_unused_keys(self, overrides: Sequence[str]) -> tuple[DictConfig, str]:
        """The untyped configuration without `experiment.unused_keys`, and the message about them, or ""."""
        node = self.load(overrides)
        if not any(text.lstrip("+").partition("=")[0] in self._preset_groups for text in overrides):
            return node, ""
        unused = experiment.unused_keys(node, self._loader)
        if not unused:
            return node, ""
        return self.load([*overrides, *(f"~{path}" for path in unused)]), experiment.describe(node, unused)

    def run(self, node: DictConfig, task: TaskFunction) -> None:
        """Calls `task` as `hydra.main` does, with a configuration that is composed already: makes the run folder with
        `.hydra`, and sets up logging. Blocks until `task` returns; raises its error."""
        JobRuntime.instance().set("name", node.hydra.job.name)
        node.hydra.mode = RunMode.RUN
        configure_log(node.hydra.hydra_logging, node.hydra.verbose)
        callbacks = Callbacks(node)
        callbacks.on_run_start(config=node, config_name=self.config_name)
        context = HydraContext(config_loader=self._loader, callbacks=callbacks)
        job = run_job(task, node, job_dir_key="hydra.run.dir", job_subdir_key=None, hydra_context=context)
        callbacks.on_run_end(config=node, config_name=self.config_name, job_return=job)
        _ = job.return_value  # raises the error of a failed job


def without_hydra(node: DictConfig) -> DictConfig:
    """`node` without Hydra's part."""
    copy = node.copy()
    with open_dict(copy):
        copy.pop("hydra", None)
    return copy


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Parses overrides, which must have passed `check`, into Hydra's form."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_overrides(list(overrides))


def config_text(cfg: RunConfig) -> str:
    """A configuration as YAML, for comparison: equal text is an equal run. Resources of a scheduler, `launcher.wait`
    and `run.overwrite` have no effect on a run, so it contains only the name of the launcher."""
    content = as_dict(cfg)
    del content["run"]["overwrite"]
    content["launcher"] = cfg.launcher.kind
    return OmegaConf.to_yaml(OmegaConf.create(content), sort_keys=True)


@dataclass(frozen=True)
class Point:
    """One combination of a sweep.

    Attributes:
        overrides: all of them, the swept ones with one value each.
        name: the swept ones, as in `collector.num_workers=2,seed=1`: the point's folder and its row in the table.
    """

    overrides: tuple[str, ...]
    name: str


def points(overrides: Sequence[Override]) -> list[Point]:
    """Every combination of the swept values, the last one fastest."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    (combinations,) = BasicSweeper.split_arguments(list(overrides), None)
    return [Point(tuple(each), name) for each, name in zip(combinations, names(combinations), strict=True)]


def names(combinations: Sequence[Sequence[str]], fixed: Collection[str] | None = None) -> list[str]:
    """The names of the points: the overrides that differ between them, or from `fixed`, the overrides of all points."""
    columns = [*zip(*combinations, strict=True)]
    varied = [each for each in columns if len(set(each)) > 1 or (fixed is not None and each[0] not in fixed)]
    if not varied:
        return ["0"] * len(combinations)
    rows = zip(*varied, strict=True)
    return [_folder_name(",".join(text.lstrip("+") for text in row)) for row in rows]


def _folder_name(text: str) -> str:
    """`text` without characters that a path cannot have; long names are cut and end with a hash."""
    safe = re.sub(r"[^\w.,=+-]+", "_", text)
    if len(safe) <= _NAME_LENGTH:
        return safe
    return f"{safe[: _NAME_LENGTH - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
