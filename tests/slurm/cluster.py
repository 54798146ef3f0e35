"""A real SLURM of several nodes on one machine, for tests: brought up, broken in many ways, healed, and taken down.

    python tests/slurm/cluster.py up [--accounting]   bring one up, to stay until `down`
    python tests/slurm/cluster.py login COMMAND       run a command as on its login host: `login sinfo`, or `login bash`
    python tests/slurm/cluster.py on n1 COMMAND       run a command on a node
    python tests/slurm/cluster.py FAULT n1            crash, cut, hang, unhang, isolate, lose, heal
    python tests/slurm/cluster.py drop n1 PORTS       the fault that needs ports: packets to them vanish
    python tests/slurm/cluster.py down                take it down, and what killed tests have left

It needs root, namespaces, and Debian's packages slurm-wlm, munge and iproute2, which it installs: every node is a
machine with an address of its own and 4 pretended CPUs. See `machines.py`.

All that belongs to a cluster is identified by its folder, in the temporary folder: nothing is kept in this repository,
and nothing of this host's own settings is touched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import machines
import packages
import settings
from machines import Machines, Unsupported, wait_until
from settings import HEAD

_PREFIX = "collectx-slurm-"
_REPOSITORY = Path(__file__).resolve().parents[2]


class Cluster(Machines):
    """A cluster that is up. `Cluster.up(...)` makes one, `down()` takes it down; also a context manager.

    Attributes:
        folder: all of it, on a file system that all machines share; gone after `down`.
        shared: a folder for the user of the cluster, in it.
        nodes: their names, n1 and so on.
    """

    def __init__(self, folder: Path):
        state = json.loads((folder / "cluster.json").read_text())
        super().__init__(folder, state["nodes"], [_REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)])
        self.shared = folder / "shared"
        self._accounting: bool = state["accounting"]
        self._database: subprocess.Popen | None = None

    @classmethod
    def up(cls, num_nodes: int = 4, num_cpus: int = 4, accounting: bool = False, keep: bool = False) -> Cluster:
        """Brings a cluster up (some seconds). What an earlier one of a dead process has left is taken down first.

        Args:
            accounting: with slurmdbd and a database, so that `sacct` answers; without, it says that it is disabled.
            keep: it outlives this process, until `down`.

        Raises:
            Unsupported: no SLURM can be had here; the message says why.
        """
        if problem := machines.obstacle() or packages.obstacle(accounting):
            raise Unsupported(problem)
        for left_over in _clusters(lambda owner: owner and machines.start_time(owner[0]) != owner[1]):
            left_over.down()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
        folder.chmod(0o755)  # munge refuses a socket that others cannot reach
        state = {
            "nodes": [f"n{number}" for number in range(1, num_nodes + 1)],
            "owner": None if keep else [os.getpid(), machines.start_time(os.getpid())],
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
            self.crash(machine)
        machines.kill_all(self.folder)
        if self._database is not None:
            self._database.wait()
        wait_until(self._is_removed, 10, f"{self.folder} to be removed")

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: Any) -> None:
        self.down()

    def login(self, argv: list[str], timeout: float = 60, check: bool = True, **options: Any) -> str:
        """Runs a command as on the login host, with this host's files, and returns its standard output.

        Args:
            timeout: seconds, then it is killed and `subprocess.TimeoutExpired` raised.
            check: raise on a bad exit status, with what the command wrote.
            options: see `start`.
        """
        return _finish(self.start, argv, timeout, check, options)

    def on(self, machine: str, argv: list[str], timeout: float = 60, check: bool = True, **options: Any) -> str:
        """Runs a command on a node, outside of any job; otherwise as `login`."""
        return _finish(partial(self.start_on, machine), argv, timeout, check, options)

    def lose(self, node: str) -> None:
        """SLURM takes the node for dead now, without the wait for its time-out: its jobs end as NODE_FAIL."""
        self._broken(node).touch()
        self.login(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test"])

    def heal(self, node: str) -> None:
        """Whatever happened to the node: it boots again, and is idle as soon as its jobs are gone."""
        self.crash(node)
        self._start_node(node)
        wait_until(lambda: self._is_back(node), 60, f"{node} to come back")

    def reset(self) -> None:
        """Cancels all jobs, heals every node that was broken or that SLURM has lost, and waits until all are idle."""
        if jobs := self.jobs():
            self.login(["scancel", "--quiet", *jobs], check=False)
        for node in self.nodes:
            if self.is_broken(node) or "*" in self.state(node):
                self.lose(node)  # or SLURM would go on trying to end its jobs there, for up to a minute
                self.heal(node)
        wait_until(lambda: not self.jobs(), 60, "cancelled jobs to end")
        wait_until(lambda: all(self._is_back(node) and self.state(node) == "idle" for node in self.nodes), 60, "idle")

    # What SLURM says.

    def state(self, node: str) -> str:
        """Of a node, in SLURM's word, as in `idle` or `down*` (the star: it does not answer)."""
        show = ["sinfo", "--noheader", "--partition", settings.PARTITION, "--nodes", node, "-o", "%T"]
        return self.login(show).strip()

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
        settings.write(self.folder, self.addresses, num_cpus, self._accounting)
        self.boot(HEAD)
        self._start_munge()
        if self._accounting:
            self._start_accounting()
        self.on(HEAD, ["slurmctld", "-f", str(self.folder / "etc" / "slurm.conf")])
        for node in self.nodes:
            self._start_node(node)
        wait_until(lambda: all(self.state(node) == "idle" for node in self.nodes), 60, "the nodes to be idle")

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
        self.on(HEAD, ["mariadb-install-db", *where, "--auth-root-authentication-method=normal", "--skip-test-db"])
        listen = [f"--socket={socket}", "--skip-networking", f"--pid-file={data / 'pid'}"]
        sizes = ["--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"]
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._database = self.start(["mariadbd", "--no-defaults", *where, *listen, *sizes], **quiet)
        ping = ["mariadb-admin", f"--socket={socket}", "ping"]
        wait_until(lambda: "alive" in self.on(HEAD, ping, check=False), 60, "the database")
        # The client library of the database finds the socket by this variable.
        self.on(HEAD, ["slurmdbd"], env={"MYSQL_UNIX_PORT": str(socket)})
        ask = ["sh", "-c", "sacctmgr --noheader list cluster && echo answered"]
        wait_until(lambda: "answered" in self.login(ask, check=False), 60, "slurmdbd")

    def _start_node(self, node: str) -> None:
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        self.boot(node)
        self.on(node, ["slurmd", "-N", node, "-f", str(self.folder / "etc" / "slurm.conf")])

    def _is_removed(self) -> bool:
        # Others may still be writing there.
        shutil.rmtree(self.folder, ignore_errors=True)
        return not self.folder.exists()

    def _is_back(self, node: str) -> bool:
        """Whether SLURM speaks with the node; tells it to use the node again, where it is held back."""
        state = self.state(node)
        if state in ("down", "drained", "draining"):
            # Refused where the node has come back by itself meanwhile.
            self.login(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)
        return state in ("idle", "allocated", "mixed", "completing")


def _finish(start: Callable[..., subprocess.Popen], argv: list[str], timeout: float, check: bool, options: dict) -> str:
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start(argv, **pipes, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    if check and process.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit status {process.returncode}: {output}{errors}".rstrip())
    return output


def _clusters(is_chosen: Callable[[list | None], object]) -> list[Cluster]:
    """Those on this machine whose owner, a process's number and start time or None, is so."""
    states = sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/cluster.json"))
    return [Cluster(path.parent.resolve()) for path in states if is_chosen(json.loads(path.read_text())["owner"])]


_FAULTS = ("crash", "cut", "hang", "unhang", "isolate", "drop", "lose", "heal")


def main(verb: str = "", *arguments: str) -> int | str | None:
    """Exit status, or what to print before exit status 1."""
    kept = _clusters(lambda owner: owner is None)
    if verb == "up" and not kept:
        print(Cluster.up(accounting="--accounting" in arguments, keep=True).folder)
    elif verb == "down":
        for cluster in kept + _clusters(lambda owner: owner and machines.start_time(owner[0]) != owner[1]):
            cluster.down()
    elif verb not in ("up", "login", "on", *_FAULTS):
        return __doc__
    elif len(kept) != 1 or verb == "up":
        return f"clusters that are up: {', '.join(str(cluster.folder) for cluster in kept) or 'none'}"
    elif verb == "login":
        return kept[0].start(list(arguments)).wait()
    elif verb == "on":
        return kept[0].start_on(arguments[0], list(arguments[1:])).wait()
    else:
        getattr(kept[0], verb)(*arguments)
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
