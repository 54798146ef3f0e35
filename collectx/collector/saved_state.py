"""The state of a collector in a checkpoint: counts, lives, the newest weights, and the state of its workers.

    frames, batches, frames_by_worker   delivered so far
    version, weights                    the newest weights that were published for all workers
    lives                               of the workers, by index; see `FailurePolicy`
    workers                             by worker: what `RequestHandler.state` returns

A worker whose envs were saved continues them in the same life. Any other one begins the next life: new episodes, with
seeds and trajectory ids that were not used before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collectx.collector.collector import Collector
from collectx.transport.base import encode_reset
from collectx.worker.spec import env_seed


def save(collector: Collector) -> dict[str, Any]:
    """Returns the state: tensors and plain data. Blocks until all workers have replied, or one is gone.

    The states of workers are left out, so that they begin new episodes, if slots are full that were not delivered.

    Raises:
        Exception: a worker is gone, as in `Collector.next`.
    """
    return {
        "frames": collector.num_frames,
        "batches": collector.num_batches,
        "frames_by_worker": dict(collector.frames_by_worker),
        "version": collector.policy_version,
        "weights": collector.transport.newest_weights(),
        "lives": dict(collector.failure_policy.lives),
        "workers": collector.ask("state") if collector.is_idle else {},
    }


def next_lives(state: Mapping[str, Any]) -> dict[int, int]:
    """The lives of the workers that continue after `state`."""
    restored = {worker for worker, saved in state["workers"].items() if "reason" not in saved["rollout"]}
    return {worker: life + (worker not in restored) for worker, life in state["lives"].items()}


def load(collector: Collector, state: dict[str, Any], seed: int) -> dict[int, str]:
    """Continues the counts, and restores the workers. Blocks until they have replied.

    Args:
        collector: was built with `resume=state`, and has delivered nothing.
        seed: the run's.

    Returns:
        For each worker that begins new episodes, the reason.
    """
    collector.count_from(state["frames"], state["batches"], state["frames_by_worker"])
    saved = {worker: each for worker, each in state["workers"].items() if worker in collector.workers}
    reasons = {worker: each["rollout"]["reason"] for worker, each in saved.items() if "reason" in each["rollout"]}
    states = {worker: (each,) for worker, each in saved.items() if worker not in reasons}
    refused = {worker: reason for worker, reason in _ask(collector, states).items() if reason is not None}
    # These were built with the seeds of their first episodes.
    collector.request_reset(encode_reset(env_seed(seed, state["frames"], 1), False), refused)
    without = "the state of its envs was not saved"
    return {worker: without for worker in collector.workers if worker not in saved} | reasons | refused


def _ask(collector: Collector, states: dict[int, tuple]) -> dict[int, str | None]:
    return collector.ask("load", per_worker=states) if states else {}
