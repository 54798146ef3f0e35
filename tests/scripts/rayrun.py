"""A Ray cluster of three nodes on this machine, one of which is killed and its workers replaced; as a process of its
own, for `system/test_ray.py`."""

import psutil
import ray
from configurations import Log, counting, start
from ray.cluster_utils import Cluster
from user_code.streams import StreamChecker

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"place": 0}})
nodes = {
    node.all_processes["raylet"][0].process.pid: node
    for node in (cluster.add_node(num_cpus=2, resources={"place": 2}) for _ in range(2))
}
cluster.wait_for_nodes()
log, checker, seen, raylets, after = Log(), StreamChecker(restarts=True), set(), set(), 0
with start(
    "ray",
    "ray",
    counting(3, step_s=0.001),
    frames_per_batch=30,
    total_frames=-1,
    on_worker_failure="restart",
    worker_timeout_s=60.0,
    ray_init_config={"address": cluster.address},
    # Two halves of a node are its total, so that the workers are spread, and one node holds both afterwards.
    remote_configs={"num_cpus": 1, "resources": {"place": 1}, "scheduling_strategy": "SPREAD"},
    events=log,
) as collector:
    while after < 10:
        checker.take(next(collector))
        seen |= {part.worker for part in collector.last_batch_info.parts}
        if seen == {0, 1} and not raylets:
            # A worker's parent is the raylet of its node. The trainer's own node would take the trainer along.
            raylets = {psutil.Process(each["pid"]).ppid() for each in log.of("worker_joined")}
            mine = ray.get_runtime_context().get_node_id()
            victim = next(nodes[pid] for pid in raylets if pid in nodes and nodes[pid].node_id != mine)
            cluster.remove_node(victim, allow_graceful=False)
        after += len(log.of("worker_joined")) == 3 and bool(log.of("worker_failed"))
# In this order: a process that is still connected when its node ends is ended by Ray, with status 1.
ray.shutdown()
cluster.shutdown()
# Until Ray knows that the node is gone, it may place another there.
assert len(log.of("worker_failed")) == len(log.of("worker_restarted")) >= 1
assert len(log.of("worker_joined")) == 3
assert checker.frames >= 300
print(f"survived on {len(raylets)} nodes", flush=True)
