"""The state of a collector in a checkpoint: counts, lives, the newest weights, and the state of its workers.

    frames, batches, frames_by_worker   delivered so far
    version, weights                    the newest weights that were published for all workers
    lives                               their incarnations, by index; see `Placement`
    workers                             by worker: what `RequestHandler.state` returns

A worker that is starting has the state of an earlier process of the run, if there is one, and one that was never ready
has no life.

A worker whose envs were saved continues them in the same life. Any other one begins the next life: new episodes, with
seeds and trajectory ids that were not used before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collectx.collector.collector import Collector
from collectx.transport.base import Request, encode_reset
from collectx.worker.spec import env_seed


def save(collector: Collector) -> dict[str, Any]:
    """Returns the state: tensors and plain data. Blocks until all workers have replied, or one is gone.

    The states of workers are left out, so that they begin new episodes, if slots are full that were not delivered.

    Raises:
        Exception: a worker is gone, as in `Collector.next`.
    """
    workers = collector.pool.records
    # The states in requests to load one.
    kept = {worker.index: arguments[0] for worker in workers for _, arguments in worker.first_requests if arguments}
    return {
        "frames": collector.num_frames,
        "batches": collector.num_batches,
        "frames_by_worker": dict(collector.frames_by_worker),
        "version": collector.policy_version,
        "weights": collector.transport.newest_weights(),
        "lives": {
            worker.index: worker.incarnation
            for worker in workers
            if worker.incarnation or worker.index in kept or not worker.first_requests
        },
        "workers": (collector.ask("state") if collector.is_idle else {}) | kept,
    }


def next_lives(state: Mapping[str, Any]) -> dict[int, int]:
    """The lives of the workers that continue after `state`."""
    return {worker: life + (not _is_saved(state, worker)) for worker, life in state["lives"].items()}


def first_requests(state: Mapping[str, Any] | None, worker: int) -> list[Request]:
    """The requests to a worker before it takes part; see `WorkerPool`. `state` is that of the collector to continue, or
    None."""
    requests: list[Request] = [("ready", ())]
    if state is not None and _is_saved(state, worker):
        requests.append(("load", (state["workers"][worker],)))
    return requests


def _is_saved(state: Mapping[str, Any], worker: int) -> bool:
    saved = state["workers"].get(worker)
    return saved is not None and "reason" not in saved["rollout"]


def load(collector: Collector, state: dict[str, Any], seed: int) -> dict[int, str]:
    """Continues the counts, and restores the workers. Blocks until those have replied that take part; the others are
    restored before they do (`first_requests`).

    Args:
        collector: was built with `resume=state`, and has delivered nothing.
        seed: the run's.

    Returns:
        For each worker that is known to begin new episodes, the reason.
    """
    collector.count_from(state["frames"], state["batches"], state["frames_by_worker"])
    pool = collector.pool
    known = {worker: state["workers"].get(worker) for worker in pool.ready | pool.starting}
    states = {worker: (each,) for worker, each in known.items() if _is_saved(state, worker)}
    refused = {worker: reason for worker, reason in _ask(collector, states).items() if reason is not None}
    # These were built with the seeds of their first episodes. Of those that are starting it is not known yet.
    reset = encode_reset(env_seed(seed, state["frames"], 1), False)
    collector.request_reset(reset, refused.keys() | (pool.starting & states.keys()))
    reasons = {
        worker: "the state of its envs was not saved" if each is None else each["rollout"]["reason"]
        for worker, each in known.items()
        if worker not in states and worker in state["lives"]
    }
    return reasons | refused


def _ask(collector: Collector, states: dict[int, tuple]) -> dict[int, str | None]:
    return collector.ask("load", per_worker=states) if states else {}
