"""The state of a collector, which `CollectorCore.state` returns and `CollectorCore.load` takes: tensors and plain data.

The entry in `workers` of a worker that is still starting is the state that it will load, if any. `incarnations` lacks
workers that were never ready. At a resume, a worker with an entry in `workers` continues in the same incarnation: its
envs continue their episodes or, if they cannot be saved, begin new ones with the next trajectory ids. A worker with an
entry in `incarnations` alone begins the next incarnation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch

from collectx.collector.worker_record import WorkerRecord
from collectx.transport.base import Arrival, Request, SlotReport
from collectx.worker.spec import ProcessHistory


class SavedRecords(TypedDict):
    """The part of the state that belongs to the workers.

    Attributes:
        incarnations: the workers' incarnations, by index; see `Placement`.
        workers: the results of `RequestHandler.state`, by worker.
        restart_counts: number of earlier processes of each worker, by index.
    """

    incarnations: dict[int, int]
    workers: dict[int, dict[str, Any]]
    restart_counts: dict[int, int]


class CollectorState(SavedRecords):
    """The state of a collector.

    Attributes:
        frames, batches, frames_by_worker: numbers of frames and batches delivered so far.
        version, weights: the version and the bytes of the newest weights that were published for all workers.
            `CollectorCore.load` needs neither.
        undelivered: the complete batches that were not delivered, see `save_batch`.
        settings: see `Settings.state`; `CollectorCore.load` keeps those of the collector without it.
        assembler: see `Assembler.state`; None without `collector.trajs_per_batch`.
    """

    frames: int
    batches: int
    frames_by_worker: dict[int, int]
    version: NotRequired[int]
    weights: NotRequired[torch.Tensor]
    undelivered: list[dict[str, Any]]
    settings: NotRequired[dict[str, Any]]
    assembler: dict[str, Any] | None


# The state of an `Assembler` without frames.
_NO_FRAMES: dict[str, Any] = {"unfinished": {}, "ended": [], "dropped": []}


def save_workers(records: Sequence[WorkerRecord], replies: Mapping[int, Any]) -> SavedRecords:
    """Returns these entries; `replies` are the answers to the request "state"."""
    kept = {worker.index: worker.saved for worker in records if worker.saved is not None}
    incarnations = {
        worker.index: worker.history.incarnation
        for worker in records
        if worker.history.incarnation or worker.index in kept or not worker.first_requests
    }
    workers = {index: saved for index, saved in replies.items() if saved is not None}
    restart_counts = {worker.index: worker.history.restart_count for worker in records}
    return {"incarnations": incarnations, "workers": workers | kept, "restart_counts": restart_counts}


def to_state_dict(saved: CollectorState, version_offset: int) -> dict[str, Any]:
    """Returns a state under the keys of a `state_dict`: `frames`, `iter` and `worker0`, `worker1`, ... are those of
    TorchRL. The numbers of policy versions in `saved` are `version_offset` lower than those that the user sees."""
    return {
        "frames": saved["frames"],
        "iter": saved["batches"],
        "frames_by_worker": saved["frames_by_worker"],
        "policy_version": saved["version"] + version_offset,
        "settings": saved["settings"],
        "stream": {
            "assembler": saved["assembler"],
            "undelivered": saved["undelivered"],
            "version_offset": version_offset,
        },
        **{f"worker{index}": entry for index, entry in saved["workers"].items()},
    }


def of_state_dict(state_dict: Mapping[str, Any]) -> tuple[CollectorState, int]:
    """Returns the state and `version_offset` that `to_state_dict` got, without incarnations and weights: running
    workers load it. A state that has `frames` but no workers, as a script may write it, has no envs and no undelivered
    frames. Raises `ValueError` for a state of an earlier version of collectx."""
    names = {name: re.fullmatch(r"worker(\d+)", name) for name in state_dict}
    workers = {int(match[1]): state_dict[name] for name, match in names.items() if match}
    if workers and "stream" not in state_dict:
        raise ValueError(
            "an earlier version of collectx saved this state. Load it with that version, or load only its "
            "'policy_state_dict' into the policy."
        )
    stream = state_dict.get("stream", {"assembler": _NO_FRAMES, "undelivered": [], "version_offset": 0})
    state: CollectorState = {
        "frames": state_dict["frames"],
        "batches": state_dict.get("iter", 0),
        "frames_by_worker": state_dict.get("frames_by_worker", {}),
        "undelivered": stream["undelivered"],
        "assembler": stream["assembler"],
        "incarnations": {},
        "restart_counts": {},
        "workers": workers,
    }
    if "settings" in state_dict:
        state["settings"] = state_dict["settings"]
    return state, stream["version_offset"]


def without_episodes(parts: Sequence[CollectorState], num_workers: int, num_learners: int) -> CollectorState:
    """Returns the state of a learner with `num_workers` workers, from those of the learners of a run that is continued
    with another number of learners. It has no envs and no undelivered frames; the workers begin incarnations that none
    has reached."""
    first, each_worker = parts[0], range(num_workers)
    incarnation = max((count for part in parts for count in part["incarnations"].values()), default=0)
    restart_count = max((count for part in parts for count in part["restart_counts"].values()), default=0)
    return {
        **first,
        "frames": sum(part["frames"] for part in parts) // num_learners,
        "frames_by_worker": {},
        "undelivered": [],
        "assembler": None,
        "incarnations": dict.fromkeys(each_worker, incarnation),
        "workers": {},
        "restart_counts": dict.fromkeys(each_worker, restart_count),
    }


def num_workers_in(state: CollectorState) -> int:
    """Returns the number of workers that were ever started, if each has delivered frames or was ready."""
    # The rollout of the inference server is empty.
    workers = {index for index, entry in state["workers"].items() if entry["rollout"]}
    return max(workers | {*state["frames_by_worker"]}, default=-1) + 1


def next_histories(state: CollectorState) -> dict[int, ProcessHistory]:
    """Returns the history of each worker's first process after `state`."""
    last = state["incarnations"]
    return {
        worker: ProcessHistory(
            incarnation=last[worker] + (worker not in state["workers"]) if worker in last else 0,
            restart_count=earlier + 1,
        )
        for worker, earlier in state["restart_counts"].items()
    }


def first_requests(state: CollectorState | None, worker: int) -> list[Request]:
    """Returns the first requests to a worker; see `WorkerPool`. `state` is the state to continue from, or None."""
    requests = [Request("ready")]
    if state is not None and worker in state["workers"]:
        requests.append(Request("load", (state["workers"][worker],)))
    return requests


def save_batch(parts: Iterable[Arrival], memory: torch.Tensor, settings: Sequence[int]) -> dict[str, Any]:
    """Returns a batch as plain data and tensors: its bytes, and the worker, report and settings version of each
    part."""
    saved = []
    for part in parts:
        report = {field.name: getattr(part.report, field.name) for field in fields(SlotReport)}
        # Copied, because the arrays may be views of one message, and torch.save refuses such views of different dtypes.
        tensors = {name: torch.from_numpy(data.copy()) for name, data in report.items() if isinstance(data, np.ndarray)}
        saved.append({"worker": part.worker, "report": report | tensors})
    return {"parts": saved, "memory": memory.cpu(), "settings": settings}


def load_batch(saved: Mapping[str, Any], slot: int) -> tuple[tuple[Arrival, ...], torch.Tensor]:
    """Returns the parts and the bytes of a result of `save_batch`; `slot` becomes the slot of the parts."""
    arrivals = []
    for part in saved["parts"]:
        arrays = {name: part["report"][name].numpy() for name in ("returns", "lengths", "metrics")}
        arrivals.append(Arrival(part["worker"], slot, SlotReport(**{**part["report"], **arrays, "settings_lag": 0})))
    return tuple(arrivals), saved["memory"]
