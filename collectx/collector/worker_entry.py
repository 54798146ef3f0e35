"""What a worker does that is not on the trainer's machine: finds the trainer, is told its task, and works.

The entry of worker processes of every launcher whose backend is torch.distributed. All that a worker is told comes over
the connection to the trainer, as plain data. Must not know who started it.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from typing import Any

from collectx.batch import Layout
from collectx.collector.nested import relay
from collectx.errors import RendezvousError
from collectx.transport.network.handshake import Endpoint
from collectx.transport.network.worker import NetworkLink, join_trainer
from collectx.user_objects import Given
from collectx.worker.loop import until_stopped
from collectx.worker.rollout_source import serve
from collectx.worker.spec import WorkerTask
from collectx.worker.user_collector import custom


def serve_remote(endpoint: Endpoint, worker: int, start_timeout_s: float, given: Given | None = None) -> None:
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
    message, config, connection, pair = join_trainer(endpoint, worker, hello, start_timeout_s, _see)
    task = WorkerTask.from_json(message, given or Given())
    if task.visible_device not in (None, "cpu") and task.policy_device != "cpu":
        # It is the first of those that this process sees.
        task = dataclasses.replace(task, policy_device="cuda:0")
    layout = Layout(task.leaves, config.rows, config.steps)
    link = NetworkLink(worker, connection, pair, layout, config)
    if task.custom is not None:
        until_stopped(custom(task, task.custom, link), link)
    elif task.inner is None:
        serve(task, link)
    else:
        until_stopped(relay(task, task.inner, link), link)


def _see(task: dict[str, Any]) -> None:
    """Lets this process see the GPU that its task names, and no other; before anything looks at GPUs."""
    device = task["visible_device"]
    if device is None:
        return
    name = "CUDA_VISIBLE_DEVICES"
    there = os.environ.get(name)
    kind, _, index = device.partition(":")
    if kind == "cpu":
        os.environ[name] = ""
    elif there is None:
        os.environ[name] = index
    elif int(index) < len(seen := there.split(",")):
        os.environ[name] = seen[int(index)]
    else:
        raise RendezvousError(f"visible_devices: this worker is to see {device}, and its host gives it {name}={there}")
