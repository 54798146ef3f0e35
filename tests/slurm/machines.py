"""The machines of a cluster: namespaces that look like hosts of their own, or, where those are not allowed, this host.

    namespaces                                       one host
    +------+   +------+   +------+                   slurmd n1, slurmd n2, slurmd n3, slurmctld: all on 127.0.0.1,
    |  n1  |   |  n2  |   |  n3  |                   with a port each
    +--|---+   +--|---+   +--|---+
      eth0       eth0       eth0    10.77.0.11, ...; on the same cable `six`, fd77::11, ...
    ===|==========|==========|===   the head's eth0 is the switch, 10.77.0.1
    +--|-------------------------+
    | head (login, slurmctld)    |
    +----------------------------+

Nothing of a machine has a name in this host's own network: a machine is gone, interfaces included, with its last
process. Must not know SLURM, except that its programs carry `SLURM_CONF`, by which what belongs to a cluster is found.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from settings import Address

HEAD = "head"
_NET = "10.77.0"
SIX = "six"
_BOOT_TIMEOUT_S = 30

# First process of a machine; a login host shares /proc and /tmp with this one, a node has its own.
_BOOT = """
set -e
name=$0 folder=$1; shift
hostname "$name"
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/resolv.conf" /etc/resolv.conf
mount --bind "$folder/etc" /etc/slurm
ip link set lo up
if [ "$name" != head ]; then
    mount -t proc proc /proc
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    # A /tmp of its own, with what the nodes share in it.
    mount -t tmpfs -o mode=1777 tmpfs /mnt
    for shared; do
        case "$shared" in /tmp/*) mkdir -p "/mnt${shared#/tmp}"; mount --bind "$shared" "/mnt${shared#/tmp}";; esac
    done
    mount --move /mnt /tmp
fi
echo booted
while :; do sleep 1000 & wait $!; done
"""


def six(address: str) -> str:
    """The address in the network `six` of the node with that one in the other."""
    return f"fd77::{address.rpartition('.')[2]}"


class Unsupported(Exception):
    """These machines cannot do that; the message says why."""


class Namespaces:
    """Machines of their own network, host name, processes, /dev/shm and /tmp on a shared file system.

    Args:
        folder: of the cluster; all machines see it.
        shared: what else under /tmp all machines see.
    """

    kind = "network namespaces"

    def __init__(self, folder: Path, shared: list[Path]):
        self._folder = folder
        self._shared = [folder, *shared]
        self._children: list[subprocess.Popen] = []

    @staticmethod
    def obstacle() -> str | None:
        """Why there can be none here, or None."""
        trial = (
            "ip link add br0 type bridge && ip link add veth0 type veth peer name veth1 && "
            "mount -t proc proc /proc && mount -t tmpfs tmpfs /mnt && mount --move /mnt /tmp"
        )
        if os.geteuid() != 0:
            return "namespaces are for root"
        done = subprocess.run([*_UNSHARE, "sh", "-c", trial], capture_output=True, text=True)
        return None if done.returncode == 0 else done.stderr.strip() or f"unshare: exit status {done.returncode}"

    def addresses(self, nodes: tuple[str, ...]) -> tuple[Address, dict[str, Address]]:
        """Of the head and of the nodes. Also writes what resolves their names."""
        head = Address(HEAD, f"{_NET}.1", 6817)
        each = {node: Address(node, f"{_NET}.{11 + index}", 6818) for index, node in enumerate(nodes)}
        names = [f"{known.address} {known.host}" for known in (head, *each.values())]
        (self._folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        # No name server can be reached: fail at once, not after the 10 s of the default.
        (self._folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        return head, each

    def boot(self, name: str, address: str) -> None:
        """Starts a machine and connects it; the head first."""
        log = self._folder / "log" / f"{name}.out"
        with open(log, "ab") as errors:
            child = subprocess.Popen(
                [*_UNSHARE, "bash", "-c", _BOOT, name, *map(str, (self._folder, *self._shared))],
                env=environment(self._folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._children.append(child)
        assert child.stdout is not None
        if not _says(child.stdout, b"booted"):
            child.kill()
            raise RuntimeError(f"machine {name} did not boot: {log.read_text().strip()}")
        child.stdout.close()
        init = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0]
        self._init_file(name).write_text(init)
        if name == HEAD:
            self._in_switch("ip", "link", "add", "eth0", "type", "bridge")
            self._in_switch("ip", "addr", "add", f"{address}/24", "dev", "eth0")
            self._in_switch("ip", "link", "set", "eth0", "up")
            return
        # Always the same: the others remember by which hardware address a machine is reached, also when it boots anew.
        hardware = "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))
        peer = ["peer", "name", "eth0", "address", hardware, "netns", init]
        self._in_switch("ip", "link", "add", name, "type", "veth", *peer)
        self._in_switch("ip", "link", "set", name, "master", "eth0", "up")
        inside = ["nsenter", "--target", init, "--net", "ip"]
        _run([*inside, "addr", "add", f"{address}/24", "dev", "eth0"])
        _run([*inside, "link", "set", "eth0", "up"])
        _run([*inside, "route", "add", "default", "via", f"{_NET}.1"])
        _run([*inside, "link", "add", "link", "eth0", "name", SIX, "type", "macvlan", "mode", "bridge"])
        _run([*inside, "-6", "addr", "add", f"{six(address)}/64", "dev", SIX, "nodad"])
        _run([*inside, "link", "set", SIX, "up"])

    def kill(self, name: str) -> None:
        """Every process of a machine dies at once; its kernel says so to connected peers, then is gone too."""
        init = self._init(name)
        if init is None:
            return
        victims = self.processes(name)
        _signal(init, signal.SIGKILL)
        _wait(lambda: not any(_alive(pid) for pid in victims), f"machine {name} to die")
        if name != HEAD and self.is_up(HEAD):
            # The network goes when nothing refers to it any more, which may be late.
            with contextlib.suppress(RuntimeError):
                self._in_switch("ip", "link", "delete", name)
        self._init_file(name).unlink(missing_ok=True)
        for child in self._children:
            child.poll()

    def enter(self, name: str, argv: list[str], folder: Path) -> list[str]:
        """The command that runs `argv` on a machine, in `folder`, as one of its processes. SIGKILL ends both."""
        return self._enter(name, ["--pid"], ["setpriv", "--pdeathsig", "KILL", "--", *argv], folder)

    def login(self, argv: list[str], folder: Path) -> list[str]:
        """The command that runs `argv` on the head, in `folder`, as a process of this host: it can be signalled."""
        return self._enter(HEAD, [], argv, folder)

    def processes(self, name: str) -> set[int]:
        """Of a machine, by this host's numbers."""
        init = self._init(name)
        if init is None:
            return set()
        space = os.readlink(f"/proc/{init}/ns/pid")
        return {pid for pid in _processes() if _link(pid) == space}

    def is_up(self, name: str) -> bool:
        return self._init(name) is not None

    def node_of(self, host: str, pid: int) -> str:
        """The node on which a process says it is, by its host's name and its number there."""
        return host

    def cut(self, name: str, off: bool) -> None:
        """The cable of a node is pulled, or plugged in again: packets vanish, nobody is told."""
        self._in_switch("ip", "link", "set", name, "down" if off else "up")

    def isolate(self, name: str, on: bool) -> None:
        """Isolated nodes cannot reach one another; the head reaches all."""
        self._in_switch("bridge", "link", "set", "dev", name, "isolated", "on" if on else "off")

    def drop(self, name: str, ports: str, interface: str) -> None:
        """Packets to TCP ports of a node vanish as they come in, as at a firewall. Until it boots anew."""
        rule = f"ip {'-6' if interface == SIX else '-4'} rule"
        block = f"{rule} add pref 10 iif {interface} ipproto tcp dport {ports} blackhole"
        # The table of the node's own addresses is asked first, whatever is before it.
        rules = f"{rule} add pref 100 lookup local && {rule} del pref 0 && {block}"
        _run(["nsenter", "--target", str(self._init(name)), "--net", "sh", "-c", rules])

    def _enter(self, name: str, more: list[str], argv: list[str], folder: Path) -> list[str]:
        init = self._init(name)
        if init is None:
            raise Unsupported(f"{name} is down")
        spaces = ["--net", "--uts", "--ipc", "--mount", *more]
        return ["nsenter", "--target", str(init), *spaces, f"--wdns={folder}", "--", *argv]

    def _in_switch(self, *command: str) -> None:
        _run(["nsenter", "--target", str(self._init(HEAD)), "--net", *command])

    def _init(self, name: str) -> int | None:
        try:
            pid = int(self._init_file(name).read_text())
        except (OSError, ValueError):
            return None
        return pid if _alive(pid) and belongs(pid, self._folder) else None

    def _init_file(self, name: str) -> Path:
        return self._folder / f"{name}.init"


class OneHost:
    """All machines are this host: daemons on ports of loopback. Nodes can be killed and hung, not cut off."""

    kind = "one host"

    def __init__(self, folder: Path):
        self._folder = folder

    def addresses(self, nodes: tuple[str, ...]) -> tuple[Address, dict[str, Address]]:
        """Of the head and of the nodes: ports that are free now."""
        host = socket.gethostname().split(".")[0]
        with contextlib.ExitStack() as open_sockets:
            ports = []
            for _ in range(1 + len(nodes)):
                listener = open_sockets.enter_context(socket.socket())
                listener.bind(("127.0.0.1", 0))
                ports.append(listener.getsockname()[1])
        each = {node: Address(host, "127.0.0.1", port) for node, port in zip(nodes, ports[1:], strict=True)}
        return Address(host, "127.0.0.1", ports[0]), each

    def boot(self, name: str, address: str) -> None:
        """The host runs already."""

    def kill(self, name: str) -> None:
        """Kills every process of a node: its daemon, and the steps of jobs that it has started."""
        victims = self.processes(name)
        while victims:
            for pid in victims:
                _signal(pid, signal.SIGKILL)
            _wait(lambda dying=victims: not any(_alive(pid) for pid in dying), f"node {name} to die")
            victims = self.processes(name)

    def enter(self, name: str, argv: list[str], folder: Path) -> list[str]:
        """The command that runs `argv` on a machine, in `folder`, as one of its processes."""
        return ["env", f"--chdir={folder}", f"SLURMD_NODENAME={name}", *argv]

    def login(self, argv: list[str], folder: Path) -> list[str]:
        """The command that runs `argv` on the head, in `folder`."""
        return ["env", f"--chdir={folder}", *argv]

    def processes(self, name: str) -> set[int]:
        """Of a node, by the name that SLURM gives to what it starts there."""
        return {pid for pid in owned(self._folder) if f"SLURMD_NODENAME={name}" in _environ(pid)}

    def is_up(self, name: str) -> bool:
        return name == HEAD or bool(self.processes(name))

    def node_of(self, host: str, pid: int) -> str:
        """The node on which a process says it is, by its host's name and its number there."""
        name = "SLURMD_NODENAME="
        return next((word.removeprefix(name) for word in _environ(pid) if word.startswith(name)), host)

    def cut(self, name: str, off: bool) -> None:
        raise Unsupported(f"{name} shares the host's only network: it cannot be cut off")

    def isolate(self, name: str, on: bool) -> None:
        raise Unsupported(f"{name} shares the host's only network: it cannot be isolated")

    def drop(self, name: str, ports: str, interface: str) -> None:
        raise Unsupported(f"{name} shares the host's only network: it has no firewall of its own")


_UNSHARE = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child"]


def environment(folder: Path) -> dict[str, str]:
    """Of every process of the cluster in `folder`: this process's without what a job around it has set."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH_", "SRUN_"))}
    return kept | {"PATH": path, "SLURM_CONF": str(folder / "etc" / "slurm.conf")}


def belongs(pid: int, folder: Path) -> bool:
    """Whether a process is of the cluster in `folder`."""
    return f"SLURM_CONF={folder / 'etc' / 'slurm.conf'}" in _environ(pid)


def owned(folder: Path) -> set[int]:
    """The processes of the cluster in `folder`, and what was started from there, without this one."""
    return {pid for pid in _processes() if pid != os.getpid() and belongs(pid, folder)}


def stop(pids: set[int], hung: bool) -> None:
    """Hangs processes, or lets them go on."""
    for pid in pids:
        _signal(pid, signal.SIGSTOP if hung else signal.SIGCONT)


def kill(pids: set[int]) -> None:
    for pid in pids:
        _signal(pid, signal.SIGKILL)
    _wait(lambda: not any(_alive(pid) for pid in pids), f"processes {sorted(pids)} to die")


def start_time(pid: int) -> str | None:
    """In clock ticks since the host came up: with the number it names a process for good. None where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19] if _alive(pid) else None
    except OSError:
        return None


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _alive(pid: int) -> bool:
    # A zombie is dead, and may stay for ever where nobody reaps.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def _environ(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _link(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait(condition, what: str, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.02)


def _says(stream: IO[bytes], word: bytes) -> bool:
    """Whether the next that comes is `word`; False at its end, or when nothing comes."""
    return bool(select.select([stream], [], [], _BOOT_TIMEOUT_S)[0]) and stream.readline().strip() == word


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
