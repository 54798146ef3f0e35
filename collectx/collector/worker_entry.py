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
from collectx.collector.nested import run_nested
from collectx.errors import RendezvousError
from collectx.transport.network.handshake import Endpoint
from collectx.transport.network.worker import NetworkLink, join_trainer
from collectx.user_objects import UserObjects
from collectx.worker.loop import run_until_stopped
from collectx.worker.rollout_source import run_worker
from collectx.worker.spec import WorkerSpec
from collectx.worker.user_collector import run_user_collector


def run_remote_worker(
    endpoint: Endpoint, worker: int, start_timeout_s: float, given: UserObjects | None = None
) -> None:
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
    task = WorkerSpec.from_json(message, given or UserObjects())
    if task.visible_device not in (None, "cpu") and task.policy_device != "cpu":
        # It is the first of those that this process sees.
        task = dataclasses.replace(task, policy_device="cuda:0")
    layout = Layout(task.leaves, config.rows, config.steps)
    link = NetworkLink(worker, connection, pair, layout, config)
    if task.user_collector is not None:
        run_until_stopped(run_user_collector(task, task.user_collector, link), link)
    elif task.nested is None:
        run_worker(task, link)
    else:
        run_until_stopped(run_nested(task, task.nested, link), link)


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
