"""The collectors as a library: a trainer on the login host whose workers are SLURM jobs."""

from __future__ import annotations

import sys

import pytest

_SCRIPT = """
import os, subprocess, sys
import gymnasium, torch
from collectx import {collector}

class Push(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.where = torch.nn.Parameter(torch.zeros(1))
    def forward(self, observation):
        return self.where.expand(len(observation)).long()

def make():
    return gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync")

if __name__ == "__main__":
    policy, wanted = Push(), {wanted}
    with {collector}(
        [make] * 2, policy, frames_per_batch=120, total_frames=-1, sync={sync}, launcher="submitit",
        slurm_kwargs={{"timeout_min": 10, "slurm_cpus_per_task": 1}}, folder="run", on_worker_failure="restart",
        worker_timeout_s=20.0,
    ) as collector:
        for index, batch in enumerate(collector):
            assert batch.shape == {shape}
            if index == 5:
                policy.where.data.fill_(1)
                collector.update_policy_weights_()
                {fault}
            if index > 5:
                wanted -= {{(int(batch["collector", "policy_version"].min()), int(batch["action"].min()))}}
                wanted -= {{("worker", part.worker) for part in collector._collector.delivery.parts}}
            if not wanted:
                break
    print("done", policy.where.item())
"""


def _run(
    cluster,
    tmp_path,
    sync,
    fault="pass",
    wanted="{(1, 1), ('worker', 0), ('worker', 1)}",
    collector="DistributedCollector",
):
    shape = "(2, 3, 20)" if sync else "(3, 40)"
    script = _SCRIPT.format(sync=sync, shape=shape, fault=fault, wanted=wanted, collector=collector)
    (tmp_path / "script.py").write_text(script)
    return cluster.login([sys.executable, "script.py"], timeout=200, cwd=tmp_path)


@pytest.mark.parametrize("sync", [True, False])
def test_workers_are_jobs_that_end_with_the_collector(cluster, tmp_path, sync, wait_until):
    assert _run(cluster, tmp_path, sync) == "done 1.0\n"
    wait_until(lambda: cluster.jobs() == [], 90, "all jobs end")


@pytest.mark.parametrize("collector", ["DistributedCollector", "RPCCollector"])
def test_a_worker_whose_job_is_cancelled_comes_again(cluster, tmp_path, collector):
    fault = "subprocess.run(['scancel', '--name', 'collectx-worker', '--state', 'RUNNING'], check=True)"
    assert _run(cluster, tmp_path, True, fault, collector=collector) == "done 1.0\n"
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"event":"worker_restarted"' in events
