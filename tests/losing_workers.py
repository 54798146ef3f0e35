"""Collectors that lose a worker, over the ways of `ways.py`."""

from dataclasses import replace

import ways
from configurations import Log, counting, custom, start
from user_code.streams import StreamChecker

from collectx.env.counting import EPISODES_PER_INCARNATION

# Each worker is a collector of two processes, one of which is lost.
RELAY = replace(ways.GLOO_ASYNC, name="relay")


def collector(way, mode, fault, lives=1, log=None, **knobs):
    """Three workers with three envs. Worker 1 fails in its first `lives` lives, when it has delivered some batches."""
    env = 3
    if way is RELAY:
        env, knobs = 9, knobs | {"num_workers": 2, "num_workers_per_collector": 2}
    if fault == "stopped":
        knobs["worker_timeout_s"] = 5.0
    shape = {"num_workers": 3, "frames_per_batch": 90, "total_frames": -1}
    policy = custom("user_code.faulty:FailingPolicy", fault=fault, env=env, lives=lives)
    return start(way.kind, way.place, counting(3), policy, events=log, on_worker_failure=mode, **shape | knobs)


def survive(way, fault, lives=1, num_batches=10, **knobs):
    """Collects that many batches after the last replacement; the number of frames of all, and the log."""
    checker, log, newest, after = StreamChecker(restarts=True), Log(), 0, 0
    with collector(way, "restart", fault, lives, log, **knobs) as batches:
        while after < num_batches:
            batch = next(batches)
            checker.take(batch.cpu())
            newest = max(newest, int(batch["observation"][..., 1].max()) // EPISODES_PER_INCARNATION)
            after += newest == lives
    return checker.frames, log
