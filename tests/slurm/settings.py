"""What SLURM's daemons read: slurm.conf and its companions. Must not know how the daemons are started."""

from __future__ import annotations

import getpass
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

PARTITION = "train"
NUM_GPUS = 2


@dataclass(frozen=True)
class Address:
    """Where a machine's daemon listens: its host name, address and port."""

    host: str
    address: str
    port: int


def write(folder: Path, head: Address, nodes: dict[str, Address], num_cpus: int, accounting_port: int | None) -> None:
    """Writes `etc/` of the cluster in `folder`; `accounting_port` is None where there is no slurmdbd."""
    etc = folder / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "slurm.conf").write_text(_slurm(folder, head, nodes, num_cpus, accounting_port))
    # slurmd probes cgroups even where no plugin uses them; naming v1 skips the probe, which fails in a namespace.
    (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    if _can_have_gpus():
        devices = [folder / f"gpu{number}" for number in range(NUM_GPUS)]
        for device in devices:
            device.unlink(missing_ok=True)
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # /dev/null under other names
        files = "".join(f"NodeName={node} Name=gpu File={device}\n" for node in nodes for device in devices)
        (etc / "gres.conf").write_text(files)
    if accounting_port is not None:
        database = etc / "slurmdbd.conf"
        database.write_text(_slurmdbd(folder, head, accounting_port))
        database.chmod(0o600)


def _can_have_gpus() -> bool:
    return os.geteuid() == 0


def _slurm(folder: Path, head: Address, nodes: dict[str, Address], num_cpus: int, accounting_port: int | None) -> str:
    gpus = f" Gres=gpu:{NUM_GPUS}" if _can_have_gpus() else ""
    user = getpass.getuser()
    lines = [
        "ClusterName=collectx",
        f"SlurmctldHost={head.host}({head.address})",
        f"SlurmctldPort={head.port}",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge.socket",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"StateSaveLocation={folder}/state",
        f"SlurmdPidFile={folder}/slurmd.%n.pid",
        f"SlurmdLogFile={folder}/log/slurmd.%n.log",
        f"SlurmdSpoolDir={folder}/spool/%n",
        # Nodes pretend to have more than the machine.
        "SlurmdParameters=config_overrides",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        # Start jobs as soon as they are submitted.
        "SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=5,bf_interval=5",
        "JobRequeue=1",
        # Lost nodes are noticed in seconds, and serve again as soon as they come back.
        "ReturnToService=2",
        "SlurmctldTimeout=30",
        "SlurmdTimeout=15",
        "MessageTimeout=5",
        "TCPTimeout=2",
        "KillWait=5",
        # A node that was cut off or hung must not end up drained ("Kill task failed").
        "UnkillableStepTimeout=300",
        "CompleteWait=0",
        "InactiveLimit=0",
        "BatchStartTimeout=10",
        # The controller remembers jobs for as long as the cluster lives; with accounting it soon forgets them.
        f"MinJobAge={86400 if accounting_port is None else 2}",
        # Numbers of jobs do not come again in a later cluster: what is found by number would be an old job's.
        f"FirstJobId={int(time.time()) % 60_000_000 + 1}",
        # Preempted jobs get their signal, then time, then are requeued.
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "SlurmctldParameters=preempt_send_user_signal",
    ]
    if accounting_port is None:
        lines += ["AccountingStorageType=accounting_storage/none"]
    else:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={head.address}",
            f"AccountingStoragePort={accounting_port}",
            # slurmctld finds the way to munge here, not in AuthInfo, when it speaks with slurmdbd.
            f"AccountingStoragePass={folder}/munge.socket",
        ]
    if gpus:
        lines += ["GresTypes=gpu"]
    for name, node in nodes.items():
        lines += [
            f"NodeName={name} NodeHostname={node.host} NodeAddr={node.address} Port={node.port} CPUs={num_cpus} "
            f"RealMemory=4000{gpus} State=UNKNOWN"
        ]
    # LLN: single jobs go to different nodes. Jobs of `urgent` push out those of `train`.
    lines += [
        f"PartitionName={PARTITION} Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10 LLN=YES PriorityTier=1 "
        "GraceTime=20 State=UP",
        "PartitionName=urgent Nodes=ALL MaxTime=INFINITE DefaultTime=10 LLN=YES PriorityTier=10 PreemptMode=OFF "
        "State=UP",
    ]
    return "\n".join(lines) + "\n"


def _slurmdbd(folder: Path, head: Address, port: int) -> str:
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge.socket",
        f"DbdHost={head.host}",
        f"DbdAddr={head.address}",
        f"DbdPort={port}",
        f"SlurmUser={getpass.getuser()}",
        f"LogFile={folder}/log/slurmdbd.log",
        f"PidFile={folder}/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=root",
        "StorageLoc=slurm",
    ]
    return "\n".join(lines) + "\n"
