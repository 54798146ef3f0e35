"""The machines of a cluster: namespaces that look like hosts of their own on a shared file system.

    +------+   +------+   +------+
    |  n1  |   |  n2  |   |  n3  |  ...
    +--|---+   +--|---+   +--|---+
      eth0       eth0       eth0    10.77.0.11, ...
    ===|==========|==========|===   the head's eth0 is the switch, 10.77.0.1
    +--|-------------------------+
    | head (login, slurmctld)    |
    +----------------------------+

Nothing of a machine has a name in this host's own network: a machine is gone, interfaces included, with its first
process, and all of them with this process. Must not know SLURM.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HEAD = "head"
_TO_DIE_WITH_THIS = ["setpriv", "--pdeathsig", "KILL", "--"]
_UNSHARE = [*_TO_DIE_WITH_THIS, "unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child"]

# First process of a machine; the head shares /proc and /tmp with this host, a node has its own.
_BOOT = """
set -e
name=$0 folder=$1; shift
hostname "$name"
mount --bind "$folder/hosts" /etc/hosts
# No name server can be reached: fail at once, not after the 10 s of the default.
printf 'nameserver 127.0.0.1\noptions timeout:1 attempts:1\n' > "$folder/resolv.conf"
mount --bind "$folder/resolv.conf" /etc/resolv.conf
if [ -d "$folder/etc" ]; then mount --bind "$folder/etc" /etc/slurm; fi
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
# What a host must allow.
TRIAL = [
    *[*_UNSHARE, "sh", "-c"],
    "ip link add br0 type bridge && ip link add veth0 type veth peer name veth1 && "
    "mount -t proc proc /proc && mount -t tmpfs tmpfs /mnt && mount --move /mnt /tmp",
]


class Machines:
    """The head and the `nodes` of the cluster in `folder`, which all machines see, as they do the folders `shared`,
    also where those are under /tmp. `broken` are the nodes with a fault, until they are booted again."""

    def __init__(self, folder: Path, nodes: Sequence[str], shared: list[Path], environment: dict[str, str]):
        self.folder = folder
        self.nodes = [*nodes]
        self.addresses = {machine: f"10.77.0.{11 + index}" for index, machine in enumerate(self.nodes)}
        self.addresses[HEAD] = "10.77.0.1"
        self.broken: set[str] = set()
        self._shared = shared
        self._environment = environment
        # The first process of each machine, and the one that waits for its end.
        self._inits: dict[str, int] = {}
        self._parents: dict[str, subprocess.Popen] = {}

    def start(
        self, argv: list[str], machine: str | None = None, cwd: Path | None = None, **options: Any
    ) -> subprocess.Popen:
        """Starts a command as on the login host, as a process of this host: it can be signalled. Or as a process of a
        machine: of all signals only SIGKILL reaches it. `options` are more for `subprocess.Popen`."""
        target, spaces = (HEAD, []) if machine is None else (machine, ["--pid"])
        enter = ["nsenter", f"--target={self._inits[target]}", "--net", "--uts", "--ipc", "--mount", *spaces]
        command = [*enter, f"--wdns={cwd or Path.cwd()}", "--", *_TO_DIE_WITH_THIS, *argv]
        return subprocess.Popen(command, env=self._environment, **({"stdin": subprocess.DEVNULL} | options))

    def login(self, argv: list[str], timeout: float = 60, check: bool = True, **options: Any) -> str:
        """Runs a command as `start` does, and returns its standard output. Raises RuntimeError, with what the command
        wrote, on a bad exit status, unless `check` is false."""
        with self.start(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
            try:
                output, errors = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode:
            raise RuntimeError(f"{' '.join(argv)}: exit status {process.returncode}: {output}{errors}".rstrip())
        return output

    def on(self, machine: str, argv: list[str]) -> str:
        """Runs a command on a machine, outside of any job; otherwise as `login`."""
        return self.login(argv, machine=machine)

    # Faults, which last until `crash` and `boot`.

    def crash(self, name: str) -> None:
        """All processes of a machine die at once. Its connections are closed, later packets to it vanish."""
        self.broken.add(name)
        if parent := self._parents.pop(name, None):
            os.kill(self._inits.pop(name), signal.SIGKILL)
            parent.wait(20)
            if name != HEAD:
                # The network goes when nothing refers to it any more, which may be late.
                self._in_net(HEAD, f"ip link delete {name} || true")

    def cut(self, node: str) -> None:
        """The node's cable is pulled: its processes go on, packets vanish, no connection is closed."""
        self.broken.add(node)
        self._in_net(HEAD, f"ip link set {node} down")

    def hang(self, node: str) -> None:
        """All processes of the node stop, as if it had frozen: its kernel takes packets, nobody answers."""
        self.broken.add(node)
        self.on(node, ["bash", "-c", "kill -STOP -1"])

    def unhang(self, node: str) -> None:
        """They go on."""
        self.on(node, ["bash", "-c", "kill -CONT -1"])

    def wall(self, node: str) -> None:
        """A firewall lets packets from and to fixed ports through, but none between ports that systems choose."""
        self.broken.add(node)
        # The table of the node's own addresses comes first otherwise.
        self._in_net(node, "ip rule add pref 100 lookup local && ip rule del pref 0")
        chosen = "32768-60999"
        self._in_net(node, f"ip rule add pref 10 iif eth0 ipproto tcp sport {chosen} dport {chosen} blackhole")

    def drop_closed(self, node: str) -> None:
        """A firewall drops packets to the node's ports below 1024, on which nobody listens, and the node knows other
        machines by address alone."""
        self.broken.add(node)
        self._in_net(node, "ip rule add pref 100 lookup local && ip rule del pref 0")
        self._in_net(node, "ip rule add pref 10 iif eth0 ipproto tcp dport 1-1023 blackhole")
        own = self.folder / f"hosts.{node}"
        own.write_text(f"127.0.0.1 localhost\n{self.addresses[node]} {node}\n")
        self._in_net(node, f"mount --bind {own} /etc/hosts")

    def boot(self, name: str) -> None:
        """Starts a machine and connects it; the head first."""
        log, address = self.folder / "log" / f"{name}.out", self.addresses[name]
        hosts = [f"{each} {machine}" for machine, each in self.addresses.items()]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
        with open(log, "ab") as errors:
            parent = subprocess.Popen(
                [*_UNSHARE, "bash", "-c", _BOOT, name, *map(str, (self.folder, *self._shared))],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert parent.stdout is not None
        with parent.stdout as output:
            if not select.select([output], [], [], 30)[0] or output.readline() != b"booted\n":
                parent.kill()
                raise RuntimeError(f"machine {name} did not boot: {log.read_text().strip()}")
        init = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()[0]
        self._inits[name], self._parents[name] = int(init), parent
        self.broken.discard(name)
        if name == HEAD:
            bridge = f"ip link add eth0 type bridge && ip addr add {address}/24 dev eth0 && ip link set eth0 up"
            self._in_net(HEAD, bridge)
            return
        # Always the same: the others remember by which hardware address a machine is reached, also after a reboot.
        hardware = "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))
        self._in_net(HEAD, f"ip link add {name} type veth peer name eth0 address {hardware} netns {init}")
        self._in_net(HEAD, f"ip link set {name} master eth0 up")
        self._in_net(name, f"ip addr add {address}/24 dev eth0 && ip link set eth0 up")
        self._in_net(name, f"ip route add default via {self.addresses[HEAD]}")

    def _in_net(self, name: str, script: str) -> None:
        """Runs a line of shell in the network of a machine; the head's names nodes by processes of this host."""
        self.login(["sh", "-c", script], machine=None if name == HEAD else name)


def wait_until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    """Polls until the condition holds; raises TimeoutError where it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.1)
