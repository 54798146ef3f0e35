"""`launcher=local`: workers are processes of this machine.

`launcher=inline`: workers are generators in the trainer's process, for debugging any collector.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from collectx.config.problem import Problem, opt
from collectx.config.schema.fields import Unset
from collectx.errors import LauncherError
from collectx.place.base import Place
from collectx.place.launcher import Launcher
from collectx.place.local_launcher import LocalLauncher, check_descriptors


class Local(Place):
    is_local = True

    def _default_backend(self) -> str:
        return super()._default_backend() if self.cfg.collector.needs_network else "shared_memory"

    def processes(self) -> dict[str, int]:
        counts = super().processes()
        num_starting = (counts["workers"] + counts["evaluator"] > 0) + counts["other_learners"]
        return counts | {"fork_server_and_tracker": 2 * num_starting}

    def _launcher_of_processes(self, log_dir: Path | None) -> Launcher:
        options, launcher = self.cfg.collector, self.cfg.launcher
        how = launcher.num_threads, options.start_timeout_s, launcher.pin_cores, log_dir
        if self.has_ranks:
            from collectx.place.mpi import MpiLauncher

            return MpiLauncher(*how)
        return LocalLauncher(*how, prints_errors=log_dir is not None or options.on_worker_failure != "raise")

    def launcher_of_learners(self, num_threads: int, log_dir: Path) -> Launcher:
        return LocalLauncher(num_threads, self.cfg.collector.start_timeout_s, log_dir=log_dir)

    def missing(self) -> list[str]:
        try:
            processes = self.processes()
            check_descriptors(processes["workers"], is_served=bool(processes["inference_server"]))
        except LauncherError as error:
            return [str(error)]
        except Unset:
            pass  # a point of a sweep, in which another option failed its check
        return []


class Inline(Place):
    is_local = True

    def _default_backend(self) -> str:
        return "inline"

    def _backend_problems(self) -> Iterator[Problem]:
        """Every collector can be inline."""
        choice = opt("launcher=inline") if self.cfg.collector.has_workers else opt("collector=single")
        yield from self._without_transport(choice)
