"""`eval.every_batches`: evaluates the policy during a run, in a separate process beside the trainer.

    main thread --newest weights, if idle--> thread --pipe--> process: complete episodes, see evaluation.py
          ^                                    |                 |
          +-------- next line of metrics.jsonl +<----result------+

The process does not belong to the worker pool: pool and transports deliver batches, and end the run when they lose a
process. Here there are no batches, losing the process is only an event, and every transport works. The trainer waits
only while the weights are copied. While an evaluation runs, the next one is skipped.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from collectx.config.schema.run import RunConfig
from collectx.errors import summary_of
from collectx.place.local_launcher import LocalLauncher
from collectx.policy.flat_weights import FlatWeights
from collectx.run.after.evaluation import evaluate, with_video
from collectx.run.after.trained import build
from collectx.run.folder.layout import RunFolder
from collectx.run.statistics import Statistics
from collectx.transport.connections import LONGEST_WAIT_S
from collectx.transport.handles import Handle, end_processes

# How far the process yields to trainer and workers; see nice(2).
_NICENESS = 10
# Seconds that the idle process may take to end.
_END_S = 2.0


class Evaluator:
    """Evaluates the policy with the options `cfg.eval`. The trainer's main thread calls the methods; only `wait` and
    `close` block.

    Args:
        newest_weights: returns a copy of the last published weights, a flat tensor; see `FlatWeights`.
        events: the event log; receives every result, every skipped evaluation, and the first error, which ends the
            evaluations.
    """

    def __init__(
        self,
        cfg: RunConfig,
        run_folder: RunFolder,
        statistics: Statistics,
        newest_weights: Callable[[], torch.Tensor],
        events: Callable[..., None],
    ):
        self._cfg, self._statistics, self._events = cfg, statistics, events
        self._newest_weights = newest_weights
        # A resumed run was evaluated at this batch already.
        self._last_batches = statistics.batches
        self._is_idle, self._is_over = threading.Event(), False
        self._is_idle.set()
        self._requests: queue.SimpleQueue[tuple[dict[str, int], torch.Tensor] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._handle: Handle | None = None
        self._launcher = LocalLauncher(1, cfg.collector.start_timeout_s, log_dir=run_folder.logs)
        self._launcher.names[0] = "evaluator"
        self._videos = run_folder.videos
        self._thread = threading.Thread(target=self._run, name="collectx-evaluator", daemon=True)
        self._thread.start()

    def before_batch(self) -> None:
        """Starts an evaluation if one is due."""
        every, batches = self._cfg.eval.every_batches, self._statistics.batches
        if every is None or batches % every or batches == self._last_batches or self._is_over:
            return
        self._last_batches = batches
        if not self._is_idle.is_set():
            self._events("evaluation_skipped", batches=batches)
            return
        self._is_idle.clear()
        self._requests.put(({"batches": batches, "frames": self._statistics.frames}, self._newest_weights()))

    def result(self) -> dict[str, Any] | None:
        """Returns the next new result, an entry `eval` of `metrics.jsonl`; None if there is none. Does not block."""
        try:
            return self._results.get_nowait()
        except queue.Empty:
            return None

    def wait(self) -> None:
        """Waits for the current evaluation, at most `eval.close_timeout_s`."""
        timeout_s = self._cfg.eval.close_timeout_s
        if not self._is_idle.wait(min(timeout_s, LONGEST_WAIT_S)):
            self._fail(f"it did not end within {timeout_s:g} s (eval.close_timeout_s)")

    def close(self) -> None:
        """Ends the process, also while it evaluates. Idempotent."""
        self._is_over = True
        self._requests.put(None)
        if not self._is_idle.is_set() and self._handle is not None:
            self._handle.kill()
        self._thread.join(2 * _END_S)

    def _run(self) -> None:
        connection, end = multiprocessing.Pipe()
        with connection:
            try:
                with end:
                    videos = self._videos if self._cfg.eval.video else None
                    self._handle = self._launcher.start(0, (run_evaluations, (self._cfg, end, videos)))
                while not self._is_over and (job := self._requests.get()) is not None:
                    facts, weights = job
                    connection.send(facts["frames"])
                    connection.send_bytes(weights.numpy().data)
                    result = connection.recv()
                    if "error" in result:
                        raise RuntimeError(result["error"])
                    result = facts | result
                    self._results.put(result)
                    self._events("evaluated", **result)
                    self._is_idle.set()
            except (EOFError, OSError):
                self._fail("its process ended")
            except Exception as error:
                self._fail(str(error))
            finally:
                self._is_idle.set()
        if self._handle is not None:
            end_processes([self._handle], _END_S)

    def _fail(self, message: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._events("evaluation_failed", message=f"{message}: {self._launcher.describe(0, self._handle)}")


def run_evaluations(cfg: RunConfig, connection: Connection, videos: Path | None = None) -> None:
    """Evaluates the weights that it receives, after the number of frames that the run had then, until the connection
    closes. With `videos`, writes a video of each episode to its folder `frames-N`. Runs in the process of the
    evaluator."""
    os.nice(_NICENESS)
    try:
        policy, spec, _ = build(cfg)
        weights = FlatWeights(policy if isinstance(policy, nn.Module) else None)
        while True:
            frames = connection.recv()
            flat = torch.frombuffer(bytearray(connection.recv_bytes()) or bytearray(1), dtype=torch.uint8)
            weights.read(flat[: weights.nbytes])
            recording = cfg if videos is None else with_video(cfg, videos / f"frames-{frames}")
            result = evaluate(recording, policy, spec).as_json()
            connection.send({name: value for name, value in result.items() if name not in ("returns", "lengths")})
    except EOFError:
        return
    except Exception as error:
        connection.send({"error": summary_of(error)})
        raise
