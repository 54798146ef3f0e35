"""The machines of a cluster: namespaces that look like hosts of their own on a shared file system.

    +------+   +------+   +------+
    |  n1  |   |  n2  |   |  n3  |  ...
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
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from settings import HEAD

_NET = "10.77.0"
SIX = "six"
_BOOT_TIMEOUT_S = 30
_UNSHARE = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child"]

# First process of a machine; a login host shares /proc and /tmp with this one, a node has its own.
_BOOT = """
set -e
name=$0 folder=$1; shift
hostname "$name"
mount --bind "$folder/hosts" /etc/hosts
# No name server can be reached: fail at once, not after the 10 s of the default.
printf 'nameserver 127.0.0.1\noptions timeout:1 attempts:1\n' > "$folder/resolv.conf"
mount --bind "$folder/resolv.conf" /etc/resolv.conf
mount --bind "$folder/etc" /etc/slurm
ip link set lo up
if [ "$name" != head ]; then
    mount -t proc proc /proc
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    # A /tmp of its own, with what the nodes share in it.
    mount -t tmpfs -o mode=1777 tmpfs /mnt
    for shared in "$folder" "$@"; do
        case "$shared" in /tmp/*) mkdir -p "/mnt${shared#/tmp}"; mount --bind "$shared" "/mnt${shared#/tmp}";; esac
    done
    mount --move /mnt /tmp
fi
echo booted
while :; do sleep 1000 & wait $!; done
"""
_TRIAL = (
    "ip link add br0 type bridge && ip link add veth0 type veth peer name veth1 && "
    "mount -t proc proc /proc && mount -t tmpfs tmpfs /mnt && mount --move /mnt /tmp"
)


class Unsupported(Exception):
    """This host cannot do that; the message says why."""


def obstacle() -> str | None:
    """The reason why there can be no such machines here, or None."""
    if os.geteuid() != 0:
        return "namespaces are for root"
    done = subprocess.run([*_UNSHARE, "sh", "-c", _TRIAL], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr.strip() or f"unshare: exit status {done.returncode}"


class Machines:
    """The head and the nodes of the cluster in `folder`, which all machines see.

    Args:
        nodes: their names.
        shared: other folders that all machines see, where they are under /tmp.
    """

    def __init__(self, folder: Path, nodes: Iterable[str], shared: list[Path]):
        self.folder = folder
        self.nodes = tuple(nodes)
        self._shared = shared
        self._children: dict[str, subprocess.Popen] = {}
        self.addresses = {HEAD: f"{_NET}.1"} | {node: f"{_NET}.{11 + index}" for index, node in enumerate(self.nodes)}

    # Commands.

    def start(self, argv: list[str], **options: Any) -> subprocess.Popen:
        """Starts a command as on the login host, as a process of this host: it can be signalled.

        Args:
            options: more for `subprocess.Popen`; `env` adds to what the command would see anyway.
        """
        return self._start(HEAD, argv, [], options)

    def start_on(self, machine: str, argv: list[str], **options: Any) -> subprocess.Popen:
        """Starts a command as a process of a machine, otherwise as `start`. Of all signals only SIGKILL reaches it."""
        return self._start(machine, ["setpriv", "--pdeathsig", "KILL", "--", *argv], ["--pid"], options)

    def _start(self, name: str, argv: list[str], spaces: list[str], options: dict[str, Any]) -> subprocess.Popen:
        folder, init = options.pop("cwd", None) or Path.cwd(), self._init(name)
        if init is None:
            raise RuntimeError(f"{name} is down")
        enter = ["nsenter", "--target", str(init), "--net", "--uts", "--ipc", "--mount", *spaces, f"--wdns={folder}"]
        return subprocess.Popen([*enter, "--", *argv], env=environment(self.folder) | options.pop("env", {}), **options)

    # Faults, which last until `crash` and `boot`.

    def crash(self, name: str) -> None:
        """All processes of a machine die at once. Its connections are closed, later packets to it vanish."""
        self._broken(name).unlink(missing_ok=True)
        if (init := self._init(name)) is not None:
            victims = self._processes(name)
            _signal([init], signal.SIGKILL)
            _wait_for_death(victims)
            if name != HEAD and self._init(HEAD) is not None:
                # The network goes when nothing refers to it any more, which may be late.
                with contextlib.suppress(RuntimeError):
                    self._in_net(HEAD, f"ip link delete {name}")
            self._init_file(name).unlink(missing_ok=True)
        if child := self._children.pop(name, None):
            child.wait(20)

    def cut(self, node: str) -> None:
        """The node's cable is pulled: its processes go on, packets vanish, no connection is closed."""
        self._break(node, HEAD, f"ip link set {node} down")

    def hang(self, node: str) -> None:
        """All processes of the node stop, as if it had frozen: its kernel takes packets, nobody answers."""
        self._broken(node).touch()
        stopped: set[int] = set()
        while running := self._processes(node) - stopped:
            _signal(running, signal.SIGSTOP)
            stopped |= running

    def unhang(self, node: str) -> None:
        """They go on."""
        _signal(self._processes(node), signal.SIGCONT)

    def isolate(self, node: str) -> None:
        """Isolated nodes cannot reach one another; the head reaches all, and is reached."""
        self._break(node, HEAD, f"bridge link set dev {node} isolated on")

    def drop(self, node: str, ports: str, interface: str = "eth0") -> None:
        """Packets to TCP ports (`7123`, or `7000-8000`) of the node vanish as they come in, as at a firewall."""
        rule = f"ip {'-6' if interface == SIX else '-4'} rule"
        # The table of the node's own addresses comes first otherwise.
        self._break(node, node, f"{rule} add pref 100 lookup local && {rule} del pref 0")
        self._in_net(node, f"{rule} add pref 10 iif {interface} ipproto tcp dport {ports} blackhole")

    def is_broken(self, node: str) -> bool:
        """Whether any of these has happened since it booted."""
        return self._broken(node).exists() or self._init(node) is None

    # Start and end.

    def boot(self, name: str) -> None:
        """Starts a machine and connects it; the head first."""
        log, address = self.folder / "log" / f"{name}.out", self.addresses[name]
        hosts = [f"{each} {machine}" for machine, each in self.addresses.items()]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
        with open(log, "ab") as errors:
            child = subprocess.Popen(
                [*_UNSHARE, "bash", "-c", _BOOT, name, *map(str, (self.folder, *self._shared))],
                env=environment(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        self._children[name] = child
        assert child.stdout is not None
        with child.stdout as output:
            if not select.select([output], [], [], _BOOT_TIMEOUT_S)[0] or output.readline() != b"booted\n":
                child.kill()
                raise RuntimeError(f"machine {name} did not boot: {log.read_text().strip()}")
        init = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0]
        self._init_file(name).write_text(init)
        if name == HEAD:
            self._in_net(HEAD, f"ip link add eth0 type bridge && ip addr add {address}/24 dev eth0")
            self._in_net(HEAD, "ip link set eth0 up")
            return
        # Always the same: the others remember by which hardware address a machine is reached, also after a reboot.
        hardware = "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))
        self._in_net(HEAD, f"ip link add {name} type veth peer name eth0 address {hardware} netns {init}")
        self._in_net(HEAD, f"ip link set {name} master eth0 up")
        self._in_net(name, f"ip addr add {address}/24 dev eth0 && ip link set eth0 up")
        self._in_net(name, f"ip route add default via {self.addresses[HEAD]}")
        self._in_net(name, f"ip link add link eth0 name {SIX} type macvlan mode bridge && ip link set {SIX} up")
        self._in_net(name, f"ip -6 addr add fd77::{address.rpartition('.')[2]}/64 dev {SIX} nodad")

    def _break(self, node: str, where: str, script: str) -> None:
        self._broken(node).touch()
        self._in_net(where, script)

    def _broken(self, node: str) -> Path:
        return self.folder / f"{node}.broken"

    def _in_net(self, name: str, script: str) -> None:
        """Runs a line of shell of this host in the network of a machine."""
        command = ["nsenter", "--target", str(self._init(name)), "--net", "sh", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{script}: {done.stderr.strip()}")

    def _processes(self, name: str) -> set[int]:
        """Of a machine, by this host's numbers."""
        if (init := self._init(name)) is None:
            return set()
        space = os.readlink(f"/proc/{init}/ns/pid")
        return {pid for pid in _processes() if _pid_space(pid) == space}

    def _init(self, name: str) -> int | None:
        try:
            pid = int(self._init_file(name).read_text())
        except (OSError, ValueError):
            return None
        return pid if start_time(pid) and _belongs(pid, self.folder) else None

    def _init_file(self, name: str) -> Path:
        return self.folder / f"{name}.init"


def environment(folder: Path) -> dict[str, str]:
    """Of every process of the cluster in `folder`: this process's without what a job around it has set, and with
    bytecode kept: four processes of a job would compile the same sources in every test."""
    removed = ("SLURM", "SBATCH_", "SRUN_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    return kept | {"PATH": path, "SLURM_CONF": str(folder / "etc" / "slurm.conf")}


def kill_all(folder: Path) -> None:
    """Kills the processes of the cluster in `folder`, and what was started from there, but not this one."""
    victims = {pid for pid in _processes() if pid != os.getpid() and _belongs(pid, folder)}
    _signal(victims, signal.SIGKILL)
    _wait_for_death(victims)


def start_time(pid: int) -> str | None:
    """In clock ticks since the host came up: with its number it identifies a process. None where it is dead, also where
    it is a zombie, which may stay for ever where nobody reaps."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def wait_until(condition: Callable[[], object], timeout_s: float, what: str, pause_s: float = 0.1) -> None:
    """Polls until the condition holds.

    Raises:
        TimeoutError: it does not within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(pause_s)


def _belongs(pid: int, folder: Path) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"SLURM_CONF={folder / 'etc' / 'slurm.conf'}".encode() in environ.split(b"\0")


def _processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _pid_space(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_for_death(pids: Iterable[int]) -> None:
    wait_until(lambda: not any(start_time(pid) for pid in pids), 20, f"processes {sorted(pids)} to die", 0.02)
