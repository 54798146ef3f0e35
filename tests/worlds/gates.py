"""Workers that start late: each waits for the file of its index before anything else. Imported by worker processes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collectx.launcher.base import Launcher


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
        """Until `monkeypatch` is undone."""
        prepare, folder = Launcher.prepare, self._folder

        def prepare_late(launcher: Launcher, entry: Callable, endpoint: Any = None) -> None:
            def late(worker: int) -> tuple[Callable, tuple]:
                return _run, (str(folder / f"gate-{worker}"), *entry(worker))

            prepare(launcher, late, endpoint)

        monkeypatch.setattr(Launcher, "prepare", prepare_late)


def _run(gate: str, function: Callable, arguments: tuple) -> None:
    while not Path(gate).exists():
        time.sleep(0.02)
    function(*arguments)
