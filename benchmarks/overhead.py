"""The trainer's cost per batch for growing numbers of workers, and the time from publishing weights to their use.

batch    trainer's processor microseconds per batch, workers' time not counted: small batches of the counting env
publish  duration of `publish`, and time from its return to the delivery of the first batch collected with the new
         weights; one async worker with one-frame batches, so that the transfer dominates (and at most two batches that
         were ready before). Alternates with one memcpy of as many bytes into mapped shared memory
"""

import mmap
from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time
from typing import Any

from benchmarks import fresh
from benchmarks.cases import ballast_config, counting_config, run_config

_FEW = (1, 2, 4, 8)
WORKERS = {"multi_sync": _FEW, "multi_async": _FEW, "distributed": (*_FEW, 16, 32, 64), "distributed_sync": _FEW}
MEGABYTES = (0.01, 1.0, 100.0)


def measure(part: str, seconds: float, **arguments: Any) -> dict[str, Any]:
    """Measures `part`, "batch" or "publish"."""
    import torch

    torch.set_num_threads(1)
    return _batch(seconds, **arguments) if part == "batch" else _publish(seconds, **arguments)


def _batch(seconds: float, kind: str, num_workers: int, **_: Any) -> dict[str, Any]:
    from collectx import env as envs
    from collectx.collector import start_collector
    from collectx.config.schema.policy import PolicyConfig

    env = counting_config()
    frames = 8 * (num_workers if kind.endswith("_sync") else 1)
    cfg = run_config(env, PolicyConfig(kind="random"), kind, num_workers, frames)
    with start_collector(cfg, None, envs.read_spec(env)) as collector:
        take(collector, 1.0)
        began, cpu = perf_counter(), process_time()
        batches = take(collector, seconds)
        return {
            "us_per_batch": 1e6 * (process_time() - cpu) / batches,
            "batches_per_s": batches / (perf_counter() - began),
        }


def take(collector: Any, seconds: float) -> int:
    """Takes batches for `seconds`; returns their number."""
    batches, began = 0, perf_counter()
    while perf_counter() - began < seconds:
        next(collector)
        batches += 1
    return batches


def _publish(seconds: float, megabytes: float, **_: Any) -> dict[str, Any]:
    from collectx import env as envs
    from collectx import policy as policies
    from collectx.collector import start_collector

    env = counting_config()
    policy = ballast_config(megabytes)
    cfg = run_config(env, policy, "multi_async", 1, 1)
    spec = envs.read_spec(env)
    module: Any = policies.build(policy, spec, 0)
    memcpy = _memcpy(int(megabytes * 1e6))
    times: dict[str, list[float]] = {"publish": [], "use": [], "memcpy": []}
    with start_collector(cfg, module, spec) as collector:
        take(collector, 1.0)
        end = perf_counter() + seconds
        while perf_counter() < end or len(times["use"]) < 5:
            began = perf_counter()
            version = collector.publish(module)
            returned = perf_counter()
            next(collector)
            while collector.last_batch_info.parts[0].report.policy_version != version:
                next(collector)
            times["publish"].append(returned - began)
            times["use"].append(perf_counter() - returned)
            began = perf_counter()
            memcpy()
            times["memcpy"].append(perf_counter() - began)
    ratios = [publish / copy for publish, copy in zip(times["publish"], times["memcpy"], strict=True)]
    return {**{f"{name}_ms": 1e3 * median(values) for name, values in times.items()}, "ratios": ratios}


def _memcpy(num_bytes: int) -> Callable[[], Any]:
    """Returns a function that copies `num_bytes` from private to shared memory, both already mapped."""
    import torch

    source = torch.ones(num_bytes, dtype=torch.uint8)
    target = torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8)
    target.copy_(source)
    return lambda: target.copy_(source)


def ballast_policy(megabytes: float) -> Any:
    """A policy whose weights are `megabytes` large and whose forward does nearly nothing."""
    import torch
    from torch import nn

    class Ballast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(int(megabytes * 250_000)))

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return torch.zeros(observation.shape[0], dtype=torch.int64)

    return Ballast()


if __name__ == "__main__":
    fresh.serve(measure)
