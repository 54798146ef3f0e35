"""What cannot work on a cluster: one message that names the cause and what to change, within a stated time."""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile

import pytest
from machines import SIX
from running import ENDLESS, SMALL

_SLURM = ["launcher=slurm", "launcher.nodes=3"]
_SMALL = [*SMALL, *_SLURM, "collector=multi_sync"]


def test_a_wrong_partition_is_a_wrong_configuration(cluster, run):
    going = run(*_SMALL, "launcher.partition=nowhere")
    assert going.finish() == 2
    assert "invalid partition specified: nowhere" in going.said
    assert "launcher.partition" in going.said
    assert cluster.jobs() == []


def test_what_never_fits_says_so_while_it_waits(cluster, run):
    going = run(*_SMALL, "launcher.cpus_per_task=64")
    going.wait_until(lambda: "PartitionConfig" in going.seen(), "the reason")
    assert "ask for less" in going.seen()
    going.process.send_signal(signal.SIGINT)
    assert going.finish() == 130, going.said
    assert cluster.jobs() == []


def test_a_run_folder_that_nodes_do_not_see_is_named(cluster, run):
    if cluster.kind == "one host":
        pytest.skip("all nodes are this host")
    with tempfile.TemporaryDirectory(dir="/tmp") as own:  # every node has a /tmp of its own
        going = run(*_SMALL, f"hydra.run.dir={own}/run")
        assert going.finish() == 1
    assert f"{own}/run" in going.said
    assert "hydra.run.dir" in going.said
    assert "share" in going.said


def test_a_node_that_sees_another_folder_is_named(cluster, run, tmp_path):
    if cluster.kind == "one host":
        pytest.skip("all nodes are this host")
    cluster.on("n3", ["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)])
    try:
        going = run(*_SMALL)
        assert going.finish() == 1
    finally:
        cluster.on("n3", ["umount", str(tmp_path)])
    assert f"n3 does not see the run folder {going.folder}" in going.said
    assert "hydra.run.dir" in going.said


# In the place of Python: there is none, or it lacks a package, on the last node.
_PYTHON = """#!/bin/sh
[ "$SLURM_PROCID" = 3 ] && exec {broken}
exec {python} "$@"
"""


@pytest.mark.parametrize(
    ("broken", "last"),
    [
        ("/nowhere/python", "/nowhere/python: not found"),
        (f"{sys.executable} -c 'import nowhere'", "ModuleNotFoundError: No module named 'nowhere'"),
    ],
    ids=["no_python", "no_package"],
)
def test_a_node_on_which_no_worker_can_start_is_named_at_once(run, tmp_path, broken, last):
    python = tmp_path / "python"
    python.write_text(_PYTHON.format(broken=broken, python=sys.executable))
    python.chmod(0o755)
    # Its time to start is not waited for.
    going = run(*_SMALL, f"launcher.python={python}", "collector.start_timeout_s=1000")
    assert going.finish() == 1
    host = going.cluster.nodes[-1] if going.cluster.kind != "one host" else ""
    assert f"worker 2 (task 3 on {host}" in going.said
    assert str(going.folder / "logs" / "worker-2.log") in going.said
    assert last in going.said


# In the place of Python: on the last node it never comes to the trainer.
_STUCK = """#!/bin/sh
[ "$SLURM_PROCID" = 3 ] && {{ echo $SLURMD_NODENAME $PPID $$ > pids.new; mv pids.new pids; exec sleep 1000; }}
exec {python} "$@"
"""


@pytest.fixture
def stuck(run, tmp_path):
    """`stuck(*overrides)`: a run whose last worker never joins, its node, and what it consists of there."""
    python = tmp_path / "python"
    python.write_text(_STUCK.format(python=sys.executable))
    python.chmod(0o755)

    def begin(*overrides):
        going = run(*ENDLESS, *overrides, f"launcher.python={python}", "collector.start_timeout_s=1000")
        going.wait_for("worker_joined", 2)
        node, *pids = (tmp_path / "pids").read_text().split()
        return going, node, pids

    return begin


@pytest.mark.parametrize("launcher", [["launcher=slurm", "launcher.nodes=3"], ["launcher=submitit_delayed"]])
def test_a_task_that_is_killed_with_its_shell_before_it_has_joined_is_named(cluster, stuck, launcher):
    going, node, pids = stuck(*launcher)
    cluster.on(node, ["kill", "-KILL", *pids])
    assert going.finish(120) == 1
    assert f"worker 2 (task 3 on {node} is gone: srun says 'Killed'; log: " in going.said
    assert "ended before it had joined the trainer" in going.said


def test_a_task_whose_node_is_lost_before_it_has_joined_is_named(cluster, stuck):
    going, node, _ = stuck(*_SLURM, "collector.on_worker_failure=drop")
    cluster.crash(node)
    lost = going.wait_for("worker_failed", 1, timeout_s=60)
    assert f"worker 2 (task 3 on {node} is gone: srun says 'Node failure on {node}'; log: " in lost["message"]
    going.wait_for_more()
    going.stop()
    assert going.finish() == 0, going.said


def test_an_address_of_the_trainer_that_is_another_hosts_is_named_at_once(cluster, run):
    if cluster.kind == "one host":
        pytest.skip("all nodes are this host")
    going = run(*_SMALL, "backend.interface=lo", "collector.start_timeout_s=1000")
    assert going.finish() == 1
    assert re.search(r"n[23] could not reach the trainer: 127\.0\.0\.1 port \d+: .*refused", going.said), going.said
    assert "choose a network that both hosts are on with backend.interface" in going.said


def test_a_firewall_before_the_trainer_is_named_within_the_stated_time(cluster, run):
    cluster.drop("n1", "7123")
    going = run(*_SMALL, "backend.interface=eth0", "backend.port=7123", "collector.start_timeout_s=40")
    assert going.finish() == 1
    within = "within 30 s (three quarters of collector.start_timeout_s=40): 10.77.0.11 port 7123: timed out"
    assert f"could not reach the trainer {within}" in going.said
    assert "A firewall between the two" in going.said
    assert "backend.port" in going.said


def test_a_firewall_that_lets_only_one_port_through_is_named(cluster, run):
    # SLURM's own ports are on the other network.
    cluster.drop("n1", "10000-65000", SIX)
    going = run(*_SMALL, f"backend.interface={SIX}", "backend.port=7123", "collector.start_timeout_s=60")
    assert going.finish() == 1
    assert re.search(
        r"Worker [12] on n[23] has reached the trainer's port 7123, but the connection of gloo", going.said
    )
    assert "a firewall between them lets the one port through" in going.said


def test_hosts_that_have_no_network_in_common_but_one_of_ipv6(cluster, run):
    if cluster.kind == "one host":
        pytest.skip("all nodes are this host")
    going = run(*ENDLESS, *_SLURM, f"backend.interface={SIX}")
    going.wait_for("worker_joined", 3)
    assert json.loads((going.folder / "rendezvous.json").read_text())["addresses"] == ["fd77::11"]
    going.wait_for_more()
    going.stop()
    assert going.finish() == 0, going.said
