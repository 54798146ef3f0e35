"""The collectors as a library: a trainer on the login host, or in a job, whose workers are SLURM jobs."""

from __future__ import annotations

import json
import sys

import pytest
from machines import wait_until
from running import nightly

_SCRIPT = """
import subprocess
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
    policy, awaited = Push(), {{(1, 1), ("worker", 0), ("worker", 1)}}
    with {collector}(
        [make] * 2, policy, frames_per_batch=120, total_frames=-1, sync={sync}, launcher="submitit",
        slurm_kwargs={{"timeout_min": 10, "slurm_cpus_per_task": 1}}, folder="run", on_worker_failure="restart",
        worker_timeout_s=20.0,
    ) as collector:
        for index, batch in enumerate(collector):
            assert batch.shape == ((2, 3, 20) if {sync} else (3, 40))
            if index == 5:
                policy.where.data.fill_(1)
                collector.update_policy_weights_()
                subprocess.run(["scancel", "--name=collectx-worker", "--state=RUNNING"], check=True)
            if index > 5:
                awaited.discard((int(batch["collector", "policy_version"].min()), int(batch["action"].min())))
                awaited -= {{("worker", part.worker) for part in collector._collector.delivery.parts}}
            if not awaited:
                break
    print("done", policy.where.item())
"""


@pytest.mark.parametrize(
    ("collector", "sync"),
    [("DistributedCollector", True), nightly("DistributedCollector", False), nightly("RPCCollector", True)],
)
def test_cancelled_workers_are_replaced_and_end_with_the_collector(cluster, tmp_path, collector, sync):
    (tmp_path / "script.py").write_text(_SCRIPT.format(collector=collector, sync=sync))
    assert cluster.login([sys.executable, "script.py"], timeout=600, cwd=tmp_path) == "done 1.0\n"
    assert '"event":"worker_restarted"' in (tmp_path / "run" / "events.jsonl").read_text()
    wait_until(lambda: cluster.jobs() == [], 90, "all jobs to end")


_DELAYED = """
import collectx, gymnasium

def make():
    return gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")

@collectx.submitit_delayed_launcher(2, framework="FRAMEWORK", submitit_main_conf={"gpus_per_node": 1},
                                    submitit_collection_conf={"slurm_nodelist": "n2"})
def main():
    with collectx.COLLECTOR(
        [make] * 2, frames_per_batch=20, total_frames=200, sync=True, launcher="submitit_delayed"
    ) as collector:
        print("frames", sum(batch.numel() for batch in collector))

if __name__ == "__main__":
    main()
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("framework", "collector"), [("distributed", "DistributedCollector"), ("rpc", "RPCCollector")])
def test_a_script_and_its_workers_are_submitted_together(cluster, tmp_path, framework, collector):
    (tmp_path / "script.py").write_text(_DELAYED.replace("FRAMEWORK", framework).replace("COLLECTOR", collector))
    output = cluster.login([sys.executable, "script.py"], timeout=600, cwd=tmp_path)
    assert "frames 200\n" in output
    wait_until(lambda: cluster.jobs() == [], 90, "all jobs to end")
    (events,) = tmp_path.glob("outputs/*/*/events.jsonl")
    joined = [json.loads(line) for line in events.read_text().splitlines() if "worker_joined" in line]
    assert [event["host"] for event in joined] == ["n2", "n2"]
