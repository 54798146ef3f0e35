"""Batches do not accumulate: after a warm-up, thousands of them change neither memory nor descriptors nor threads, in
the trainer and in its workers."""

import gc

import psutil
import torch
from configurations import counting, custom, start, worker_pids
from user_code.faulty import telling_policy
from ways import INLINE_ASYNC, SHARED_ASYNC, over

# A batch has 128 kB: if one in thirty were kept, memory would grow by more than this.
MOST = {"memory_mb": 12.0, "descriptors": 2, "threads": 1, "objects": 500}
NUM_BATCHES = 3000


def usage(processes):
    """Returns what all processes together use, and the number of objects of this one."""
    gc.collect()
    return {
        "memory_mb": sum(each.memory_info().rss for each in processes) / 1e6,
        "descriptors": sum(each.num_fds() for each in processes),
        "threads": sum(each.num_threads() for each in processes),
        "objects": len(gc.get_objects()),
    }


@over([INLINE_ASYNC, SHARED_ASYNC])
def test_what_a_process_has_does_not_grow_with_the_number_of_batches(way):
    policy, mine = custom("user_code.faulty:telling_policy", size=1000), telling_policy(1000)
    env, shape, found = counting(4, observation_size=500), {"frames_per_batch": 16, "total_frames": -1}, []
    with start(way.kind, way.place, env, policy, **shape) as collector:
        processes = [psutil.Process(), *map(psutil.Process, worker_pids(collector))]
        assert len(processes) == (1 if way is INLINE_ASYNC else 3)
        for num_batches in (NUM_BATCHES // 5, NUM_BATCHES):
            for _ in range(num_batches):
                next(collector)
                with torch.no_grad():
                    mine.module.number += 1
                collector.publish(mine)
            found.append(usage(processes))
    growth = {name: found[1][name] - found[0][name] for name in MOST}
    assert all(growth[name] <= most for name, most in MOST.items()), growth
