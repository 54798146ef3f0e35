"""The cluster itself: it is a real one, every fault has its effect, and every fault can be healed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cluster import Cluster

_LISTEN = """
import contextlib, socket
listener = socket.create_server(("", 7000))
print("listening", flush=True)
while True:
    peer, _ = listener.accept()
    with peer, contextlib.suppress(OSError):
        peer.sendall(b"hello")
        peer.recv(1)
"""
_HOLD = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=10) as peer:
    peer.recv(5)
    print("connected", flush=True)
    try:
        peer.recv(1)
    except ConnectionResetError:
        pass
"""
_CALL = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), timeout=1) as peer:
    peer.settimeout(1)
    print(peer.recv(5).decode())
"""


@pytest.fixture
def servers(cluster):
    """A server on every node, outside of any job."""
    if cluster.kind == "one host":
        pytest.skip("all nodes have the one host's address")
    started = [_serve(cluster, node) for node in cluster.nodes]
    yield
    for server in started:
        server.kill()
        server.communicate()


def _serve(cluster: Cluster, node: str) -> subprocess.Popen:
    server = cluster.start_on(node, [sys.executable, "-c", _LISTEN], stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "listening\n"
    return server


def _reaches(cluster: Cluster, source: str | None, target: str) -> bool:
    """Whether a node (None: the login host) gets an answer from a node's server."""
    call = [sys.executable, "-c", _CALL, target]
    answer = cluster.on(source, call, check=False) if source else cluster.login(call, check=False)
    return answer == "hello\n"


def test_three_nodes_are_idle(cluster):
    assert [cluster.state(node) for node in cluster.nodes] == ["idle"] * 3


def test_a_job_runs_on_every_node(cluster):
    hosts = cluster.login(["srun", "-N3", "printenv", "SLURMD_NODENAME"])
    assert sorted(hosts.split()) == list(cluster.nodes)


def test_nodes_are_hosts_of_their_own(cluster):
    if cluster.kind == "one host":
        pytest.skip("all nodes are this host")
    assert sorted(cluster.login(["srun", "-N3", "hostname"]).split()) == list(cluster.nodes)
    cluster.on("n1", ["touch", "/dev/shm/mine", "/tmp/mine"])
    assert cluster.on("n2", ["ls", "/dev/shm"]) == ""
    assert "mine" not in cluster.on("n2", ["ls", "/tmp"])
    assert cluster.on("n1", ["ls", str(cluster.folder)]) == cluster.login(["ls", str(cluster.folder)])


def test_a_job_array(cluster, tmp_path, wait_until):
    script = "#!/bin/sh\necho $SLURM_ARRAY_TASK_ID > $SLURM_ARRAY_TASK_ID.txt\n"
    job = cluster.login(
        ["sbatch", "--parsable", "--array=0-3", "--output=/dev/null", _write(tmp_path, script)], cwd=tmp_path
    )
    wait_until(lambda: not cluster.jobs(), 90, "the array to end")
    assert cluster.job_state(job.strip()).split() == ["COMPLETED"] * 4
    assert sorted(path.read_text().strip() for path in tmp_path.glob("*.txt")) == list("0123")


def test_gpus_are_given_out(cluster):
    if not (cluster.folder / "etc" / "gres.conf").exists():
        pytest.skip("pretended GPUs are for root")
    seen = cluster.login(["srun", "--gpus-per-node=1", "printenv", "CUDA_VISIBLE_DEVICES"])
    assert seen.strip() == "0"


def test_without_accounting_sacct_says_so(cluster):
    with pytest.raises(RuntimeError, match="accounting storage is disabled"):
        cluster.login(["sacct"])


def test_nodes_can_import_collectx(cluster):
    told = cluster.login(["srun", "-N3", sys.executable, "-c", "import collectx; print(collectx.__name__)"])
    assert told.split() == ["collectx"] * 3


def test_signals_reach_a_command_on_the_login_host(cluster):
    sleeper = cluster.start(["sleep", "100"])
    sleeper.terminate()
    assert sleeper.wait(60) == -15


@pytest.mark.usefixtures("servers")
class TestFaults:
    @pytest.fixture(autouse=True)
    def _patience(self, wait_until):
        """A call waits for a second only, which is short on a busy machine."""
        self.wait_until = wait_until

    def comes_to_reach(self, cluster, source, target):
        self.wait_until(lambda: _reaches(cluster, source, target), 60, f"{source} reaches {target}")

    def test_a_healthy_network(self, cluster):
        self.comes_to_reach(cluster, None, "n1")
        self.comes_to_reach(cluster, "n1", "n2")

    def test_a_cut_node_is_reached_by_nobody_until_it_joins(self, cluster):
        cluster.cut("n2")
        assert not _reaches(cluster, None, "n2")
        assert not _reaches(cluster, "n1", "n2")
        self.comes_to_reach(cluster, "n1", "n3")
        cluster.join("n2")
        self.comes_to_reach(cluster, "n1", "n2")

    def test_a_hung_node_takes_connections_and_does_not_answer(self, cluster):
        cluster.hang("n2")
        assert not _reaches(cluster, "n1", "n2")
        cluster.unhang("n2")
        self.comes_to_reach(cluster, "n1", "n2")

    def test_isolated_nodes_reach_the_login_host_only(self, cluster):
        cluster.isolate("n1")
        cluster.isolate("n2")
        assert not _reaches(cluster, "n1", "n2")
        self.comes_to_reach(cluster, None, "n1")
        self.comes_to_reach(cluster, "n3", "n2")
        cluster.unisolate("n1")
        self.comes_to_reach(cluster, "n1", "n2")

    def test_a_crashed_node_closes_its_connections(self, cluster):
        peer = cluster.start([sys.executable, "-c", _HOLD, "n2"], stdout=subprocess.PIPE, text=True)
        assert peer.stdout.readline() == "connected\n"
        cluster.crash("n2")
        peer.communicate(timeout=60)
        assert peer.returncode == 0
        assert not _reaches(cluster, "n1", "n2")


@pytest.mark.parametrize("fault", ["crash", "cut", "hang", "isolate", "lose"])
def test_a_broken_node_is_healed(cluster, fault, wait_until):
    job = _sleep_on_n2(cluster, wait_until)
    getattr(cluster, fault)("n2")
    cluster.reset()
    assert cluster.job_state(job) in ("CANCELLED", "NODE_FAIL")
    assert sorted(cluster.login(["srun", "-N3", "printenv", "SLURMD_NODENAME"]).split()) == list(cluster.nodes)


def test_a_lost_node_fails_its_job(cluster, wait_until):
    job = _sleep_on_n2(cluster, wait_until)
    cluster.lose("n2")
    wait_until(lambda: cluster.job_state(job) == "NODE_FAIL", 90, "SLURM to fail the job")


def _sleep_on_n2(cluster: Cluster, wait_until) -> str:
    options = ["--parsable", "--no-requeue", "--nodelist=n2", "--output=/dev/null"]
    job = cluster.login(["sbatch", *options, "--wrap=sleep 1000"], cwd=cluster.shared).strip()
    wait_until(lambda: cluster.job_state(job) == "RUNNING", 90, "the job to run")
    return job


def _write(folder, script: str) -> str:
    (folder / "script.sh").write_text(script)
    return str(folder / "script.sh")
