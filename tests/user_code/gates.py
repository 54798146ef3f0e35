"""Workers that start late: each waits for the file of its index before anything else. Imported by worker processes."""

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from collectx.place.launcher import Entry
from collectx.place.local_launcher import LocalLauncher
from collectx.worker.inference.server import run_inference_server


class Gates:
    """Of the workers that this process starts while it is installed; `open` lets them go on. A process that is started
    for an index whose gate is open is not late."""

    def __init__(self, folder: Path):
        self._folder = folder

    def open(self, *workers: int) -> None:
        for worker in workers:
            (self._folder / f"gate-{worker}").touch()

    def close(self, *workers: int) -> None:
        for worker in workers:
            (self._folder / f"gate-{worker}").unlink()

    def install(self, monkeypatch: Any) -> None:
        """Makes the workers of this process wait until `monkeypatch` is undone; the inference server does not."""
        folder, start = self._folder, LocalLauncher.start

        def start_late(launcher: LocalLauncher, worker: int, entry: Entry, *more: Any) -> Any:
            if entry[0] is not run_inference_server:
                entry = _run, (str(folder / f"gate-{worker}"), *entry)
            return start(launcher, worker, entry, *more)

        monkeypatch.setattr(LocalLauncher, "start", start_late)


def _run(gate: str, function: Callable, arguments: tuple) -> None:
    _wait_for(Path(gate))
    function(*arguments)


def _wait_for(gate: Path) -> None:
    while not gate.exists():
        time.sleep(0.02)


def late_policy(folder: str) -> nn.Module:
    """A policy for counting envs; the process of a local worker waits for its gate in `folder` before it makes one."""
    name = multiprocessing.current_process().name
    if name.startswith("collectx-worker-"):
        _wait_for(Path(folder) / f"gate-{name.removeprefix('collectx-worker-')}")
    return TensorDictModule(_act, in_keys=["observation"], out_keys=["action"])


def _act(observation: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(observation), dtype=torch.int64)
