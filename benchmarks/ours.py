"""The same envs and policy through a collectx collector, with batches that the user owns (no `zero_copy`)."""

from collections.abc import Generator, Iterator
from time import perf_counter
from typing import Any

from benchmarks import fresh
from benchmarks.cases import CASES, env_config, policy_config, run_config

# Warm-up before every turn: consumes the batches that accumulated since the last one.
_WARM_S = 0.2


def measuring(case: str, kind: str, **_: Any) -> Generator[dict[str, Any], float, None]:
    """Measures frames from one delivered batch to another, and seconds."""
    import torch

    from collectx import env as envs
    from collectx import policy as policies
    from collectx.collector import build

    torch.set_num_threads(1)
    group = CASES[case]
    cfg = run_config(
        env_config(group), policy_config(group), kind, group.num_workers(kind), group.frames_per_batch(kind)
    )
    spec = envs.read_spec(cfg.env)
    with build(cfg, policies.build(cfg.policy, spec, cfg.seed), spec) as collector:
        yield from turns(collector)


def turns(batches: Iterator[Any]) -> Generator[dict[str, Any], float, None]:
    """The turns of `fresh.serve_turns` over an iterator of batches."""
    _take(batches, 1.0)
    seconds = yield {}
    while True:
        _take(batches, _WARM_S)
        frames, elapsed_s = _take(batches, seconds)
        seconds = yield {"frames": frames, "seconds": elapsed_s}


def _take(batches: Iterator[Any], seconds: float) -> tuple[int, float]:
    frames, began = 0, perf_counter()
    while (elapsed_s := perf_counter() - began) < seconds:
        frames += next(batches).numel()
    return frames, elapsed_s


if __name__ == "__main__":
    fresh.serve_turns(measuring)
