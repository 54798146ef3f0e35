"""What cannot work on a cluster: one message that names the cause and what to change, within a stated time."""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile
from typing import NamedTuple

import pytest
from machines import SIX
from running import ENDLESS, LAUNCHERS, SMALL, nightly

_SLURM = ["launcher=slurm", "launcher.nodes=3"]


@pytest.mark.parametrize("launcher", ["slurm", nightly("submitit")])
def test_a_wrong_partition_is_a_wrong_configuration(cluster, run, launcher):
    started = run(*SMALL, *LAUNCHERS[launcher], "launcher.partition=nowhere")
    assert started.finish() == 2
    assert "invalid partition specified: nowhere" in started.output
    assert "launcher.partition" in started.output
    assert cluster.jobs() == []


def test_what_never_fits_is_said_while_it_waits(cluster, run):
    started = run(*SMALL, *_SLURM, "launcher.cpus_per_task=64")
    started.wait_until(lambda: "PartitionConfig" in started.output, "the reason")
    assert "ask for less" in started.output
    started.process.send_signal(signal.SIGINT)
    assert started.finish() == 130, started.output
    assert cluster.jobs() == []


def test_a_run_folder_that_nodes_do_not_see_is_named(run):
    with tempfile.TemporaryDirectory(dir="/tmp") as own:  # every node has a /tmp of its own
        started = run(*SMALL, *_SLURM, f"hydra.run.dir={own}/run")
        assert started.finish() == 1
    assert f"{own}/run" in started.output
    assert "hydra.run.dir" in started.output
    assert "share" in started.output


@pytest.mark.nightly
def test_a_node_that_sees_another_folder_is_named(cluster, run, tmp_path):
    cluster.on("n3", ["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)])
    try:
        started = run(*SMALL, *_SLURM, "launcher.sbatch.nodelist='n[1-3]'")
        assert started.finish() == 1
    finally:
        cluster.on("n3", ["umount", str(tmp_path)])
    assert f"n3 does not see the run folder {started.folder}" in started.output
    assert "hydra.run.dir" in started.output


@pytest.fixture
def last_task(run, tmp_path):
    """`last_task(words, *overrides)`: a run with another program in the place of the last task's Python, which writes
    its node, its shell and itself into `pids`."""

    def start(words, *overrides):
        python = tmp_path / "python"
        note = "echo $SLURMD_NODENAME $PPID $$ > pids.new; mv pids.new pids"
        python.write_text(
            f'#!/bin/sh\n[ "$SLURM_PROCID" = 2 ] && {{ {note}; exec {words}; }}\nexec {sys.executable} "$@"\n'
        )
        python.chmod(0o755)
        # The time to start is not waited for.
        return run(*overrides, f"launcher.python={python}", "collector.start_timeout_s=1000")

    return start


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "last"),
    [
        ("/nowhere/python", "/nowhere/python: not found"),
        (f"{sys.executable} -c 'import nowhere'", "ModuleNotFoundError: No module named 'nowhere'"),
    ],
    ids=["no_python", "no_package"],
)
def test_a_node_on_which_no_worker_can_start_is_named_at_once(last_task, tmp_path, words, last):
    started = last_task(words, *SMALL, *_SLURM)
    assert started.finish() == 1
    node = (tmp_path / "pids").read_text().split()[0]
    assert f"worker 1 (task 2 on {node}" in started.output
    assert str(started.folder / "logs" / "worker-1.log") in started.output
    assert last in started.output


@pytest.mark.nightly
@pytest.mark.parametrize("launcher", ["slurm", "submitit_delayed"])
def test_a_task_that_is_killed_with_its_shell_before_it_has_joined_is_named(cluster, last_task, tmp_path, launcher):
    started = last_task("sleep 1000", *ENDLESS, *LAUNCHERS[launcher])
    started.wait_for("worker_joined", 1)
    node, *pids = (tmp_path / "pids").read_text().split()
    cluster.on(node, ["kill", "-KILL", *pids])
    assert started.finish() == 1
    assert f"worker 1 (task 2 on {node} is gone: srun says 'Killed'; log: " in started.output
    assert "ended before it had joined the trainer" in started.output


@pytest.mark.nightly
def test_a_task_whose_node_is_lost_before_it_has_joined_is_named(cluster, last_task, tmp_path):
    started = last_task("sleep 1000", *ENDLESS, *_SLURM, "collector.on_worker_failure=drop")
    started.wait_for("worker_joined", 1)
    node = (tmp_path / "pids").read_text().split()[0]
    cluster.crash(node)
    (lost,) = started.wait_for("worker_failed", 1)
    assert f"worker 1 (task 2 on {node} is gone: srun says 'Node failure on {node}'; log: " in lost["message"]
    started.wait_for_more()
    started.complete()


class Case(NamedTuple):
    """Why no worker can join: faults, configuration and what the messages say; `prefix` runs the command."""

    overrides: list[str]
    messages: list[str]
    faults: tuple[tuple[str, ...], ...] = ()
    prefix: tuple[str, ...] = ()


_SUBMITIT = LAUNCHERS["submitit"]
_N1_TO_N3 = [*_SLURM, "launcher.sbatch.nodelist='n[1-3]'"]
_CASES = {
    "address_of_another_host": Case(
        [*_N1_TO_N3, "backend.interface=lo", "collector.start_timeout_s=1000"],
        [
            r"n[23] could not reach the trainer: 127\.0\.0\.1 port \d+: .*refused",
            "choose a network that both hosts are on with backend.interface",
        ],
    ),
    "firewall": Case(
        [*_N1_TO_N3, "backend.interface=eth0", "backend.port=7123", "collector.start_timeout_s=40"],
        [
            r"could not reach the trainer within 30 s \(three quarters of collector.start_timeout_s=40\): "
            "10.77.0.11 port 7123: timed out",
            "A firewall between the two",
            "backend.port",
        ],
        (("drop", "n1", "7123"),),
    ),
    # SLURM's own ports are on the other network.
    "firewall_with_one_open_port": Case(
        [*_N1_TO_N3, f"backend.interface={SIX}", "backend.port=7123", "collector.start_timeout_s=60"],
        [
            r"Worker [01] on n[23] has reached the trainer's port 7123, but the connection of gloo",
            "a firewall between them lets the one port through",
        ],
        (("drop", "n1", "10000-65000", SIX),),
    ),
    "no_way_between_nodes": Case(
        [*_SUBMITIT, "launcher.sbatch.nodelist=n2", "collector.start_timeout_s=8"],
        [
            r"n2 could not reach the trainer within 6 s \(three quarters of collector.start_timeout_s=8\)",
            "backend.interface",
        ],
        (("isolate", "n1"), ("isolate", "n2")),
        ("srun", "--ntasks=1", "--nodelist=n1"),
    ),
    "no_python": Case(
        [*_SUBMITIT, "launcher.python=/nowhere/python"],
        [r"worker \d \(job \d+_\d: FAILED.*/nowhere/python: No such file or directory"],
    ),
    # The first reason that SLURM gives may be another; a change is said after 15 s.
    "full_queue": Case(
        [*_SUBMITIT, "launcher.cpus_per_task=64", "launcher.queue_timeout_s=24"],
        [
            r"2 of 2 workers wait in the queue: worker 0, 1: PENDING \(PartitionConfig: no node",
            r"has not joined for 24 s \(launcher.queue_timeout_s=24\)",
        ],
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize("case", _CASES.values(), ids=_CASES)
def test_why_no_worker_joins(cluster, run, case):
    for fault, *arguments in case.faults:
        getattr(cluster, fault)(*arguments)
    started = run(*SMALL, *case.overrides, prefix=case.prefix)
    assert started.finish() == 1
    for message in case.messages:
        assert re.search(message, started.output), started.output
    started.states()


@pytest.mark.nightly
def test_hosts_whose_only_common_network_is_one_of_ipv6(run):
    started = run(*ENDLESS, *_N1_TO_N3, f"backend.interface={SIX}")
    started.wait_for("worker_joined", 2)
    assert json.loads((started.folder / "rendezvous.json").read_text())["addresses"] == ["fd77::11"]
    started.wait_for_more()
    started.complete()


@pytest.mark.nightly
def test_an_async_run_goes_on_with_the_workers_that_have_started_and_ctrl_c_cancels_all_jobs(cluster, run):
    room_for_2 = ["launcher.exclusive=true", "launcher.sbatch.exclude='n[1-2]'", "collector.num_workers=3"]
    started = run(*ENDLESS, *LAUNCHERS["submitit"], *room_for_2)
    joined = started.wait_for("worker_joined", 2)
    (missing,) = {0, 1, 2} - {event["worker"] for event in joined}
    notice = re.compile(rf"1 of 3 workers wait in the queue: worker {missing}: PENDING \(.*Resources")
    started.wait_until(lambda: notice.search(started.output), "who waits is said")
    started.wait_for_more()
    started.process.send_signal(signal.SIGINT)
    assert started.finish() == 130, started.output
    assert started.result["status"] == "interrupted"
    assert len(started.events("worker_joined")) == 2
    started.states()


@pytest.mark.nightly
def test_a_job_cancelled_in_the_queue_is_noticed_long_before_its_time_is_over(cluster, run):
    started = run(*SMALL, *LAUNCHERS["submitit"], "launcher.sbatch.begin=now+1hour", "launcher.queue_timeout_s=1000")
    started.wait_until(lambda: len(cluster.jobs()) == 1, "one array waits")
    (array,) = {job.partition("_")[0] for job in cluster.jobs()}
    cluster.login(["scancel", f"{array}_1"])
    assert started.finish() == 1
    cancelled = r"worker 1 \(job \d+_1: (GONE|CANCELLED) \(.*ended before it had joined"
    assert re.search(cancelled, started.output), started.output
    started.states()
