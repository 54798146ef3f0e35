"""Rules of a configuration that depend on this machine, or on the folder of another run. The others are in
`collectx/config/rules/`.

Called by the command line before anything starts. Imports neither torch nor gymnasium.
"""

from __future__ import annotations

from collections.abc import Iterator

from collectx.config import rules as config_rules
from collectx.config.derived import ELSEWHERE, NETWORK_BACKENDS, is_async
from collectx.config.problem import Problem
from collectx.config.schema.launcher import RayLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import DamagedFile
from collectx.run import delivery_log
from collectx.transport.network import availability


def problems(cfg: RunConfig) -> list[str]:
    """The messages of all rules that `cfg` breaks; empty if it can run."""
    broken = config_rules.problems(cfg)
    is_backend_wrong = any(problem.path == "backend" for problem in broken)
    machine_rules = (_recorded_order, _ray, *(() if is_backend_wrong else (_backend,)))
    return [problem.text() for problem in (*broken, *config_rules.problems(cfg, machine_rules))]


def _recorded_order(cfg: RunConfig) -> Iterator[Problem]:
    """`collector.order_of` names an async run of as many workers."""
    collector, folder = cfg.collector, cfg.collector.order_of
    if folder is None:
        return
    path, advice = "collector.order_of", "use collector.order_of=null."
    if not is_async(collector):
        rule = f"collector={collector.kind} is sync, and its order is always the same"
        yield Problem(path, rule, folder, advice)
        return
    if reason := delivery_log.why_never(collector.refresh, collector.num_workers_per_collector, collector.inner):
        yield Problem(path, f"{reason}.", folder)
    try:
        highest = max(worker for worker, _, _ in delivery_log.read(folder))
    except (DamagedFile, ValueError) as error:
        yield Problem(path, str(error), folder, advice)
        return
    if highest >= collector.num_workers:
        rule = (
            f"it has batches of worker {highest}, so of at least {highest + 1} workers, but "
            f"collector.num_workers={collector.num_workers}"
        )
        yield Problem(path, rule, folder, "use as many as that run had.")


def _backend(cfg: RunConfig) -> Iterator[Problem]:
    """The backend works on this machine, if the trainer runs here."""
    backend = cfg.backend.kind
    if backend not in NETWORK_BACKENDS or backend == "gloo" or cfg.launcher.kind in ELSEWHERE:
        return
    if reason := availability.why_not(backend):
        yield Problem("backend", f"cannot work on this machine: {reason}.", backend)


def _ray(cfg: RunConfig) -> Iterator[Problem]:
    """Ray is installed and takes the arguments of the actors."""
    launcher = cfg.launcher
    if not isinstance(launcher, RayLauncherConfig):
        return
    if reason := availability.why_not("ray"):
        yield Problem("launcher", f"cannot work on this machine: {reason}.", "ray")
        return
    path, configs = "launcher.remote_configs", launcher.remote_configs
    per_worker = configs if isinstance(configs, list) else [configs]
    if all(isinstance(one, dict) for one in per_worker):
        for text in availability.actor_problems(path, per_worker):
            yield Problem(path, text.removeprefix(f"{path}: "))
