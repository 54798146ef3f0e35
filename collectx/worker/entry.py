"""The entry point of every worker: connects to a trainer on another host, and chooses the source of its batches."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Generator
from typing import Any

from collectx import hydra_state, progress
from collectx.config.problem import adopt_names
from collectx.errors import RendezvousError
from collectx.fork_server.start import reuse_imports, warm_up
from collectx.transport.base import Link
from collectx.transport.inline import InlineLink
from collectx.transport.network.handshake import Endpoint
from collectx.transport.network.link import join_trainer
from collectx.transport.tracebacks import write_on_signal
from collectx.user_objects import Sealed, UserObjects
from collectx.worker.nested import NestedSource
from collectx.worker.rollout_source import RolloutSource
from collectx.worker.slot_loop import BatchSource, run_until_stopped, run_worker_loop
from collectx.worker.spec import ProcessSpec


def inline_worker(spec: ProcessSpec, link: InlineLink) -> Generator[None]:
    """Returns a worker in the trainer's process: a generator that fills a slot each time it is advanced."""
    return run_worker_loop(link, lambda: _make_source(spec, link, is_inline=True), link.put_back)


def run_worker(spec: Sealed[ProcessSpec], link: Link) -> None:
    """Runs a worker process on the trainer's machine. Returns when the trainer stops the worker. Reports an error to
    the trainer, then raises it."""
    link.report_progress()
    run_until_stopped(link, lambda: _make_source(spec.open(), link))


def _make_source(
    spec: ProcessSpec, link: Any, is_inline: bool = False, start_collector: Callable[..., Any] | None = None
) -> BatchSource:
    if not is_inline:
        adopt_names(spec.names)
    progress.one_more(progress.IMPORTS)  # this process has imported what the spec refers to
    if spec.user_collector is not None:
        from collectx.worker.user_collector import UserCollectorSource

        return UserCollectorSource(spec, spec.user_collector, link)
    if spec.cfg.collector.num_workers_per_collector > 1:
        assert start_collector is not None
        return NestedSource(spec, link, start_collector)
    return RolloutSource(spec, link, is_inline)


def run_remote_worker(
    endpoint: Endpoint,
    worker: int,
    start_timeout_s: float,
    user_objects: Sealed[UserObjects] | None,
    start_collector: Callable[..., Any] | None,
) -> None:
    """Runs a worker process that connects to the trainer over a network. Returns when the trainer stops the worker.

    Args:
        user_objects: the parts of its `ProcessSpec` that are not sent over the connection; None if there are none.
        start_collector: `collectx.collector.start_collector`, for a worker that is itself a collector; None for others.

    Raises:
        RendezvousError: the worker did not reach the trainer within `start_timeout_s` seconds, or was refused.
        Exception: the user's code raised this; the trainer knows it too.
    """
    info = {"host": socket.gethostname(), "pid": os.getpid()}
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        info["job"] = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    elif "SLURM_JOB_ID" in os.environ:
        info["job"] = os.environ["SLURM_JOB_ID"]

    def prepare(spec: dict[str, Any]) -> None:
        set_visible_device(spec["placement"]["visible_device"])
        hydra_state.adopt(spec["hydra"])
        if start_collector is not None:
            # Before the pair is made, because that may start a thread. A process with threads cannot fork the fork
            # server of this worker's processes, which would then import everything again.
            reuse_imports()
            warm_up()

    message, link = join_trainer(endpoint, worker, info, start_timeout_s, prepare)

    def make_source() -> BatchSource:
        spec = ProcessSpec.from_json(message, UserObjects() if user_objects is None else user_objects.open())
        if spec.placement.visible_device not in (None, "cpu") and spec.policy_device not in (None, "cpu"):
            # This process sees only the visible device, so its index is 0.
            devices = dataclasses.replace(spec.cfg.devices, policy_device="cuda:0")
            spec = dataclasses.replace(spec, cfg=dataclasses.replace(spec.cfg, devices=devices))
        return _make_source(spec, link, start_collector=start_collector)

    write_on_signal(link.connection)
    link.report_progress()
    run_until_stopped(link, make_source)


def set_visible_device(device: str | None) -> None:
    """Hides all GPUs except `device` from this process; None: hides none. Call this before any library looks for
    GPUs."""
    if device is None:
        return
    name = "CUDA_VISIBLE_DEVICES"
    present = os.environ.get(name)
    index = device.removeprefix("cuda:")
    if device == "cpu":
        os.environ[name] = ""
    elif present is None:
        os.environ[name] = index
    elif int(index) < len(devices := [each for each in present.split(",") if each]):
        os.environ[name] = devices[int(index)]
    else:
        raise RendezvousError(
            f"this worker should see {device} (visible_devices), but its host only provides {name}={present}. Request "
            "more GPUs, or change visible_devices."
        )
