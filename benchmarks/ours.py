"""The same envs and policy through a collectx collector, its batches taken as a user gets them: owned memory."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from benchmarks import fresh
from benchmarks.cases import CASES, env_config, policy_config, run_config


def measure(case: str, kind: str, seconds: float, **_: Any) -> dict[str, Any]:
    """Frames/s from one delivered batch to another, after a warm-up; and microseconds of the workers per frame, by what
    they did."""
    import torch

    from collectx import env as envs
    from collectx import policy as policies
    from collectx.collector import build

    torch.set_num_threads(1)
    found = CASES[case]
    cfg = run_config(
        env_config(found), policy_config(found), kind, found.num_workers(kind), found.frames_per_batch(kind)
    )
    spec = envs.read_spec(cfg.env)
    with build(cfg, policies.build(cfg.policy, spec, cfg.seed), spec) as collector:
        next(collector)
        warm = perf_counter()
        while perf_counter() - warm < 1.0:
            batch = next(collector)
        frames, spent = 0, dict.fromkeys(("env_s", "policy_s", "wait_s", "send_s"), 0.0)
        cpu, began = fresh.CpuMeter(), perf_counter()
        while (elapsed_s := perf_counter() - began) < seconds:
            batch = next(collector)
            frames += batch.numel()
            for part in collector.delivery.parts:
                for name in spent:
                    spent[name] += getattr(part.timings, name)
        used = cpu.read()
    micros = {name.replace("_s", "_us"): round(1e6 * value / frames, 3) for name, value in spent.items()}
    return {"frames_per_s": frames / elapsed_s, "per_frame": micros, **used}


if __name__ == "__main__":
    fresh.serve(measure)
