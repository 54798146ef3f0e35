"""`launcher=ray`: workers are Ray actors, on any node of the cluster with the requested resources.

With several learners, each one but the first is an actor, and its workers are processes of its node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collectx.config import registry
from collectx.config.problem import Conflict, Problem, counted, opt, use
from collectx.config.schema.launcher import RayLauncherConfig
from collectx.place.base import Place
from collectx.place.launcher import Launcher
from collectx.place.local import Local


class RayCluster(Place):
    needs_workers = True
    first_stage = "connecting to Ray"
    # What an actor is, what all of them are, and the option that sets how many there are.
    _role, _actors, _number = "worker", "workers", "collector.num_workers"

    @property
    def _launcher(self) -> RayLauncherConfig:
        assert isinstance(self.cfg.launcher, RayLauncherConfig)
        return self.cfg.launcher

    def _default_backend(self) -> str:
        # Ray may place a worker on the trainer's GPU; NCCL needs two.
        default = super()._default_backend()
        return default if default == "rpc" or self.cfg.collector.kind.startswith("distributed") else "gloo"

    def _launcher_of_processes(self, log_dir: Path | None) -> Launcher:
        """Ray keeps the logs of its actors; `log_dir` is ignored."""
        from collectx.place.ray_actors import RayLauncher

        options = self.cfg.collector
        return RayLauncher(self._launcher, options.num_workers, options.start_timeout_s)

    def _shares_cores(self) -> bool:
        from collectx.place import ray_actors

        timeout_s = self.cfg.collector.start_timeout_s
        ray_actors.connect(self._launcher.ray_init_config, timeout_s)
        return ray_actors.is_single_host(timeout_s)

    def _misplaced(self) -> Iterator[Problem]:
        if self.cfg.backend.kind == "mpi":
            rule = f"Ray starts the workers of {opt('launcher=ray')}, so MPI cannot connect them"
            yield Conflict("backend", rule, "mpi", use("backend=gloo"))

    def _gpu_problems(self, acting: Sequence[str]) -> Iterator[Problem]:
        """Each worker's actor requests the GPU on which its policy acts."""
        yield from super()._gpu_problems(acting)
        yield from self._request_problems(acting, self.cfg.collector.num_workers)

    def _request_problems(self, acting: Sequence[str], number: int) -> Iterator[Problem]:
        """`acting` are the devices of the actors' policies; `number` is the value of the option `_number`."""
        path, configs = "launcher.remote_configs", self._launcher.remote_configs
        per_worker = configs if isinstance(configs, list) else [configs] * len(acting)
        if len(per_worker) != len(acting):
            rule = f"has {counted(len(configs), 'entry', 'entries')} for {opt(f'{self._number}={number}')}"
            yield Problem(path, rule, advice=f"write {len(acting)}, for the {self._actors}, or one mapping for all.")
            return
        for num_gpus, acts in dict.fromkeys(zip(map(_num_gpus, per_worker), acting, strict=True)):
            kind, _, index = acts.partition(":")
            if num_gpus is None or kind != "cuda" or int(index or 0) < num_gpus:
                continue
            sees = f"sees {num_gpus} {'GPU' if num_gpus == 1 else 'GPUs'}, numbered from cuda:0"
            reason = f"it only {sees}" if num_gpus else "Ray may place it on a node without a GPU"
            part = "" if int(index or 0) else " (or a fraction)"
            other = "cuda" if num_gpus else "the CPU"
            yield Conflict(
                path,
                f"the policy acts on {acts}, but its {self._role} asks Ray for num_gpus={num_gpus}: {reason}",
                advice=f"ask for num_gpus={int(index or 0) + 1}{part}, or let the policy act on {other}.",
            )

    def library_problems(self) -> Iterator[Problem]:
        """Ray is installed too, and accepts the actors' arguments."""
        yield from super().library_problems()
        if reason := registry.why_not("ray", "launcher"):
            yield Conflict("launcher", f"{reason}.", "ray")
            return
        from collectx.place.ray_actors import objections

        configs = self._launcher.remote_configs
        objected = objections(configs if isinstance(configs, list) else [configs])
        yield from (Conflict("launcher.remote_configs", text) for text in objected)


class RayLearners(Local, RayCluster):
    """`launcher=ray` with several learners: each one but the first is an actor with its workers beside it."""

    learners_elsewhere = True
    _role, _actors, _number = "learner", "learners but the first", "trainer.num_learners"

    def _shares_cores(self) -> bool:
        return True

    def _requests(self) -> list[dict[str, Any]]:
        """Returns what each actor requests: at least a core for the learner, and one for each thread of its workers."""
        num_learners, configs = self.cfg.trainer.num_learners, self._launcher.remote_configs
        each = configs if isinstance(configs, list) else [configs] * (num_learners - 1)
        least = 1 + self.num_threads_beside() // num_learners
        return [{**config, "num_cpus": max(least, config.get("num_cpus") or 0)} for config in each]

    def job_needs(self) -> dict[str, Any]:
        return {"cores_of_each_learner": min(each["num_cpus"] for each in self._requests())}

    def cores_of_trainer(self, usable: int) -> int:
        """All learners have equal numbers of threads, so that they compute equal weights."""
        return (
            int(self.job_needs()["cores_of_each_learner"]) - self.num_threads_beside() // self.cfg.trainer.num_learners
        )

    def gpu_of(self, rank: int) -> int:
        return 0  # Ray shows each actor only its own

    def launcher_of_learners(self, num_threads: int, log_dir: Path) -> Launcher:
        from collectx.place.ray_actors import RayLearnersLauncher

        options = replace(self._launcher, remote_configs=self._requests(), num_threads=num_threads)
        return RayLearnersLauncher(options, self.cfg.collector.start_timeout_s, log_dir)

    def _request_problems(self, acting: Sequence[str], number: int) -> Iterator[Problem]:
        num_learners = self.cfg.trainer.num_learners
        return super()._request_problems(acting[: num_learners - 1], num_learners)


def _num_gpus(config: Mapping[str, Any]) -> int | None:
    """Returns how many GPUs an actor sees; None if what it requests is not a number, which Ray refuses."""
    amount = config.get("num_gpus") or 0
    return math.ceil(amount) if isinstance(amount, int | float) and math.isfinite(amount) else None
