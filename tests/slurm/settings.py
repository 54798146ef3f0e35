"""What SLURM's daemons read: slurm.conf and its companions. Must not know how the daemons are started."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path

PARTITION = "train"
# Jobs of this partition preempt those of the other: SIGTERM, `GRACE_S`, then the end.
URGENT = "urgent"
GRACE_S = 20
HEAD = "head"
_NUM_GPUS = 2

_SLURM = """\
ClusterName=collectx
SlurmctldHost={HEAD}({head})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/log/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmdSpoolDir={folder}/spool/%n
# Nodes pretend to have more than the machine.
SlurmdParameters=config_overrides
GresTypes=gpu
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# Start jobs as soon as they are submitted.
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,sched_interval=2,bf_interval=2
JobRequeue=1
# Lost nodes are noticed in seconds, and serve as soon as they come back.
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=15
MessageTimeout=5
TCPTimeout=2
KillWait=10
# A node that was cut off or hung must not end up drained ("Kill task failed").
UnkillableStepTimeout=300
CompleteWait=0
InactiveLimit=0
BatchStartTimeout=10
# The controller remembers jobs for as long as the cluster lives; with accounting it soon forgets them.
MinJobAge={memory_s}
# No number of a later cluster is that of an old job.
FirstJobId={first_job}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
{accounting}
# LLN: single jobs go to different nodes.
PartitionName=DEFAULT Nodes=ALL MaxTime=INFINITE DefaultTime=10 LLN=YES State=UP
PartitionName={PARTITION} Default=YES PriorityTier=1 GraceTime={GRACE_S}
PartitionName={URGENT} PriorityTier=10 PreemptMode=OFF
"""
# slurmctld connects to slurmdbd by the munge socket of AccountingStoragePass, not by that of AuthInfo.
_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={head}
AccountingStoragePass={folder}/munge.socket
"""
_SLURMDBD = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost={HEAD}
DbdAddr={head}
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""


def write(folder: Path, addresses: Mapping[str, str], num_cpus: int, accounting: bool) -> None:
    """Writes `etc/` of the cluster in `folder`.

    Args:
        addresses: of the head and of the nodes.
        num_cpus: of each node, pretended.
        accounting: with slurmdbd.
    """
    etc = folder / "etc"
    nodes = {name: address for name, address in addresses.items() if name != HEAD}
    devices = [folder / f"gpu{number}" for number in range(_NUM_GPUS)]
    values = {
        **{name: globals()[name] for name in ("HEAD", "PARTITION", "URGENT", "GRACE_S")},
        "folder": folder,
        "head": addresses[HEAD],
        "first_job": int(time.time()) % 60_000_000 + 1,
        "memory_s": 2 if accounting else 86400,
        "accounting": _ACCOUNTING.format(folder=folder, head=addresses[HEAD]) if accounting else "",
    }
    machine = f"CPUs={num_cpus} RealMemory=4000 Gres=gpu:{_NUM_GPUS} State=UNKNOWN"
    lines = [f"NodeName={node} NodeAddr={address} {machine}\n" for node, address in nodes.items()]
    (etc / "slurm.conf").write_text("".join(lines) + _SLURM.format(**values))
    # slurmd probes cgroups even where no plugin uses them; naming v1 skips the probe, which fails in a namespace.
    (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    files = [f"NodeName={node} Name=gpu File={device}\n" for node in nodes for device in devices]
    (etc / "gres.conf").write_text("".join(files))
    (etc / "slurmdbd.conf").touch(0o600)
    (etc / "slurmdbd.conf").write_text(_SLURMDBD.format(**values))
    for device in devices:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # /dev/null under other names
