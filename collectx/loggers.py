"""Loggers: they send the scalars of a run to well-known tools. A tool's package is imported when its logger is made.

A run uses the loggers of its `logger` section, see `collectx.run.logger_threads`; other code may use them too:

    logger = TensorBoardLogger("runs/first")
    logger.log({"train/loss": 0.5}, step=1000)
    logger.close()
"""

from __future__ import annotations

import csv
import os
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

MEAN_RETURN = "episode/mean_return"
"""The scalar that ranks runs."""


# The characters that MLflow refuses in a name, its maximum length, and its words for the states of a run.
_MLFLOW_NAME = re.compile(r"[^\w\-. :/]")
_MLFLOW_LENGTH = 250
_MLFLOW_STATUS = {"completed": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class Logger(Protocol):
    """The methods of every logger. They are called from one thread, which need not be the main one, and may block. If a
    logger has an attribute `status`, a run sets it before `close`: "completed", "failed" or "interrupted"."""

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        """Adds scalars by name. `step` is the number of delivered frames; it rises from call to call."""

    def close(self) -> None:
        """Writes what is buffered. No calls follow."""


class TensorBoardLogger:
    """Writes TensorBoard event files. Needs the package `tensorboard`.

    Args:
        folder: the folder for the event files.
        config: hyperparameters by name; shown as text, and in the HPARAMS tab once the logger is closed.
        step: the last step before a resume: later steps in the folder are hidden. None for a new run.
    """

    def __init__(
        self, folder: str | os.PathLike[str], config: Mapping[str, Any] | None = None, step: int | None = None
    ):
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        self._summary, self._hparams = Summary, hparams
        purge_step = None if step is None else step + 1
        # With a short queue, each event would wait for the writer's thread.
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge_step, max_queue=1000)
        simple = (bool, int, float, str)  # what TensorBoard accepts
        self._config = {name: each if isinstance(each, simple) else str(each) for name, each in (config or {}).items()}
        self._last: float | None = None
        if self._config and step is None:
            rows = "\n".join(f"| {name} | {value} |" for name, value in self._config.items())
            self._writer.add_text("config", f"| option | value |\n|---|---|\n{rows}")

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        # One event for all scalars: `add_scalar` writes an event for each scalar, which takes three times as long.
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._writer.file_writer.add_summary(self._summary(value=values), step)
        if MEAN_RETURN in scalars:
            self._last = scalars[MEAN_RETURN]

    def close(self) -> None:
        if self._config and self._last is not None:
            # `add_hparams` would write the scalar again.
            for summary in self._hparams(self._config, {MEAN_RETURN: self._last}):
                self._writer.file_writer.add_summary(summary)
        self._writer.close()


class CsvLogger:
    """Writes a CSV table: a row for each step, a column for each scalar. A new scalar adds a column, for which the file
    is rewritten.

    Args:
        file: the table's path.
        step: the last step before a resume: later rows are removed. None: the file is replaced.
    """

    def __init__(self, file: str | os.PathLike[str], step: int | None = None):
        self._path = Path(file)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        rows = [row for row in self._rows() if int(row["step"]) <= step] if step is not None else []
        self._write(["step", *dict.fromkeys(name for row in rows for name in row if name != "step")], rows)

    def _rows(self) -> list[dict[str, str]]:
        with suppress(FileNotFoundError), open(self._path, newline="") as file:
            # A killed process, or a full disk, may have left a part of the last line.
            return list(csv.DictReader(line for line in file if line.endswith("\n")))
        return []

    def _write(self, names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        temporary = self._path.with_name(f".{self._path.name}")
        with open(temporary, "w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(self._path)
        self._file = open(self._path, "a", newline="", buffering=1)  # noqa: SIM115, closed by close()
        self._writer = csv.DictWriter(self._file, names)

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        names = self._writer.fieldnames
        if new := [name for name in scalars if name not in names]:
            self._file.close()
            self._write([*names, *new], self._rows())
        self._writer.writerow({"step": step, **scalars})

    def close(self) -> None:
        self._file.close()


class WandbLogger:
    """Writes to Weights & Biases. Needs the package `wandb`. Its charts show scalars over `frames`.

    Args:
        folder: where wandb writes its files.
        config: hyperparameters by name.
        run_id: the id of the run to continue, or of the new run if there is none.
        options: further arguments of `wandb.init`, such as `project` and `mode`. wandb reads those that are None from
            its environment variables, such as WANDB_PROJECT, WANDB_NAME, WANDB_TAGS and WANDB_RUN_GROUP.
    """

    status = "completed"

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        config: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        **options: Any,
    ):
        import wandb

        settings = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(
            dir=folder, config=dict(config or {}), id=run_id, resume="allow", settings=settings, **options
        )
        self._run.define_metric("frames")
        self._run.define_metric("*", step_metric="frames")
        self._logged = int(self._run.summary.get("frames", -1))

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        if step > self._logged:
            self._run.log({"frames": step, **scalars})

    def close(self) -> None:
        self._run.finish(exit_code=int(self.status != "completed"))


class MlflowLogger:
    """Writes to MLflow. Needs the package `mlflow` or `mlflow-skinny`.

    Args:
        experiment: the experiment's name; created if it does not exist. None: "Default".
        name: the run's name.
        tracking_uri: the server, database or folder; None: MLFLOW_TRACKING_URI, or MLflow's default.
        config: hyperparameters by name.
        run_id: continues the MLflow run whose tag `collectx` has this value. If there is none, starts one with it.
        say: called with a text for each name that MLflow does not take, and that is logged under another one.
    """

    status = "completed"

    def __init__(
        self,
        experiment: str | None = None,
        name: str | None = None,
        tracking_uri: str | None = None,
        config: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        say: Callable[[str], object] = warnings.warn,
    ):
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        self._client = client = MlflowClient(tracking_uri)
        experiment = experiment or "Default"
        existing = client.get_experiment_by_name(experiment)
        experiment_id = client.create_experiment(experiment) if existing is None else existing.experiment_id
        runs = client.search_runs([experiment_id], f"tags.collectx = '{run_id}'") if run_id is not None else []
        self._logged = -1
        self._say = say
        # The name in MLflow of each name.
        self._names: dict[str, str] = {}
        if runs:
            self._id = runs[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            history = client.get_metric_history(self._id, "collector/policy_version")
            self._logged = max((each.step for each in history), default=-1)
        else:
            tags = {} if run_id is None else {"collectx": run_id}
            self._id = client.create_run(experiment_id, tags=tags, run_name=name).info.run_id
            params = [Param(self._name(name), str(value)[:500]) for name, value in (config or {}).items()]
            try:
                for begin in range(0, len(params), 100):  # the maximum per request
                    client.log_batch(self._id, params=params[begin : begin + 100])
            except BaseException:
                client.set_terminated(self._id, "FAILED")
                raise

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        if step > self._logged:
            now_ms = int(time.time() * 1000)
            metrics = [self._metric(self._name(name), value, now_ms, step) for name, value in scalars.items()]
            self._client.log_batch(self._id, metrics=metrics)

    def _name(self, name: str) -> str:
        """Returns the name under which MLflow takes a scalar or a hyperparameter: it refuses some characters, long
        names, and those that are no normal path."""
        if name not in self._names:
            taken = _MLFLOW_NAME.sub("_", name)
            taken = "/".join(part for part in taken.split("/") if part.strip(".")) or "_"
            taken = taken[:_MLFLOW_LENGTH]
            while taken in self._names.values():
                taken = f"{taken[: _MLFLOW_LENGTH - 9]}-{crc32(taken.encode()):08x}"
            self._names[name] = taken
            if taken != name:
                self._say(f"MLflow does not take the name {name!r:.120}, so it is logged as {taken!r:.120}.")
        return self._names[name]

    def close(self) -> None:
        self._client.set_terminated(self._id, _MLFLOW_STATUS[self.status])
