"""The trainer's cost for many workers over gloo, on a machine without room for many processes.

The trainer is real: collector, schedule, transport, connections and gloo pairs. So are the workers' ends, but they are
threads of one other process and step no env: an active worker returns its slot unchanged, an idle one receives grants
and never delivers, like a very slow env. Not included: the time of a real network, and the load of a thousand
processes.
"""

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from benchmarks import fresh
from benchmarks.cases import ballast_config, counting_config, run_config
from benchmarks.overhead import take

_JOIN_S = 200.0


def measure(num_workers: int, num_active: int, seconds: float, **_: Any) -> dict[str, Any]:
    """Measures the trainer's microseconds of processor time per batch, also with one transfer of weights per batch, its
    memory and threads per joined worker, and the time until all workers have joined."""
    import torch

    from collectx import env as envs
    from collectx import policy as policies
    from collectx.collector import build
    from collectx.launcher.base import WaitingWorkers

    torch.set_num_threads(1)
    env = counting_config()
    spec = envs.read_spec(env)
    policy = ballast_config(0.02)
    module: Any = policies.build(policy, spec, 0)
    cfg = run_config(env, policy, "distributed", num_workers, 8, start_timeout_s=600.0, worker_timeout_s=600.0)
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
        # Every active worker loads every version before its next batch.
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
    """Microseconds of processor time per batch, and batches per second; calls `between` after `every` batches."""
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
    # The trainer is measured: the workers get a lower priority.
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

    from collectx.transport.base import BatchReport
    from collectx.transport.network.link import NetworkLink, join_trainer

    _, config, connection, pair = join_trainer(endpoint, worker, {"host": "crowd", "pid": os.getpid()}, _JOIN_S)
    link = NetworkLink(worker, connection, pair, config, endpoint.secret)
    version = -1
    nothing = np.empty(0)
    while (grant := link.acquire()) is not None:
        version = link.refresh(lambda weights: None, version)
        if active:
            link.send(grant.slot, BatchReport(version, 0, 0.0, 0.0, nothing, nothing.astype(np.int64)))


if __name__ == "__main__":
    fresh.serve(measure)
