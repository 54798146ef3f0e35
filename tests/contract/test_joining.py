"""How workers of other hosts join the trainer: over IPv4 and IPv6, beside strangers, and too late."""

import contextlib
import ipaddress
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium
import psutil
import pytest
from commands import COMMAND, COUNTING, environment, result
from composed_overrides import composed
from library_collectors import make
from user_code.cartpoles import cartpole
from user_code.toyworker import Toys, batch_spec
from ways import RPC_SYNC, TRANSPORTS, over

from collectx import env as envs
from collectx import policy as policies
from collectx.collector import start_collector
from collectx.config.registry import why_not
from collectx.errors import RendezvousError, WorkerTimeout
from collectx.jobs import worker_jobs
from collectx.place.launcher import Launcher
from collectx.run import RunFolder
from collectx.transport.network.gloo import ConnectionStore
from collectx.transport.network.handshake import Endpoint, connect
from collectx.transport.network.link import join_trainer

REMOTE = [way for way in TRANSPORTS if way.kind == "distributed"]
TESTS = Path(__file__).parents[1]


@over(REMOTE, smoke=True)
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_strangers_before_and_during_a_run_disturb_nothing_and_are_logged(way, address, wait_until):
    refused = []

    def events(name, address, reason):
        refused.append((name, address))

    toys = Toys(way.transport, batch_spec(1), address=address, events=events)
    with toys, contextlib.ExitStack() as stack:
        port = toys.transport.endpoint.port

        def visit(message):
            stack.enter_context(socket.create_connection((address, port), timeout=10)).sendall(message)

        visit(b"")  # says nothing for as long as the run goes on
        visit(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100)
        toys.start(0)
        toys.deliver(3)
        visit(os.urandom(1000))
        with pytest.raises(RendezvousError):
            connect(Endpoint((address,), port, b"wrong"), 0.0, "knob")
        wait_until(lambda: len(refused) >= 3)
        toys.deliver(3)
    assert set(refused) == {("peer_refused", address)}


@over(REMOTE, smoke=True)
def test_a_peer_does_not_take_the_index_of_a_worker_that_has_joined(way):
    with Toys(way.transport, batch_spec(1)) as toys:
        toys.start(0)
        toys.deliver()
        with pytest.raises(
            RendezvousError, match=r"refused this worker: worker 0 cannot join, because another process already joined"
        ):
            join_trainer(toys.transport.endpoint, 0, {}, 60.0)
        toys.deliver(3)


@pytest.mark.parametrize("when", ["received", "closing", "stopped"])
def test_close_leaves_no_thread_of_a_worker_that_is_making_its_pair(when, monkeypatch, wait_until):
    """Closes as soon as the trainer has the worker's address; in "closing" the trainer connects only after that, in
    "stopped" the worker connects late."""
    is_received, receive_value, processes = threading.Event(), ConnectionStore._receive_value, []

    def resume():
        with contextlib.suppress(psutil.NoSuchProcess):  # it was killed, which is right if it had sent no address yet
            processes[0].resume()

    def receive_and_wait(store):
        value = receive_value(store)
        if when == "stopped":
            wait_until(lambda: processes)  # the worker may be faster than this thread
            processes[0].suspend()
        is_received.set()
        if when == "closing":
            wait_until(lambda: toys.transport._is_closed)
        return value

    monkeypatch.setattr(ConnectionStore, "_receive_value", receive_and_wait)
    with Toys("gloo", batch_spec(1)) as toys:
        processes.append(psutil.Process(toys.start(0).pid))
        assert is_received.wait(60)
        if when == "stopped":
            threading.Timer(0.5, resume).start()


@over(REMOTE)
def test_a_worker_that_joins_after_its_timeout_is_turned_away_and_another_takes_its_place(way, wait_until):
    lives, is_told, now = [], threading.Event(), [0.0]

    def spec_of(incarnation):
        """Returns the spec of a worker that is a thread of the trainer."""
        lives.append(incarnation)
        if incarnation == 0:
            assert is_told.wait(60)
        else:
            wait_until(lambda: not late.is_alive(), what="the late worker ends")
        return {}

    arguments = {"clock": lambda: now[0], "spec_of": spec_of}
    with Toys(way.transport, batch_spec(1), **arguments) as toys, contextlib.ExitStack() as stack:
        late = toys.start(0, is_attached=False)
        stack.callback(late.kill)
        stack.callback(is_told.set)
        toys.grant(0, 0)
        wait_until(lambda: lives)
        for now[0] in (15.0, 30.0, 45.0, 60.0):  # it looks now and then
            list(toys.supervisor.events(0.0))
        assert isinstance(toys.lose(), WorkerTimeout)
        toys.start(0)
        is_told.set()
        toys.deliver()
        assert not late.is_alive()
    assert lives == [0, 1]


@pytest.mark.parametrize("hangs_in", ["prepare", "pair"])
def test_a_firewall_is_suspected_only_if_the_worker_has_begun_to_make_its_pair(hangs_in, monkeypatch, wait_until):
    now, is_waiting, may_go_on = [0.0], threading.Event(), threading.Event()

    def wait(_=None):
        is_waiting.set()
        assert may_go_on.wait(60)

    def receive_and_wait(store):
        wait()
        return receive_value(store)

    def join():
        with contextlib.suppress(RendezvousError):
            join_trainer(
                toys.transport.endpoint, 0, {"pid": 0}, 60.0, wait if hangs_in == "prepare" else lambda _: None
            )

    receive_value = ConnectionStore._receive_value
    if hangs_in == "pair":
        monkeypatch.setattr(ConnectionStore, "_receive_value", receive_and_wait)
    with Toys("gloo", batch_spec(1), clock=lambda: now[0]) as toys:
        toys.transport.expect(0, dict)
        worker = threading.Thread(target=join)
        worker.start()
        toys.grant(0, 0)
        assert is_waiting.wait(60)
        wait_until(lambda: hangs_in == "prepare" or toys.transport._workers[0].is_making_pair)
        for now[0] in (15.0, 30.0, 45.0, 60.0):  # it looks now and then
            list(toys.supervisor.events(0.0))
        notes = getattr(toys.lose(), "__notes__", [])
        assert any("a firewall probably blocks it" in note for note in notes) == (hangs_in == "pair")
        may_go_on.set()
        worker.join()


@over(REMOTE, smoke=True)
def test_a_default_timeout_of_sockets_changes_nothing(way):
    """The workers of these tests set one too, as user code may."""
    socket.setdefaulttimeout(60.0)
    try:
        with Toys(way.transport, batch_spec(1)) as toys:
            toys.start(0)
            toys.deliver(3)
    finally:
        socket.setdefaulttimeout(None)


def listeners(pid):
    """The addresses of the process's listening TCP sockets."""
    return {each.laddr for each in psutil.Process(pid).net_connections("tcp") if each.status == "LISTEN"}


def is_loopback(place):
    return ipaddress.ip_address(place.ip).is_loopback


@over(REMOTE, smoke=True)
def test_nobody_can_connect_to_ports_of_torch_while_nobody_is_expected(way):
    # Those of Ray, if it was used in this process.
    others = {place for place in listeners(os.getpid()) if not is_loopback(place)}
    with Toys(way.transport, batch_spec(2)) as toys:
        for worker in range(2):
            pids = os.getpid(), toys.start(worker).pid
            toys.deliver(3, worker)
            for pid in pids:
                theirs = [place for place in listeners(pid) - others if place.port != toys.transport.endpoint.port]
                assert theirs
                for place in theirs:
                    assert is_loopback(place)
                    with pytest.raises(TimeoutError):
                        socket.create_connection(place, timeout=0.2)
        toys.deliver(3)


class Seeing(gymnasium.RewardWrapper):
    """Its reward is the number of the GPU that its process is told to use, as there need not be any; -1 for none."""

    def reward(self, reward):
        return float(os.environ["CUDA_VISIBLE_DEVICES"] or -1)


@over([RPC_SYNC])
def test_a_worker_sees_the_gpu_that_is_its_own(way, monkeypatch):
    monkeypatch.setattr("collectx.library.rules.missing_device", lambda device: None)
    devices = {"visible_devices": ["cuda:1", "cpu"]}
    with make(way, lambda: Seeing(cartpole()), frames_per_batch=20, **devices) as collector:
        assert [part.unique().tolist() for part in next(collector)["next", "reward"]] == [[1.0], [-1.0]]


# The only network of this host is IPv6.
IPV6 = """
ip link set lo up; ip link add d0 type veth peer name d1; ip link set d1 up
ip addr add fd00::1/64 dev d0 nodad; ip link set d0 up
until ip -o link show d0 | grep -q 'state UP'; do sleep 0.1; done
exec "$@"
"""


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are made by root only")
def test_a_host_with_ipv6_alone(tmp_path):
    size = ["collector.frames_per_batch=64", "collector.total_frames=256"]
    run = ["run", *COUNTING, *size, "collector=distributed", "backend.interface=d0", f"hydra.run.dir={tmp_path}"]
    command = ["unshare", "--net", "sh", "-c", IPV6, "sh", COMMAND, *run]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=250)
    if ended.returncode and "not permitted" in ended.stderr:
        pytest.skip(f"no network namespaces here: {ended.stderr.splitlines()[-1]}")
    assert ended.returncode == 0, ended.stderr
    assert result(tmp_path)["frames"] == 256


@pytest.mark.nightly
def test_a_worker_that_mpi_started_is_replaced_and_nothing_is_lost(monkeypatch):
    for name in ("PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    if (reason := why_not("mpi")) is not None:
        pytest.skip(reason)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    command = [sys.executable, str(TESTS / "scripts" / "mpirun.py")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    frames, *names = ended.stdout.split()
    assert int(frames) > 70 * 90  # of the batches after the replacement alone
    assert names.count("worker_joined") == 3
    assert names.count("worker_failed") == names.count("worker_restarted") == 1


@pytest.mark.ci
def test_a_worker_with_a_policy_of_the_package_does_not_import_tensordict(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin()
    cfg = composed("collector=distributed collector.num_workers=1 trainer=meter backend=gloo")
    worker_jobs.JobSpec(cfg, token="7.0").write(folder)
    code = "import sys; from collectx.jobs.entry import main; exit(main(sys.argv[1:]) or 'tensordict' in sys.modules)"
    worker = subprocess.Popen([sys.executable, "-c", code, "--worker", "0", str(folder.path)])
    spec = envs.read_spec(cfg.env)
    launcher = Launcher(announce=lambda endpoint: worker_jobs.announce_trainer(folder, endpoint, "7.0"))
    with start_collector(cfg, policies.build(cfg.policy, spec, 0), spec, launcher=launcher) as collector:
        next(collector)
    assert worker.wait(60) == 0, folder.log("worker-0").read_text()
