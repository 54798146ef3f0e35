"""A run with everything that a run can show and record: the live display in a terminal of its own, a line of
`metrics.jsonl` per batch, five scalars of a trainer, TensorBoard and CSV. `ours.py` takes the same batches from the
same collector and records nothing.
"""

import os
import pty
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from benchmarks import fresh, ours
from benchmarks.cases import CASES, env_config, policy_config, run_config

CASE, KINDS, TARGET = "cartpole_32", ("multi_sync", "multi_async"), 0.98
_SCALARS = dict.fromkeys(("actor_loss", "critic_loss", "entropy", "learning_rate", "grad_norm"), 0.123456789)


def ratios(kind: str, turns: int, seconds: float) -> list[float]:
    """The throughput of the instrumented run in times that of the collector alone, one ratio for each turn."""
    arguments: dict[str, Any] = {"case": CASE, "kind": kind, "cores": fresh.cores(), "stopped": True}
    with (
        fresh.Session("benchmarks.instrumented", **arguments) as run,
        fresh.Session("benchmarks.ours", **arguments) as bare,
    ):
        run.wait_until_ready()
        bare.wait_until_ready()
        return [_rate(run, seconds) / _rate(bare, seconds) for _ in range(turns)]


def _rate(session: fresh.Session, seconds: float) -> float:
    result = session.turn(seconds)
    return result["frames"] / result["seconds"]


class Trainer:
    """Measures turns on request, until standard input ends; logs five scalars with every batch."""

    def train(self, collection: Any) -> None:
        fresh.serve_turns(lambda **_: ours.turns(self._logged(collection)))

    @staticmethod
    def _logged(collection: Any) -> Any:
        for batch in collection:
            collection.log(**_SCALARS)
            yield batch


def _main() -> None:
    import torch

    from collectx.config.schema.run import CsvLoggerConfig, LoggerConfig, TensorBoardLoggerConfig
    from collectx.config.schema.trainer import CustomTrainerConfig
    from collectx.run.execution import execute

    torch.set_num_threads(1)
    case = CASES[(arguments := fresh.arguments())["case"]]
    kind = arguments["kind"]
    cfg = run_config(env_config(case), policy_config(case), kind, case.num_workers(kind), case.frames_per_batch(kind))
    cfg.trainer = CustomTrainerConfig(kind="custom", digest=False, target="benchmarks.instrumented:Trainer")
    cfg.logger = LoggerConfig(tensorboard=TensorBoardLoggerConfig(dir=None), csv=CsvLoggerConfig(file=None))
    with tempfile.TemporaryDirectory() as folder, open(_terminal(), "w") as sys.stdout:
        execute(cfg, Path(folder), [])


def _terminal() -> int:
    """A terminal of 120 columns whose output is read and dropped; its file descriptor."""
    reader, terminal = pty.openpty()
    os.environ |= {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}

    def drop() -> None:
        while os.read(reader, 65536):
            pass

    threading.Thread(target=drop, daemon=True).start()
    return terminal


if __name__ == "__main__":
    _main()
