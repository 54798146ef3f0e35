"""A Ray cluster of three nodes on this machine, one of which is killed: run by tests/collector/test_ray.py.

Prints, as JSON in a line that begins with `found: `, among Ray's own: on how many nodes the workers were, the events,
and how many frames came whole.
"""

from __future__ import annotations

import json

import psutil
import ray
from collecting import counting, start
from ray.cluster_utils import Cluster

from collectx.env.counting import StreamChecker


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"place": 0}})
    nodes = [cluster.add_node(num_cpus=2, resources={"place": 2}) for _ in range(2)]
    cluster.wait_for_nodes()
    events, checker, after = [], StreamChecker(restarts=True), 0
    with start(
        "ray",
        "ray",
        counting(3, step_s=0.001),
        num_workers=2,
        frames_per_batch=30,
        total_frames=-1,
        on_worker_failure="restart",
        worker_timeout_s=60.0,
        ray_init_config={"address": cluster.address},
        # Two halves of a node are its whole, so that the workers are spread, and one node holds both afterwards.
        remote_configs={"num_cpus": 1, "resources": {"place": 1}, "scheduling_strategy": "SPREAD"},
        events=lambda name, **fields: events.append((name, fields)),
    ) as collector:
        raylets: set[int] = set()
        seen: set[int] = set()
        while after < 10:
            checker.take(next(collector))
            seen |= {part.worker for part in collector.delivery.parts}
            names = [name for name, _ in events]
            if seen == {0, 1} and nodes:
                raylets = {raylet_of(fields["pid"]) for name, fields in events if name == "worker_joined"}
                # The trainer's own node would take the trainer along.
                mine = ray.get_runtime_context().get_node_id()
                victim = next(node for node in nodes if _raylet(node) in raylets and node.node_id != mine)
                nodes.clear()
                cluster.remove_node(victim, allow_graceful=False)
            after += names.count("worker_joined") > 2 and "worker_failed" in names
    # In this order: a process that is still connected when its node ends is ended by Ray, with status 1.
    ray.shutdown()
    cluster.shutdown()
    found = {"nodes": len(raylets), "events": [name for name, _ in events], "frames": checker.frames}
    print("found: " + json.dumps(found), flush=True)


def _raylet(node) -> int:
    return node.all_processes["raylet"][0].process.pid


def raylet_of(pid: int) -> int:
    """The process of the node that has started this one."""
    return psutil.Process(pid).ppid()


if __name__ == "__main__":
    main()
