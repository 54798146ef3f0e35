"""What many workers cost the trainer over gloo, where the machine has no room for many processes.

The trainer is all real: its collector, schedule, transport, connections and gloo pairs. So are the workers' ends of
them, but these live together in one other process, a thread each, and step no env: an active one hands its slot over as
it is, an idle one takes its grants and never delivers, as an env would that is very slow. Left out: the time on a real
network, and anything that a thousand processes would do to one machine.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks import fresh
from benchmarks.cases import run_config
from benchmarks.overhead import take

_JOIN_S = 200.0


def measure(num_workers: int, num_active: int, seconds: float, **_: Any) -> dict[str, Any]:
    """The trainer's microseconds of processor per batch, what they become where every batch comes with one sending of
    weights, what a joined worker takes of the trainer's memory and threads, and how long they all took to join."""
    import torch

    from collectx import env as envs
    from collectx import policy as policies
    from collectx.collector import build
    from collectx.config import CountingEnvConfig, CustomPolicyConfig
    from collectx.launcher.base import WaitingWorkers

    torch.set_num_threads(1)
    env = CountingEnvConfig(kind="counting", num_envs=1, episode_length=10, observation_size=4, step_s=0.0)
    spec = envs.read_spec(env)
    policy = CustomPolicyConfig(kind="custom", target="benchmarks.overhead:ballast_policy", kwargs={"megabytes": 0.02})
    module: Any = policies.build(policy, spec, 0)
    cfg = run_config(
        env,
        policy,
        "distributed",
        num_workers,
        8,
        start_timeout_s=600.0,
        worker_timeout_s=600.0,
    )
    joined = _Count()
    endpoints: list[Any] = []
    launcher = WaitingWorkers(lambda worker: Path(os.devnull), endpoints.append, ("start_timeout_s", 600.0))
    before_bytes, before_threads = _resident_bytes(), _num_threads()
    with build(cfg, module, spec, joined, launcher=launcher) as collector:
        crowd = multiprocessing.get_context("spawn").Process(
            target=_crowd, args=(endpoints[0], num_workers, num_active), daemon=True
        )
        began = perf_counter()
        crowd.start()
        while joined.count < num_workers:
            next(collector)
        join_s = perf_counter() - began
        take(collector, 0.5)
        plain_us, batches_per_s = _cost_us(collector, seconds, lambda: None)
        # Every active worker takes every version, before its next batch.
        sending_us = _cost_us(collector, seconds, lambda: collector.publish(module), num_active)[0]
        grown_bytes, grown_threads = _resident_bytes() - before_bytes, _num_threads() - before_threads
    crowd.join(20.0)
    return {
        "us_per_batch": plain_us,
        "us_per_batch_and_sending": sending_us,
        "batches_per_s": batches_per_s,
        "join_s": join_s,
        "kib_per_worker": grown_bytes / num_workers / 1024,
        "threads_per_worker": grown_threads / num_workers,
    }


class _Count:
    """Counts the workers that have joined, from the events of a collector."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, name: str, **fields: Any) -> None:
        self.count += name == "worker_joined"


def _cost_us(collector: Any, seconds: float, between: Callable[[], Any], every: int = 1) -> tuple[float, float]:
    """The processor's microseconds per batch, and batches per second; `between` is called after `every` batches."""
    batches, cpu, began = 0, process_time(), perf_counter()
    while (elapsed_s := perf_counter() - began) < seconds:
        for _ in range(every):
            next(collector)
        between()
        batches += every
    return 1e6 * (process_time() - cpu) / batches, batches / elapsed_s


def _resident_bytes() -> int:
    import psutil

    return psutil.Process().memory_info().rss


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


# --- in the workers' process ---


def _crowd(endpoint: Any, num_workers: int, num_active: int) -> None:
    import torch

    torch.set_num_threads(1)
    # What is measured is the trainer's processor time: the workers may wait for their turn longer.
    with contextlib.suppress(OSError):
        os.nice(5)
    threads = [
        threading.Thread(target=_member, args=(endpoint, worker, worker < num_active), daemon=True)
        for worker in range(num_workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _member(endpoint: Any, worker: int, active: bool) -> None:
    import numpy as np
    import torch

    from collectx.batch import Layout, Leaf
    from collectx.transport.base import BatchReport
    from collectx.transport.network.worker import NetworkLink, join_trainer

    task, config, connection, pair = join_trainer(endpoint, worker, {"host": "crowd", "pid": os.getpid()}, _JOIN_S)
    leaves = tuple(Leaf(tuple(key), tuple(shape), getattr(torch, kind)) for key, shape, kind in task["leaves"])
    link = NetworkLink(worker, connection, pair, Layout(leaves, config.rows, config.steps), config)
    version = -1
    nothing = np.empty(0)
    while (slot := link.acquire()) is not None:
        version = link.refresh(lambda weights: None, version)
        if active:
            link.send(slot, BatchReport(version, 0.0, 0.0, 0.0, 0.0, nothing, nothing.astype(np.int64)))


if __name__ == "__main__":
    fresh.serve(measure)
