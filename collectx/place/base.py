"""Where the workers of a run are, and how their batches travel to the trainer.

Users choose both with four groups: `collector`, `backend`, `launcher` and `devices`. `collectx.place.place_of` makes a
place of them. All other code asks this object instead of reading the groups.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from collectx.config import registry
from collectx.config.derived import device_named, num_workers_of, resolve_devices
from collectx.config.problem import Conflict, Problem, check_all, opt, use
from collectx.config.registry import KINDS
from collectx.config.schema.collector import ServerInferenceConfig
from collectx.config.schema.env import GymVectorEnvConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError, LauncherError
from collectx.place.launcher import InlineLauncher, Launcher
from collectx.transport.network.rpc_options import visible_problems

# Backends for workers on other hosts.
NETWORKS = tuple(name for name, kind in KINDS["backend"].items() if kind.implementation)


class Place:
    """Where the workers of a run are; one subclass for each launcher.

    Attributes:
        is_local: whether every worker runs on the machine of the trainer.
        is_job: whether the trainer, too, runs in a scheduler's job, instead of the command's process.
        learners_elsewhere: whether the other learners of a run may be on other machines.
        can_be_step: whether a command inside `salloc` starts the run with `srun` instead of `sbatch`.
        has_worker_jobs: whether the trainer submits a job for each worker.
        needs_workers: whether `collector=single`, which starts no workers, is refused.
        first_stage: what the display shows until the trainer's process can make its first env.
    """

    is_local = is_job = learners_elsewhere = can_be_step = has_worker_jobs = needs_workers = False
    first_stage = "importing torch"

    def __init__(self, cfg: RunConfig):
        self.cfg = cfg

    @property
    def is_here(self) -> bool:
        """Whether all processes of the run are on this machine."""
        return self.is_local and not self.is_job and not self.learners_elsewhere

    # --- how batches travel ---

    @property
    def backend(self) -> str:
        """The backend. `backend=auto` becomes inline within one process, shared_memory on one machine, and otherwise
        rpc with `collector=rpc`, nccl between GPUs, or gloo."""
        if self.cfg.backend.kind != "auto":
            return self.cfg.backend.kind
        return self._default_backend() if self.cfg.collector.has_workers else "inline"

    def _default_backend(self) -> str:
        if self.cfg.collector.kind == "rpc":
            return "rpc"
        return "gloo" if self._why_no_nccl() else "nccl"

    @property
    def is_inline(self) -> bool:
        """Whether the workers are in the trainer's process."""
        return self.backend == "inline"

    @property
    def shares_memory(self) -> bool:
        """Whether the workers are processes that share memory with the trainer."""
        return self.backend == "shared_memory"

    @property
    def has_ranks(self) -> bool:
        """Whether trainer and workers are ranks of MPI."""
        return self.backend == "mpi"

    @property
    def network(self) -> str | None:
        """The backend if batches travel over a network; otherwise None."""
        return self.backend if self.backend in NETWORKS else None

    def _why_no_nccl(self) -> str | None:
        """Returns why NCCL cannot send batches from GPU to GPU; None if it can."""
        ends = self._ends()
        for name, device in ends.items():
            if not device.startswith("cuda"):
                return f"nccl only sends batches from GPU to GPU, but {opt(f'devices.{name}={device}')}"
        # On another host the same name is another GPU.
        policy, storing = map(device_named, ends.values())
        if self.is_local and policy == storing:
            return (
                f"nccl needs a separate GPU at each end, but with {opt('launcher=local')}, "
                f"{opt('devices.policy_device')} and {opt('devices.storing_device')} are both {storing}"
            )
        return None

    def _ends(self) -> dict[str, str]:
        devices = self.cfg.devices
        return {name: getattr(devices, name) or devices.device or "cpu" for name in ("policy_device", "storing_device")}

    # --- what it needs ---

    @property
    def num_tasks(self) -> int:
        """The number of processes of a job that runs trainer and workers."""
        return 1 + self.cfg.collector.num_workers if self.cfg.collector.has_workers else 1

    def job_needs(self) -> dict[str, Any]:
        """Returns the tasks and cores of a job, or the cores of a learner on Ray, for `collectx plan`; or nothing."""
        return {}

    def processes(self) -> dict[str, int]:
        """Returns the number of processes of each role, on all hosts."""
        options, env = self.cfg.collector, self.cfg.env
        workers = 0 if self.is_inline else num_workers_of(options)
        nested = options.num_workers_per_collector if options.num_workers_per_collector > 1 else 0
        is_async_env = isinstance(env, GymVectorEnvConfig) and env.vectorization_mode == "async"
        evaluator, num_learners = int(self.cfg.eval.every_batches is not None), self.cfg.trainer.num_learners
        return {
            "trainer": 1,
            "other_learners": num_learners - 1,
            "workers": workers,
            "processes_in_workers": workers * nested,
            "inference_server": num_learners * isinstance(self.cfg.inference, ServerInferenceConfig),
            "env_processes": (workers * (nested or 1) or num_workers_of(options)) * env.num_envs * is_async_env,
            "evaluator": evaluator,
            "fork_server_and_tracker": 2 * evaluator,
        }

    def cores_of_trainer(self, usable: int) -> int:
        """Returns how many of the usable cores the workers leave to each learner. May connect to Ray."""
        return (usable - self.num_threads_beside()) // self.cfg.trainer.num_learners

    def gpu_of(self, rank: int) -> int:
        """Returns the number of a learner's GPU among those that its process sees."""
        return rank

    def num_threads_beside(self) -> int:
        """Returns the number of worker threads that share the trainer's cores. May connect to Ray."""
        options = self.cfg.collector
        processes = options.num_workers * options.num_workers_per_collector
        return processes * self.cfg.launcher.num_threads if self._shares_cores() else 0

    def _shares_cores(self) -> bool:
        return self.is_local

    # --- how it starts them ---

    def launcher(self, log_dir: Path | None) -> Launcher:
        """Returns the launcher with which this process starts the workers. Starts none. `log_dir` is the folder for
        worker logs on this machine; None: workers write to the terminal. Raises `LauncherError` if the Ray cluster is
        unreachable or too small; or this process cannot start the workers of this place."""
        return InlineLauncher() if self.is_inline else self._launcher_of_processes(log_dir)

    def _launcher_of_processes(self, log_dir: Path | None) -> Launcher:
        kind = self.cfg.launcher.kind
        raise LauncherError(f"launcher={kind} submits jobs, which only the command does. Use `collectx run`.")

    def launcher_of_learners(self, num_threads: int, log_dir: Path) -> Launcher:
        """Returns the launcher with which this process starts the other learners, numbered from 0, with this number of
        torch threads. Raises as `launcher` does."""
        raise LauncherError(f"launcher={self.cfg.launcher.kind} starts no learners.")

    # --- what does not fit ---

    def problems(self, acting: Callable[[], Sequence[str]] | None = None) -> Iterator[Problem]:
        """Yields the problems of the configuration that do not depend on the machine. `acting` returns the device of
        each worker's policy, by default that of `devices`."""
        of_all = self._acting if acting is None else acting
        rules = (self._backend_problems, self._single_problems, self._own_problems)
        return check_all((*rules, lambda: self._gpu_problems(of_all())))

    def _acting(self) -> list[str]:
        # A number that no cluster has is refused with the other problems.
        return [self._ends()["policy_device"]] * min(self.cfg.collector.num_workers, 1 << 20)

    def _backend_problems(self) -> Iterator[Problem]:
        """Collector, backend and launcher fit together."""
        collector, backend, launcher = self.cfg.collector, self.cfg.backend.kind, self.cfg.launcher.kind
        if collector.kind == "rpc" and backend not in ("auto", "rpc"):
            advice = use("backend=rpc", "collector=distributed", "collector=distributed_sync")
            yield Conflict("backend", f"{opt('collector=rpc')} always uses torch RPC", backend, advice)
            return
        yield from self._misplaced()
        if collector.needs_network and backend in ("inline", "shared_memory"):
            rule = f"{opt(f'collector={collector.kind}')} always uses a network"
            alternative = opt(f"collector=multi_{collector.schedule}")
            yield Conflict("backend", rule, backend, f"use {opt('backend=gloo')}, or {alternative}.")
        elif not collector.has_workers:
            yield from self._without_transport(opt("collector=single"))
        elif backend == "inline":
            rule = f"{opt(f'collector={collector.kind}')} with {opt(f'launcher={launcher}')} runs in several processes"
            yield Conflict("backend", rule, backend, use("backend=auto", "launcher=inline"))
        elif backend == "shared_memory" and not self.is_local:
            rule = f"the workers of {opt(f'launcher={launcher}')} may be on other hosts"
            yield Conflict("backend", rule, backend, use("backend=gloo"))
        elif backend == "nccl" and (reason := self._why_no_nccl()):
            yield Conflict("backend", reason, backend, use("backend=gloo"))

    def _misplaced(self) -> Iterator[Problem]:
        """Collector and backend are not those of other places only."""
        if self.cfg.collector.kind == "ray":
            rule, advice = "Ray starts the workers of collector=ray", "use launcher=ray, or launcher=inline to debug."
            yield Conflict("launcher", rule, self.cfg.launcher.kind, advice)

    def _without_transport(self, choice: str) -> Iterator[Problem]:
        if self.cfg.backend.kind not in ("auto", "inline"):
            rule = f"{choice} runs in one process, so nothing is sent"
            yield Conflict("backend", rule, self.cfg.backend.kind, use("backend=auto"))

    def _single_problems(self) -> Iterator[Problem]:
        """A launcher that starts workers has workers to start."""
        if self.needs_workers and not self.cfg.collector.has_workers:
            rule = "it starts workers, but collector=single has none to start"
            advice = "use launcher=local, or launcher=slurm for a job."
            yield Conflict("launcher", rule, self.cfg.launcher.kind, advice)

    def _own_problems(self) -> Iterator[Problem]:
        """Yields the problems of this launcher's options."""
        yield from ()

    def _gpu_problems(self, acting: Sequence[str]) -> Iterator[Problem]:
        """Yields the problems of workers that do not see the GPU on which their policy acts."""
        yield from visible_problems(self.cfg.backend, acting)

    # --- what this machine lacks, and notes ---

    def missing(self) -> list[str]:
        """Returns what this machine lacks to start the workers, a message each. Starts nothing."""
        return []

    def library_problems(self) -> Iterator[Problem]:
        """This machine has the libraries of the chosen backend, unless the trainer runs in a job, and of the launcher.
        They accept their options."""
        if self.is_job or self.cfg.backend.kind not in NETWORKS or self.cfg.backend.kind == "gloo":
            return
        if reason := registry.why_not(self.cfg.backend.kind):
            yield Conflict("backend", f"{reason}.", self.cfg.backend.kind)

    def unreachable(self) -> list[str]:
        """Returns messages about why the trainer, this process, cannot connect to workers. Imports torch for
        networks."""
        if self.network is None:
            return []
        from collectx.transport.network.addresses import local_addresses

        reason = registry.why_not(self.network)
        problems = [] if reason is None else [f"backend={self.network} cannot be used: {reason}."]
        if self.has_ranks and self.is_job and "PMIX_NAMESPACE" not in os.environ:
            problems = [
                f"backend=mpi cannot be used: launcher={self.cfg.launcher.kind} started the job without PMIx, which "
                "MPI needs. Use launcher.srun.mpi=pmix if `srun --mpi=list` names it, or backend=gloo."
            ]
        try:
            local_addresses(self.cfg.backend.interface)
        except ConfigError as error:
            problems.extend(error.problems)
        return problems

    def notes(self) -> list[str]:
        """Returns notes on the backend that `backend=auto` chose for a network, and on options without effect."""
        options = self.cfg.backend
        if self.network is None and self.learners_elsewhere:
            return []  # the learners use the network of these options
        if self.network is None:
            chosen = {"interface": options.interface, "port": options.port}
            return [
                f"backend.{name}={value} has no effect, because the workers of this run use no network. To use one, "
                "choose collector=distributed_sync or backend=gloo."
                for name, value in chosen.items()
                if value is not None
            ]
        if options.kind != "auto":
            return []
        where = "which listens on all network interfaces. To use only one, add backend.interface=NAME."
        if options.interface:
            where = f"over the network interface {options.interface}."
        elif self.is_local:
            where = "over the loopback interface, because all workers run on this machine."
        notes = {
            "nccl": "nccl, because policies and stored batches are both on GPUs.",
            "rpc": "rpc, which exchanges pickles between trainer and workers. Use it on private networks only.",
            "gloo": f"gloo, {where}",
        }
        return [f"backend=auto chose {notes[self.network]}"]

    @property
    def devices_of_pairs(self) -> tuple[str, str]:
        """The devices of the bytes in transit: at the trainer's end, and at the worker's. Only nccl sends between
        GPUs."""
        devices = resolve_devices(self.cfg.devices)
        ends = (devices.storing_device or "cpu", devices.policy_device or "cpu")
        return ends if self.backend == "nccl" else ("cpu", "cpu")
