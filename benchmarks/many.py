"""Many worker processes on this machine over gloo, with an env that sleeps: what they cost the trainer.

    python -m benchmarks.many 1000 --inner 1 32 --plot workers.png

Joining, descriptors, threads, memory, the trainer's processor time per batch, and the time to replace a worker that is
killed. With `--inner 32`, each worker that joins is a collector of 32 processes (`num_workers_per_collector`).
The processes share this machine's cores: the time to join is that of their processor time, not of a cluster.
"""

import argparse
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

import gymnasium
import numpy as np

from benchmarks import fresh

KINDS = ("distributed_sync", "distributed_sync_overlap", "distributed")
_STEP_S = 1.0
_JOIN_S = 500.0
_BATCHES = 5


class Sleeper(gymnasium.Env):
    """Sleeps for a second in every step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        sleep(_STEP_S)
        return np.zeros(4, np.float32), 0.0, False, False, {}


gymnasium.register("Sleeper-v0", Sleeper, disable_env_checker=True, order_enforce=False)


def measure(kind: str, num_workers: int, inner: int, **_: Any) -> dict[str, float]:
    """Runs `num_workers` processes, which join in groups of `inner`; a batch has a frame of each."""
    import torch

    from benchmarks.cases import CASES, policy_config, run_config
    from collectx import env as envs
    from collectx import policy as policies
    from collectx.collector import start_collector
    from collectx.config.schema.env import GymEnvConfig

    torch.set_num_threads(1)
    env = GymEnvConfig(kind="gym", num_envs=1, id="benchmarks.many:Sleeper-v0")
    policy = policy_config(CASES["cartpole_1"])
    groups = num_workers // inner
    frames = num_workers if "sync" in kind else inner
    patience = {"start_timeout_s": _JOIN_S, "worker_timeout_s": _JOIN_S}
    restarts = {"on_worker_failure": "restart", "max_restarts": 1}
    inside = {"num_workers_per_collector": inner, "inner": "sync"} if inner > 1 else {}
    cfg = run_config(env, policy, kind, groups, frames, **patience, **restarts, **inside)
    spec = envs.read_spec(env)
    seen: list[tuple[str, float]] = []
    began, before = perf_counter(), _own_bytes(os.getpid())
    with start_collector(
        cfg, policies.build(policy, spec, 0), spec, lambda name, **_: seen.append((name, perf_counter()))
    ) as collector:
        while (joined := [at for name, at in seen if name == "worker_joined"]) == [] or len(joined) < groups:
            next(collector)
        ready_s = perf_counter() - began
        workers = _workers()
        result = {
            "join_s": max(joined) - began,
            # Of a sync collector: the first batch that has a frame of every process.
            "ready_s": ready_s,
            "descriptors": len(os.listdir("/proc/self/fd")) / groups,
            "threads": len(os.listdir("/proc/self/task")) / groups,
            "trainer_mb": (_own_bytes(os.getpid()) - before) / groups / 1e6,
            "worker_mb": sum(map(_own_bytes, workers)) / num_workers / 1e6,
        }
        for _batch in range(3 if "sync" in kind else groups):
            next(collector)
        batches = _BATCHES if "sync" in kind else _BATCHES * groups
        cpu, since = process_time(), perf_counter()
        for _batch in range(batches):
            next(collector)
        result |= {
            "ms_per_batch": 1e3 * (process_time() - cpu) / batches,
            "wall_s_per_batch": (perf_counter() - since) / batches,
        }
        killed, num_seen = perf_counter(), len(seen)
        os.kill(workers[-1], signal.SIGKILL)
        while not (again := [at for name, at in seen[num_seen:] if name == "worker_joined"]):
            next(collector)
        result["replaced_s"] = again[0] - killed
        closing = perf_counter()
    return result | {"close_s": perf_counter() - closing}


def _workers() -> list[int]:
    """Ids of the processes below the fork servers, in the order in which they were started."""
    import psutil

    me = os.getpid()
    return sorted(each.pid for each in psutil.Process().children(recursive=True) if each.ppid() != me)


def _own_bytes(pid: int) -> int:
    """Memory that no other process has mapped."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_"):
                total += 1024 * int(line.split()[1])
    return total


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many", description=__doc__)
    parser.add_argument("workers", type=int, nargs="+", help="numbers of worker processes")
    parser.add_argument("--inner", type=int, nargs="+", default=[1], help="processes per worker that joins (1)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--plot", type=Path, help="also draw the trainer's time per batch to this file")
    options = parser.parse_args()
    lines: dict[str, list[tuple[int, float]]] = {}
    for inner in options.inner:
        for kind in options.kinds:
            for count in options.workers:
                count = max(1, count // inner) * inner
                arguments = {"kind": kind, "num_workers": count, "inner": inner}
                try:
                    result = fresh.run("benchmarks.many", timeout_s=3 * _JOIN_S, **arguments)
                except fresh.Failed as error:
                    print(f"{kind} {count} in groups of {inner}: failed: {error}", flush=True)
                    continue
                figures = ", ".join(f"{name} {value:.3g}" for name, value in result.items())
                print(f"{kind} {count} in groups of {inner}: {figures}", flush=True)
                lines.setdefault(f"{kind}, groups of {inner}", []).append((count, result["ms_per_batch"]))
    if options.plot:
        plot(options.plot, lines, "worker processes", "trainer's processor time per batch, ms")


def plot(path: Path, lines: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, y_scale: str = "log") -> None:
    """Draws one line per entry; the horizontal axis is logarithmic."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for name, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    axes.set(xlabel=x, ylabel=y, xscale="log", yscale=y_scale)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    import sys

    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        fresh.serve(measure)
    else:
        main()
