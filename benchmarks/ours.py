"""The same envs and policy through a collectx collector, with batches that the user owns (no `zero_copy`)."""

from collections.abc import Generator, Iterator
from typing import Any

from benchmarks import fresh
from benchmarks.cases import CASES, env_config, policy_config, run_config


def measuring(case: str, kind: str, **_: Any) -> Generator[dict[str, Any], float, None]:
    """Measures frames from one delivered batch to another, and seconds."""
    import torch

    from collectx import env as envs
    from collectx import policy as policies
    from collectx.collector import start_collector

    torch.set_num_threads(1)
    group = CASES[case]
    cfg = run_config(
        env_config(group), policy_config(group), kind, group.num_workers(kind), group.frames_per_batch(kind)
    )
    spec = envs.read_spec(cfg.env)
    with start_collector(cfg, policies.build(cfg.policy, spec, cfg.seed), spec) as collector:
        yield from turns(collector)


def turns(batches: Iterator[Any]) -> Generator[dict[str, Any], float, None]:
    """The turns of `fresh.serve_turns` over an iterator of batches."""
    return fresh.turns(lambda: next(batches).numel())


if __name__ == "__main__":
    fresh.serve_turns(measuring)
