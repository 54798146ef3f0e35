"""A real SLURM of several nodes on one machine, for tests: brought up, broken in many ways, healed, and taken down.

    python tests/slurm/cluster.py up              bring one up and print its folder; a second one beside it is fine
    python tests/slurm/cluster.py login COMMAND   run a command as on its login host: `login sinfo`, or `login bash`
    python tests/slurm/cluster.py on n1 COMMAND   run a command on a node
    python tests/slurm/cluster.py FAULT n1        crash, cut, join, hang, unhang, isolate, unisolate, lose, heal
    python tests/slurm/cluster.py drop n1 PORTS   the fault that needs ports: packets to them vanish
    python tests/slurm/cluster.py down            take it down again, and what killed tests have left

Where several are up, all but `up` want to know which: `--folder FOLDER`, before the verb.

It needs Debian's packages slurm-wlm, munge and iproute2, which it installs if it may (root, apt-get). Where namespaces
are allowed (root) every node is a machine of its own, with an address of its own and 4 pretended CPUs; elsewhere, or
with COLLECTX_SLURM_ONE_HOST=1, all nodes are this host, and what needs a network of its own raises `Unsupported`. See
`machines.py`.

All that belongs to a cluster is found by its folder, in the temporary folder: nothing is kept in this repository, and
nothing of this host's own settings is touched.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import machines
import packages
import settings
from machines import HEAD, Namespaces, OneHost, Unsupported

_PREFIX = "collectx-slurm-"
_PIPES: dict[str, Any] = {
    "stdin": subprocess.DEVNULL,
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "text": True,
}
_REPOSITORY = Path(__file__).resolve().parents[2]


class Cluster:
    """A cluster that is up. `Cluster.up(...)` makes one, `down()` takes it down; also a context manager.

    Attributes:
        folder: all of it, on a file system that all machines share; gone after `down`.
        shared: a folder for the user of the cluster, in it.
        nodes: their names, n1 to n3.
        kind: what the machines are, in words.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.shared = folder / "shared"
        state = json.loads((folder / "cluster.json").read_text())
        self.nodes: tuple[str, ...] = tuple(state["nodes"])
        self._accounting: bool = state["accounting"]
        shared = [_REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)]
        self._machines = Namespaces(folder, shared) if state["namespaces"] else OneHost(folder)
        self.kind = self._machines.kind
        self._database: subprocess.Popen | None = None

    @classmethod
    def up(cls, num_nodes: int = 3, num_cpus: int = 4, accounting: bool = False, keep: bool = False) -> Cluster:
        """Brings a cluster up (some seconds). What an earlier one of a dead process has left is taken down first.

        Args:
            accounting: with slurmdbd and a database, so that `sacct` answers; without, it says that it is disabled.
            keep: it outlives this process, until `down`.

        Raises:
            Unsupported: no SLURM can be had here; the message says why.
        """
        if problem := packages.obstacle(accounting):
            raise Unsupported(problem)
        for folder in left_over():
            cls(folder).down()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
        folder.chmod(0o755)  # munge wants its socket to be reachable
        state = {
            "nodes": [f"n{number}" for number in range(1, num_nodes + 1)],
            "owner": None if keep else [os.getpid(), machines.start_time(os.getpid())],
            "namespaces": not os.environ.get("COLLECTX_SLURM_ONE_HOST") and Namespaces.obstacle() is None,
            "accounting": accounting,
        }
        (folder / "cluster.json").write_text(json.dumps(state))
        cluster = cls(folder)
        try:
            cluster._bring_up(num_cpus)
        except BaseException:
            cluster.down()
            raise
        return cluster

    def down(self) -> None:
        """Takes everything down, in whatever state it is. Idempotent."""
        for machine in (*self.nodes, HEAD):
            self._machines.kill(machine)
        machines.kill(machines.owned(self.folder))
        if self._database is not None:
            self._database.wait()
        self._wait(self._is_removed, 10, f"{self.folder} to be removed")

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: Any) -> None:
        self.down()

    # Commands.

    def login(self, argv: list[str], timeout: float = 60, check: bool = True, **options: Any) -> str:
        """Runs a command as on the login host, with this host's files, and returns its standard output.

        Args:
            timeout: seconds, then it is killed and `subprocess.TimeoutExpired` raised.
            check: raise on a bad exit status, with what the command wrote.
            options: more for `subprocess.Popen`; `env` adds to what the command would see anyway.
        """
        return self._finish(self.start(argv, **_PIPES, **options), HEAD, argv, timeout, check)

    def start(self, argv: list[str], **options: Any) -> subprocess.Popen:
        """Starts a command as on the login host, otherwise as `login`. Signals reach the command itself."""
        return self._start(self._machines.login, argv, options)

    def on(self, machine: str, argv: list[str], timeout: float = 60, check: bool = True, **options: Any) -> str:
        """Runs a command on a node, outside of any job; otherwise as `login`."""
        return self._finish(self.start_on(machine, argv, **_PIPES, **options), machine, argv, timeout, check)

    def start_on(self, machine: str, argv: list[str], **options: Any) -> subprocess.Popen:
        """Starts a command on a node, otherwise as `on`. Of all signals only SIGKILL reaches the command."""
        return self._start(partial(self._machines.enter, machine), argv, options)

    # Faults.

    def crash(self, node: str) -> None:
        """All processes of the node die at once. Its connections are closed, later packets to it vanish."""
        self._break(node)
        self._machines.kill(node)

    def cut(self, node: str) -> None:
        """The node's cable is pulled: its processes go on, packets vanish, no connection is closed."""
        self._break(node)
        self._machines.cut(node, True)

    def join(self, node: str) -> None:
        """The cable is plugged in again."""
        self._machines.cut(node, False)

    def hang(self, node: str) -> None:
        """All processes of the node stop, as if it had frozen: its kernel takes packets, nobody answers."""
        self._break(node)
        stopped: set[int] = set()
        while running := self._machines.processes(node) - stopped:
            machines.stop(running, True)
            stopped |= running

    def unhang(self, node: str) -> None:
        """They go on."""
        machines.stop(self._machines.processes(node), False)

    def isolate(self, node: str) -> None:
        """Isolated nodes cannot reach one another; the head reaches all, and is reached."""
        self._break(node)
        self._machines.isolate(node, True)

    def unisolate(self, node: str) -> None:
        """The node reaches all others again, but for those that are isolated themselves."""
        self._machines.isolate(node, False)

    def drop(self, node: str, ports: str, interface: str = "eth0") -> None:
        """Packets to TCP ports (`7123`, or `7000-8000`) of the node vanish, as at a firewall."""
        self._break(node)
        self._machines.drop(node, ports, interface)

    def lose(self, node: str) -> None:
        """SLURM takes the node for dead now, without the wait for its time-out: its jobs end as NODE_FAIL."""
        self._break(node)
        self.login(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test"])

    def heal(self, node: str) -> None:
        """Whatever happened to the node: it boots again, and is idle as soon as its jobs are gone."""
        self._machines.kill(node)
        self._start_node(node)
        self._wait(lambda: self._is_back(node), 60, f"{node} to come back")
        self._broken(node).unlink(missing_ok=True)

    def reset(self) -> None:
        """Cancels all jobs, heals every node that was broken or that SLURM has lost, and waits until all are idle."""
        if jobs := self.jobs():
            self.login(["scancel", "--quiet", *jobs], check=False)
        for node in self.nodes:
            if self._broken(node).exists() or not self._machines.is_up(node) or "*" in self.state(node):
                self.lose(node)  # or SLURM would go on trying to end its jobs there, for up to a minute
                self.heal(node)
        self._wait(lambda: not self.jobs(), 60, "cancelled jobs to end")
        self._wait(
            lambda: all(self._is_back(node) and self.state(node) == "idle" for node in self.nodes), 60, "all idle"
        )

    # What SLURM says.

    def state(self, node: str) -> str:
        """Of a node, in SLURM's word, as in `idle` or `down*` (the star: it does not answer)."""
        return self.login(
            ["sinfo", "--noheader", "--partition", settings.PARTITION, "--nodes", node, "-o", "%T"]
        ).strip()

    def job_state(self, job: str | int) -> str:
        """Of a job that is or was, as in `RUNNING` or `NODE_FAIL`; of an array, those of its tasks, by line."""
        return self.login(["squeue", "--noheader", "--states=all", f"--jobs={job}", "-o", "%T"]).strip()

    def jobs(self) -> list[str]:
        """Numbers of the jobs that have not ended."""
        return self.login(["squeue", "--noheader", "-o", "%i"]).split()

    # The inside.

    def _bring_up(self, num_cpus: int) -> None:
        for name in ("etc", "log", "state", "spool", "shared"):
            (self.folder / name).mkdir()
        head, nodes = self._machines.addresses(self.nodes)
        settings.write(self.folder, head, nodes, num_cpus, head.port + 2 if self._accounting else None)
        (self.folder / "nodes.json").write_text(json.dumps({node: address.address for node, address in nodes.items()}))
        self._machines.boot(HEAD, head.address)
        self._start_munge()
        if self._accounting:
            self._start_accounting()
        self.on(HEAD, ["slurmctld", "-f", str(self.folder / "etc" / "slurm.conf")])
        for node in self.nodes:
            self._start_node(node)
        self._wait(lambda: all(self.state(node) == "idle" for node in self.nodes), 60, "the nodes to be idle")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        paths = {"key-file": key, "socket": "munge.socket", "pid-file": "munged.pid", "seed-file": "munged.seed"}
        options = [f"--{option}={self.folder / path}" for option, path in paths.items()]
        self.on(HEAD, ["munged", *options, f"--log-file={self.folder / 'log' / 'munged.log'}"])

    def _start_accounting(self) -> None:
        """A database that listens on a socket only, and slurmdbd in front of it."""
        data, socket = self.folder / "database", self.folder / "database" / "socket"
        data.mkdir()
        shutil.chown(data, "mysql", "mysql")
        where = ["--user=mysql", f"--datadir={data / 'data'}"]
        plain = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        self.on(HEAD, ["mariadb-install-db", *where, *plain])
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        listen = [f"--socket={socket}", "--skip-networking", f"--pid-file={data / 'pid'}"]
        sizes = ["--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"]
        self._database = self.start(["mariadbd", "--no-defaults", *where, *listen, *sizes], **quiet)
        ping = ["mariadb-admin", f"--socket={socket}", "ping"]
        self._wait(lambda: "alive" in self.on(HEAD, ping, check=False), 60, "the database")
        # The client library of the database finds the socket by this variable.
        self.on(HEAD, ["slurmdbd"], env={"MYSQL_UNIX_PORT": str(socket)})
        ask = ["sacctmgr", "--noheader", "list", "cluster"]
        self._wait(lambda: self._succeeds(ask), 60, "slurmdbd")

    def _succeeds(self, argv: list[str]) -> bool:
        with self.start(argv, **_PIPES) as process:
            process.communicate(timeout=60)
            return process.returncode == 0

    def _start_node(self, node: str) -> None:
        addresses = json.loads((self.folder / "nodes.json").read_text())
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        self._machines.boot(node, addresses[node])
        self.on(node, ["slurmd", "-N", node, "-f", str(self.folder / "etc" / "slurm.conf")])

    def _is_removed(self) -> bool:
        # Others may still be writing there.
        shutil.rmtree(self.folder, ignore_errors=True)
        return not self.folder.exists()

    def _break(self, node: str) -> None:
        self._broken(node).touch()

    def _broken(self, node: str) -> Path:
        return self.folder / f"{node}.broken"

    def _is_back(self, node: str) -> bool:
        """Whether SLURM speaks with the node; tells it to use the node again, where it is held back."""
        state = self.state(node)
        if state in ("down", "drained", "draining"):
            # Refused where the node has come back by itself meanwhile.
            self.login(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)
        return state in ("idle", "allocated", "mixed", "completing")

    def _wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {timeout_s:g} s for {what}")
            time.sleep(0.1)

    def _start(self, entry: Callable, argv: list[str], options: dict[str, Any]) -> subprocess.Popen:
        folder = Path(options.pop("cwd", None) or Path.cwd())
        environment = machines.environment(self.folder) | options.pop("env", {})
        return subprocess.Popen(entry(argv, folder), env=environment, **options)

    def _finish(self, process: subprocess.Popen, machine: str, argv: list[str], timeout: float, check: bool) -> str:
        with process:
            try:
                output, errors = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode:
            said = f"{output}{errors}".strip()
            raise RuntimeError(f"{' '.join(argv)} on {machine}: exit status {process.returncode}: {said}")
        return output


def left_over() -> list[Path]:
    """Folders of clusters whose process is gone."""
    return [folder for folder, owner in _clusters() if owner and machines.start_time(owner[0]) != owner[1]]


def kept() -> list[Path]:
    """Folders of clusters that were brought up to stay."""
    return [folder for folder, owner in _clusters() if owner is None]


def _clusters() -> list[tuple[Path, list | None]]:
    states = sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/cluster.json"))
    return [(path.parent.resolve(), json.loads(path.read_text())["owner"]) for path in states]


_FAULTS = ("crash", "cut", "join", "hang", "unhang", "isolate", "unisolate", "drop", "lose", "heal")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--nodes", type=int, default=3, help="how many, for `up`")
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd, for `up`")
    parser.add_argument("verb", choices=("up", "login", "on", *_FAULTS, "down"))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="node, command")
    options = parser.parse_args(argv)
    try:
        return _do(options)
    except Unsupported as error:
        print(error, file=sys.stderr)
        return 1


def _do(options: argparse.Namespace) -> int:
    verb, arguments = options.verb, options.arguments
    if verb == "up":
        cluster = Cluster.up(options.nodes, accounting=options.accounting, keep=True)
        print(f"{len(cluster.nodes)} nodes ({cluster.kind}) in {cluster.folder}")
        return 0
    if verb == "down":
        for folder in left_over():
            Cluster(folder).down()
        if not kept():
            return 0
    cluster = Cluster(options.folder or _the_only_one())
    if verb == "down":
        cluster.down()
    elif verb == "login":
        return cluster.start(arguments).wait()
    elif verb == "on":
        return cluster.start_on(arguments[0], arguments[1:]).wait()
    else:
        getattr(cluster, verb)(*arguments)
    return 0


def _the_only_one() -> Path:
    folders = kept()
    if len(folders) != 1:
        known = "".join(f"\n  --folder {folder}" for folder in folders) or " none: bring one up with `up`"
        raise Unsupported(f"which cluster?{known}")
    return folders[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
