"""A real SLURM of four nodes on one machine, for tests: brought up, broken in many ways, healed, and taken down.

    python tests/slurm/cluster.py COMMAND      runs a command, such as bash, as on the login host of a new one

It needs root, namespaces, and Debian's packages, which it installs: every node is a machine with an address of its own,
4 pretended CPUs and 2 pretended GPUs. See `machines.py`. Nothing of this host's own settings is touched.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).parents[1]))

from machines import HEAD, TRIAL, Machines, wait_until

# libpmix-dev is for `srun --mpi=pmix`.
_APT_GET = "apt-get -o DPkg::Lock::Timeout=120 install --yes --no-install-recommends slurm-wlm iproute2 libpmix-dev"
# The package lists may be missing or old: update them and try a second time.
_INSTALL = f"slurmctld -V && srun -V && ip -V || {_APT_GET} || (apt-get update && {_APT_GET})"
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
_REPOSITORY = Path(__file__).resolve().parents[2]

# Jobs of the partition `urgent` preempt those of `train`: SIGTERM, `GRACE_S`, then the end.
GRACE_S = 20
_CONF = """\
ClusterName=collectx
SlurmctldHost={HEAD}({addresses[head]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/log/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmdSpoolDir={folder}/spool/%n
# Outside of the ports that a system chooses.
SrunPortRange=61001-62000
# Nodes pretend to have more than the machine.
SlurmdParameters=config_overrides
GresTypes=gpu
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# Start jobs as soon as they are submitted.
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=2,bf_interval=2
# Lost nodes are noticed in seconds, and serve as soon as they come back.
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=15
MessageTimeout=5
TCPTimeout=2
KillWait=10
# A node that was cut off or hung must not end up drained ("Kill task failed").
UnkillableStepTimeout=300
# The controller remembers jobs for as long as the cluster lives: there is no accounting.
MinJobAge=86400
# Arrays of four tasks, so that few make several arrays.
MaxArraySize=4
# It fails where the file shared/prolog_fails exists.
Prolog={folder}/etc/prolog
# No number of a later cluster is that of an old job.
FirstJobId={first_job}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
# LLN: single jobs go to different nodes.
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE DefaultTime=10 LLN=YES State=UP
PartitionName=train Default=YES PriorityTier=1 GraceTime={GRACE_S}
PartitionName=urgent PriorityTier=10 PreemptMode=OFF
# As the documentation names them.
PartitionName=cpu PriorityTier=1 GraceTime={GRACE_S}
PartitionName=preempt PriorityTier=1 GraceTime={GRACE_S}
"""


def obstacle() -> str | None:
    """The reason why there can be no cluster here, or None. Installs missing packages, which takes up to minutes."""
    if os.geteuid() != 0:
        return "namespaces are for root"
    environment = os.environ | {"PATH": _PATH, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["sh", "-c", _INSTALL], TRIAL):
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            return f"{command[-1]}: {done.stderr[-500:]}"
    return None


class Cluster(Machines):
    """A context manager: it is up between its begin, which takes some seconds, and its end. `shared` is a folder for
    its user, which all machines see."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="collectx-slurm-", ignore_cleanup_errors=True)
        folder = Path(self._temporary.name).resolve()
        # Without what a job around this process has set, and with bytecode kept: the processes of a job would compile
        # the same sources in every test.
        removed = ("SLURM", "SBATCH_", "SRUN_", "PYTHONDONTWRITEBYTECODE")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
        environment |= {"PATH": _PATH, "SLURM_CONF": str(folder / "etc" / "slurm.conf")}
        nodes = [f"n{number}" for number in range(1, 5)]
        super().__init__(folder, nodes, [_REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)], environment)
        self.shared = folder / "shared"

    def __enter__(self) -> Self:
        try:
            self._bring_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: Any) -> None:
        for machine in (*self.nodes, HEAD):
            self.crash(machine)
        self._temporary.cleanup()

    def lose(self, node: str) -> None:
        """SLURM takes the node for dead now, without the wait for its time-out: its jobs end as NODE_FAIL."""
        self.broken.add(node)
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
            if node in self.broken or "*" in self.state(node):
                self.lose(node)  # or SLURM would go on trying to end its jobs there, for up to a minute
                self.heal(node)
        wait_until(lambda: not self.jobs(), 60, "cancelled jobs to end")
        wait_until(lambda: all(self._is_back(node) and self.state(node) == "idle" for node in self.nodes), 60, "idle")

    def state(self, node: str) -> str:
        """Returns the state of a node in SLURM's word, such as `idle` or `down*` (the star: it does not answer)."""
        # SLURM 22.05 counts a node's free cores anew for scontrol, but not always for sinfo.
        self.login(["scontrol", "show", "nodes"])
        return self.login(["sinfo", "--noheader", "--partition=train", f"--nodes={node}", "--format=%T"]).strip()

    def squeue(self, *words: str) -> list[str]:
        """Returns the words that squeue prints."""
        return self.login(["squeue", "--noheader", *words]).split()

    def job_states(self, job: str) -> list[str]:
        """Returns the states of a job, such as `RUNNING` or `NODE_FAIL`, one for each part or task of an array."""
        return self.squeue("--states=all", f"--jobs={job}", "--format=%T")

    def jobs(self) -> list[str]:
        """Numbers of the jobs that have not ended."""
        return self.squeue("--format=%i")

    def _bring_up(self) -> None:
        for name in ("etc", "log", "state", "spool", "shared"):
            (self.folder / name).mkdir()
        self._configure()
        self.boot(HEAD)
        self.start_controller()
        for node in self.nodes:
            self._start_node(node)
        wait_until(lambda: all(self.state(node) == "idle" for node in self.nodes), 60, "the nodes to be idle")

    def start_controller(self) -> None:
        """Starts SLURM's controller, on the head."""
        self.on(HEAD, ["slurmctld", "-f", str(self.folder / "etc" / "slurm.conf")])

    def _configure(self) -> None:
        etc, first_job = self.folder / "etc", int(time.time()) % 60_000_000 + 1
        values = {"HEAD": HEAD, "GRACE_S": GRACE_S, "folder": self.folder, "addresses": self.addresses}
        machine = "CPUs=4 RealMemory=4000 Gres=gpu:2 State=UNKNOWN"
        nodes = [f"NodeName={node} NodeAddr={self.addresses[node]} {machine}\n" for node in self.nodes]
        (etc / "slurm.conf").write_text("".join(nodes) + _CONF.format(**values, first_job=first_job))
        prolog = etc / "prolog"
        prolog.write_text(f'#!/bin/sh\n[ ! -e "{self.shared}/prolog_fails" ]\n')
        prolog.chmod(0o755)
        # slurmd probes cgroups even where no plugin uses them; naming v1 skips the probe, which fails in a namespace.
        (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        # Some devices in the place of GPUs.
        (etc / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")

    def _start_node(self, node: str) -> None:
        (self.folder / "spool" / node).mkdir(exist_ok=True)
        self.boot(node)
        self.on(node, ["slurmd", "-N", node, "-f", str(self.folder / "etc" / "slurm.conf")])

    def _is_back(self, node: str) -> bool:
        """Whether SLURM speaks with the node; tells it to use the node again, where it is held back."""
        state = self.state(node)
        if state in ("down", "drained", "draining"):
            # Refused where the node has come back by itself meanwhile.
            self.login(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)
        return state in ("idle", "allocated", "mixed", "completing")


if __name__ == "__main__":
    if problem := obstacle():
        sys.exit(problem)
    with Cluster() as cluster:
        # Temporary files are seen by all nodes.
        words = ["env", f"TMPDIR={cluster.shared}", *sys.argv[1:]]
        sys.exit(cluster.start(words, stdin=sys.stdin).wait())
