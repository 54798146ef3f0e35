"""The plugins of collectx for Hydra, installed as `hydra_plugins.collectx`, where Hydra looks for plugins. In an
editable installation it does not find them, so `register` adds them.

Every application of Hydra in the environment imports this module: it imports nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

# Without the argument, Hydra 1.3 uses the defaults of 1.1. Hydra 1.4 deprecates the argument.
VERSION_BASE = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}


class CollectxLauncher(Launcher):
    """`hydra/launcher=collectx`, the default of `collectx run`: checks all points of a batch, then runs those that are
    not completed one after another in this process, or submits their jobs together; see `collectx.cli.sweep`. Accepts
    and ignores any keys: an experiment may set those of the launcher that it replaces."""

    def __init__(self, **keys_of_other_launchers: object):
        pass

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from collectx.cli.sweep import PointRunner

        self._runner = PointRunner(hydra_context, task_function, config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        return self._runner.run(job_overrides)


class HalvingSweeper(Sweeper):
    """`hydra/sweeper=halving`, see `collectx.cli.halving`. `params` are values to sweep over, by key."""

    def __init__(self, params: Mapping[str, str] | None = None):
        self._params = params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from collectx.cli.halving import Halving

        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        self._halving = Halving(config, launcher.launch, getattr(task_function, "checked", {}))

    def sweep(self, arguments: list[str]) -> None:
        self._halving.run([*(f"{key}={value}" for key, value in self._params.items()), *arguments])


class UserSearchPath(SearchPathPlugin):
    """Adds the folder of `--config-dir` behind the packaged choices, so that it does not replace one by accident."""

    config_dir: ClassVar[str | os.PathLike[str] | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.config_dir is not None:
            search_path.append("command-line", f"file://{os.path.abspath(self.config_dir)}")


def register(config_dir: str | os.PathLike[str] | None) -> None:
    """Makes the plugins known to Hydra, and `config_dir` the folder of the user's choices."""
    UserSearchPath.config_dir = config_dir
    for plugin in (CollectxLauncher, HalvingSweeper, UserSearchPath):
        Plugins.instance().register(plugin)
