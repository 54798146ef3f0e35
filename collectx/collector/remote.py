"""What a worker does that is not on the trainer's machine: finds the trainer, is told its task, and works.

The entry of worker processes of every launcher whose backend is torch.distributed. All that a worker is told comes over
the connection to the trainer, as plain data. Must not know who started it.
"""

from __future__ import annotations

import os
import socket

from collectx.batch import Layout
from collectx.collector.custom import custom
from collectx.collector.filling import until_stopped
from collectx.collector.relay import relay
from collectx.collector.task import WorkerTask
from collectx.collector.worker import serve
from collectx.given import Given
from collectx.transport.distributed_link import DistributedLink, Terms, join_trainer
from collectx.transport.rendezvous import Meeting


def serve_remote(meeting: Meeting, worker: int, start_timeout_s: float, given: Given | None = None) -> None:
    """Works as the worker of an index until the trainer says stop.

    Args:
        given: what cannot be told over a connection, from whoever started this process.

    Raises:
        RendezvousError: the trainer was not found within `start_timeout_s` (`collector.start_timeout_s`), or does not
            want this worker.
        Exception: what user code raised; the trainer was told.
    """
    hello = {"host": socket.gethostname(), "pid": os.getpid()}
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        hello["job"] = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    elif "SLURM_JOB_ID" in os.environ:
        hello["job"] = os.environ["SLURM_JOB_ID"]
    told, connection, pair = join_trainer(meeting, worker, hello, start_timeout_s)
    task, terms = WorkerTask.from_json(told["task"], given or Given()), Terms(**told["terms"])
    layout = Layout(task.leaves, terms.rows, terms.steps)
    link = DistributedLink(worker, connection, pair, layout, terms)
    if task.custom is not None:
        until_stopped(custom(task, task.custom, link), link)
    elif task.inner is None:
        serve(task, link)
    else:
        until_stopped(relay(task, task.inner, link), link)
