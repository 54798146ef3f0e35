"""Passes the lines of `metrics.jsonl` to the loggers of a run, one thread for each logger. A logger that fails or hangs
does not end or delay the run.
"""

from __future__ import annotations

import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from collectx import loggers
from collectx.config.interpolation import as_written
from collectx.config.schema.run import RunConfig
from collectx.errors import summary_of
from collectx.loggers import MEAN_RETURN, Logger
from collectx.run.folder.files import write_atomically
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.saved_config import flat
from collectx.transport.connections import LONGEST_WAIT_S
from collectx.user_objects import call, resolve

# The number of lines that may wait for a logger: some seconds of a fast run.
_MAX_LINES = 10_000
# Seconds that a thread rests before the next lines: in a fast run, waking up for each line would cost the trainer more
# time than the lines do.
_PAUSE_S = 0.5
# The project in wandb and the experiment in MLflow, if nothing names one.
_PROJECT = "collectx"
# Under which name each key of a line is logged.
_NAMES = {
    "mean_return": MEAN_RETURN,
    "return": "episode/return",
    "length": "episode/length",
    "num_episodes": "episode/count",
    "frames_per_s": "collector/frames_per_s",
    "waited_s": "collector/wait_s",
    "lag": "collector/policy_lag",
    "version": "collector/policy_version",
}


class LoggerThreads:
    """The loggers of a run.

    Args:
        make: the factories of the loggers, by name; each is called in the logger's own thread.
        events: the event log; receives the first error of each logger, which stops it, and a notice if a logger is too
            slow and skips lines.
    """

    def __init__(
        self, make: Mapping[str, Callable[[], Logger]], events: Callable[..., None], close_timeout_s: float = 30.0
    ):
        self._threads = [_LoggerThread(name, each, events) for name, each in make.items()]
        self._events = events
        self._close_timeout_s = close_timeout_s

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Passes a line of `metrics.jsonl` on; does not block."""
        if self._threads:
            scalars = {name: line[key] for key, name in _NAMES.items() if line.get(key) is not None}
            scalars |= {f"train/{name}": value for name, value in line.get("scalars", {}).items()}
            results = line.get("eval", {})
            results = results.get("metrics", {}) | results
            scalars |= {f"eval/{name}": value for name, value in results.items() if isinstance(value, (int, float))}
            for thread in self._threads:
                thread.put(scalars, line["frames"])

    def close(self, status: str = "completed") -> None:
        """Tells the loggers the status of the run, and blocks until they have written everything, at most
        `close_timeout_s`. Idempotent."""
        for thread in self._threads:
            thread.end(status)
        deadline_s = time.monotonic() + min(self._close_timeout_s, LONGEST_WAIT_S)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                limit = f"{self._close_timeout_s:g} s (logger.close_timeout_s)"
                self._events("logger_failed", logger=thread.logger, message=f"it did not end within {limit}")
        self._threads = []


class _LoggerThread(threading.Thread):
    def __init__(self, logger: str, make: Callable[[], Logger], events: Callable[..., None]):
        super().__init__(name=f"collectx-logger-{logger}", daemon=True)
        self.logger = logger
        self._make = make
        self._events = events
        self._lines: queue.SimpleQueue[tuple[dict[str, float], int] | None] = queue.SimpleQueue()
        self._is_ending = threading.Event()
        self._num_skipped = 0
        # A logger that fails has not written the complete run.
        self._status = "failed"
        self.start()

    def put(self, scalars: dict[str, float], step: int) -> None:
        if self._lines.qsize() < _MAX_LINES:
            self._lines.put((scalars, step))
        elif self.is_alive():
            self._num_skipped += 1
            if self._num_skipped == 1:
                self._events("logger_slow", logger=self.logger, frames=step, waiting=_MAX_LINES)

    def end(self, status: str) -> None:
        """Ends the thread after the waiting lines, as those of a run with this status."""
        self._status = status
        self._lines.put(None)
        self._is_ending.set()

    def run(self) -> None:
        try:
            logger = self._make()
            try:
                while (line := self._lines.get()) is not None:
                    logger.log(*line)
                    if self._lines.empty():
                        self._is_ending.wait(_PAUSE_S)
            finally:
                if hasattr(logger, "status"):
                    logger.status = self._status
                logger.close()
        except BaseException as error:
            self._events("logger_failed", logger=self.logger, message=summary_of(error))


def factories(
    cfg: RunConfig, run_folder: RunFolder, frames: int | None, events: Callable[..., None] = lambda name, **fields: None
) -> dict[str, Callable[[], Logger]]:
    """Returns the factory of each logger of a run, by name. What an option does not say, the environment variables of
    wandb and MLflow do.

    Args:
        frames: the number of frames up to the checkpoint from which the run continues; None for a new run.
        events: the event log; receives the notes of the loggers.
    """
    options = cfg.logger
    config = flat(as_written(cfg, is_escaped=False))
    make: dict[str, Callable[[], Logger]] = {}
    if (tensorboard := options.tensorboard) is not None:
        make["tensorboard"] = partial(
            loggers.TensorBoardLogger, tensorboard.dir or run_folder.tensorboard, config=config, step=frames
        )
    if (table := options.csv) is not None:
        make["csv"] = partial(loggers.CsvLogger, table.file or run_folder.progress, step=frames)
    if (wandb := options.wandb) is not None:
        # wandb reads the variables of options that are None.
        named = vars(wandb) | {
            "project": wandb.project or (None if os.environ.get("WANDB_PROJECT") else _PROJECT),
            "name": wandb.name or (None if os.environ.get("WANDB_NAME") else run_folder.path.name),
        }
        make["wandb"] = partial(
            loggers.WandbLogger, run_folder.path, config=config, run_id=_run_id(run_folder), **named
        )
    if (mlflow := options.mlflow) is not None:
        say = partial(events, "logger_note", logger="mlflow")
        named = vars(mlflow) | {
            "experiment": mlflow.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or _PROJECT,
            "name": mlflow.name or os.environ.get("MLFLOW_RUN_NAME") or run_folder.path.name,
            "say": lambda text: say(message=text),
        }
        make["mlflow"] = partial(loggers.MlflowLogger, config=config, run_id=_run_id(run_folder), **named)
    if (custom := options.custom) is not None:
        target = resolve(custom.target, "logger.custom.target")
        make["custom"] = partial(call, target, custom.kwargs, "logger.custom.kwargs")
    return make


def _run_id(run_folder: RunFolder) -> str:
    """Returns the run's id in wandb and MLflow, which a resume keeps."""
    if not run_folder.logger_id.exists():
        run_id = secrets.token_hex(8)
        write_atomically(run_folder.logger_id, lambda file: file.write(run_id.encode()))
    return run_folder.logger_id.read_text()
