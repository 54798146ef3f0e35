"""What cannot work on a cluster: one message that names the cause and what to change, within a stated time."""

import re
import signal
import sys
import tempfile

import pytest
from running import ENDLESS, LAUNCHERS, SMALL, nightly

_N1_TO_N3 = [*LAUNCHERS["slurm"], "launcher.sbatch.nodelist='n[1-3]'"]


@pytest.mark.parametrize("launcher", ["slurm", nightly("submitit")])
def test_a_wrong_partition_is_a_wrong_configuration(cluster, run, launcher):
    started = run(*SMALL, *LAUNCHERS[launcher], "launcher.partition=nowhere")
    assert started.finish() == 2
    assert "invalid partition specified: nowhere" in started.output
    assert "launcher.partition" in started.output
    assert cluster.jobs() == []


def test_what_never_fits_is_said_while_it_waits(cluster, run):
    started = run(*SMALL, *LAUNCHERS["slurm"], "launcher.cpus_per_task=64")
    started.wait_until(lambda: "PartitionConfig" in started.output, "the reason")
    assert "Ask for less" in started.output
    started.interrupt(signal.SIGINT)
    assert cluster.jobs() == []


@pytest.mark.nightly
def test_a_run_folder_that_nodes_do_not_see_is_named(run):
    with tempfile.TemporaryDirectory(dir="/tmp") as own:  # every node has a /tmp of its own
        started = run(*SMALL, *LAUNCHERS["slurm"], f"hydra.run.dir={own}/run")
        assert started.finish() == 1
    for part in (f"{own}/run", "hydra.run.dir", "share"):
        assert part in started.output


@pytest.mark.nightly
def test_a_node_that_sees_another_folder_is_named(cluster, run, tmp_path):
    cluster.broken.add("n3")  # until it is booted again
    cluster.on("n3", ["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)])
    started = run(*SMALL, *_N1_TO_N3)
    assert started.finish() == 1
    assert f"n3 does not see the run folder {started.files.path}" in started.output
    assert "hydra.run.dir" in started.output


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("launcher", "program", "fault", "how"),
    [
        ("slurm", "/nowhere/python", None, "ended with status 127; log: .*/nowhere/python: not found"),
        ("slurm", "sleep 1000", "kill", "is gone: srun says 'Killed'; log: "),
        ("submitit_delayed", "sleep 1000", "kill", "is gone: srun says 'Killed'; log: "),
        ("slurm", "sleep 1000", "crash", r"is gone: srun says 'Node failure on n\d'; log: "),
    ],
)
def test_a_task_that_does_not_come_to_join_is_named_at_once(cluster, run, tmp_path, launcher, program, fault, how):
    python, pids = tmp_path / "python", tmp_path / "pids"
    # In the last task, another program; node, shell and program are noted first.
    last = f"echo $SLURMD_NODENAME $PPID $$ > pids.new; mv pids.new pids; exec {program}"
    python.write_text(f'#!/bin/sh\n[ "$SLURM_PROCID" = 2 ] && {{ {last}; }}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    # The time to start is not waited for.
    overrides = [f"launcher.python={python}", "collector.start_timeout_s=1000", "collector.on_worker_failure=drop"]
    started = run(*ENDLESS, *LAUNCHERS[launcher], *overrides)
    started.wait_for("worker_joined", 1)
    started.wait_until(pids.exists, "the last task begins")
    node, *processes = pids.read_text().split()
    if fault == "kill":
        cluster.on(node, ["kill", "-KILL", *processes])
    elif fault == "crash":
        cluster.crash(node)
    (lost,) = started.wait_for("worker_failed", 1)
    assert re.search(rf"worker 1 \(task 2 on {node} {how}", lost["message"]), lost["message"]
    assert "ended before it joined the trainer" in lost["message"]
    started.wait_for_more()
    started.complete()


@pytest.mark.nightly
def test_a_firewall_that_lets_one_port_through_is_named(cluster, run):
    cluster.wall("n1")
    fixed_port = ["backend.interface=eth0", "backend.port=7123", "collector.start_timeout_s=60"]
    started = run(*SMALL, *_N1_TO_N3, *fixed_port)
    assert started.finish() == 1
    message = r"Worker [01] on n[23] reached the trainer's port 7123, but not the port of gloo"
    assert re.search(message, started.output), started.output
    assert "a firewall probably blocks it" in started.output
    started.states()
