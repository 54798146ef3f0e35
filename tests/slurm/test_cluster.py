"""The cluster itself: nodes are hosts of their own, and every fault can be healed. The effect of each fault is tested
with what collectx does then."""

from __future__ import annotations

import pytest
from machines import wait_until

pytestmark = pytest.mark.nightly


def test_nodes_are_hosts_of_their_own_with_gpus_on_a_shared_file_system(cluster):
    assert sorted(cluster.login(["srun", "-N4", "hostname"]).split()) == list(cluster.nodes)
    cluster.on("n1", ["touch", "/dev/shm/mine", "/tmp/mine"])
    assert cluster.on("n2", ["ls", "/dev/shm"]) == ""
    assert "mine" not in cluster.on("n2", ["ls", "/tmp"])
    assert cluster.on("n1", ["ls", str(cluster.folder)]) == cluster.login(["ls", str(cluster.folder)])
    cluster.on("n1", ["rm", "/dev/shm/mine", "/tmp/mine"])
    assert cluster.login(["srun", "--gpus-per-node=1", "printenv", "CUDA_VISIBLE_DEVICES"]).strip() == "0"
    with pytest.raises(RuntimeError, match="accounting storage is disabled"):
        cluster.login(["sacct"])


def test_a_broken_node_is_healed_and_its_job_has_ended(cluster):
    for fault in ("crash", "cut", "hang", "isolate", "lose"):
        options = ["--parsable", "--no-requeue", "--nodelist=n2", "--output=/dev/null"]
        job = cluster.login(["sbatch", *options, "--wrap=sleep 1000"], cwd=cluster.shared).strip()
        wait_until(lambda job=job: cluster.job_state(job) == "RUNNING", 90, "the job to run")
        getattr(cluster, fault)("n2")
        if fault == "lose":
            wait_until(lambda job=job: cluster.job_state(job) == "NODE_FAIL", 90, "SLURM to fail the job")
        cluster.reset()
        assert cluster.job_state(job) in ("CANCELLED", "NODE_FAIL")
        assert sorted(cluster.login(["srun", "-N4", "printenv", "SLURMD_NODENAME"]).split()) == list(cluster.nodes)
