"""`eval.every_batches`: evaluates the policy during a run, in a separate process beside the trainer.

    main thread ----newest weights---------> thread --pipe--> process: complete episodes, see evaluation.py
          ^                                    |                 |
          +-------- next line of metrics.jsonl +<----result------+

The process does not belong to the worker pool: pool and transports deliver batches, and end the run when they lose a
process. Here there are no batches, losing the process is only an event, and every transport works.

No evaluation is skipped, so curves do not depend on how busy the machine is: while one runs, the weights for the next
one wait, and the trainer waits if a third is due. Checkpoints contain the weights of evaluations without a result,
which a resumed run makes.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from collectx.config.schema.run import RunConfig
from collectx.errors import summary_of
from collectx.place.local_launcher import LocalLauncher
from collectx.policy.flat_weights import FlatWeights
from collectx.run.after.evaluation import evaluate
from collectx.run.after.trained import build
from collectx.run.folder.layout import RunFolder
from collectx.run.statistics import Statistics
from collectx.transport.connections import LONGEST_WAIT_S
from collectx.transport.handles import Handle, end_processes

# How far the process yields to trainer and workers; see nice(2).
_NICENESS = 10
# Seconds that the idle process may take to end.
_END_S = 2.0
# Evaluations that may be pending while the trainer goes on: one that runs, and one that waits.
_MAX_PENDING = 2
# A wait that is longer than this is shown.
_SILENT_S = 1.0


class Evaluator:
    """Evaluates the policy with the options `cfg.eval`. The trainer's main thread calls the methods; only `make_room`,
    `wait` and `close` block.

    Args:
        newest_weights: returns a copy of the last published weights, a flat tensor; see `FlatWeights`.
        events: the event log; receives every result, and the first error, which ends the evaluations.
        say: shows a message about a wait.
        pending: the `state` of the run that this one resumes; None if it had no evaluator.
    """

    def __init__(
        self,
        cfg: RunConfig,
        run_folder: RunFolder,
        statistics: Statistics,
        newest_weights: Callable[[], torch.Tensor],
        events: Callable[..., None],
        say: Callable[[str], None] = lambda text: None,
        pending: Sequence[dict[str, Any]] | None = None,
    ):
        self._cfg, self._statistics, self._events, self._say = cfg, statistics, events, say
        self._newest_weights = newest_weights
        # An evaluation was requested before the checkpoint of the same batch, so it is done or pending.
        self._last_batches = 0 if pending is None else statistics.batches
        self._is_over = False
        self._requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        # Requests whose results `result` has not returned yet; and how many have a result.
        self._unreported: list[dict[str, Any]] = []
        self._num_requested = self._num_done = 0
        self._done = threading.Event()
        self._handle: Handle | None = None
        self._launcher = LocalLauncher(1, cfg.collector.start_timeout_s, log_dir=run_folder.logs)
        self._launcher.names[0] = "evaluator"
        self._thread = threading.Thread(target=self._run, name="collectx-evaluator", daemon=True)
        self._thread.start()
        for request in pending or ():
            self._request(request)

    def request(self) -> None:
        """Requests an evaluation of the newest weights if one is due. Call this before a checkpoint is written."""
        every, batches = self._cfg.eval.every_batches, self._statistics.batches
        if every is None or batches % every or batches in (0, self._last_batches) or self._is_over:
            return
        self._last_batches = batches
        self._request({"batches": batches, "frames": self._statistics.frames, "weights": self._newest_weights()})

    def _request(self, request: dict[str, Any]) -> None:
        self._num_requested += 1
        self._unreported.append(request)
        self._requests.put(request)

    def make_room(self) -> None:
        """Waits while more than two evaluations are pending, at most `eval.timeout_s`."""
        self._wait(_MAX_PENDING, self._cfg.eval.timeout_s, "eval.timeout_s")

    def wait(self) -> None:
        """Waits for all evaluations, at most `eval.close_timeout_s`."""
        self._wait(0, self._cfg.eval.close_timeout_s, "eval.close_timeout_s")

    def _wait(self, most: int, timeout_s: float, option: str) -> None:
        """Waits until at most `most` evaluations are pending."""
        began_s, is_silent = time.monotonic(), True
        while not self._is_over and (num_pending := self._num_requested - self._num_done) > most:
            self._done.clear()
            if self._num_requested - self._num_done < num_pending:
                continue
            left_s = timeout_s - (time.monotonic() - began_s)
            if left_s <= 0:
                self._fail(f"it did not end within {timeout_s:g} s ({option})")
            elif not self._done.wait(min(left_s, _SILENT_S if is_silent else LONGEST_WAIT_S)) and is_silent:
                is_silent = False
                frames = self._unreported[-num_pending]["frames"]
                self._say(f"waiting for the evaluation after {frames:,} frames (up to {timeout_s:g} s, {option})")

    def state(self) -> list[dict[str, Any]]:
        """Returns the requests without a reported result, for a checkpoint: batches, frames, and weights."""
        return list(self._unreported)

    def result(self) -> dict[str, Any] | None:
        """Returns the next new result, an entry `eval` of `metrics.jsonl`; None without a new one. Does not block."""
        try:
            result = self._results.get_nowait()
        except queue.Empty:
            return None
        self._unreported.pop(0)
        return result

    def close(self) -> None:
        """Ends the process, also while it evaluates. Idempotent."""
        self._is_over = True
        self._requests.put(None)
        if self._num_done < self._num_requested and self._handle is not None:
            self._handle.kill()
        self._thread.join(2 * _END_S)

    def _run(self) -> None:
        connection, end = multiprocessing.Pipe()
        with connection:
            try:
                with end:
                    self._handle = self._launcher.start(0, (run_evaluations, (self._cfg, end)))
                while not self._is_over and (request := self._requests.get()) is not None:
                    connection.send_bytes(request["weights"].numpy().data)
                    result = connection.recv()
                    if "error" in result:
                        raise RuntimeError(result["error"])
                    result = {"batches": request["batches"], "frames": request["frames"]} | result
                    self._results.put(result)
                    self._events("evaluated", **result)
                    self._num_done += 1
                    self._done.set()
            except (EOFError, OSError):
                self._fail("its process ended")
            except Exception as error:
                self._fail(str(error))
            finally:
                self._done.set()
        if self._handle is not None:
            end_processes([self._handle], _END_S)

    def _fail(self, message: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._events("evaluation_failed", message=f"{message}: {self._launcher.describe(0, self._handle)}")


def run_evaluations(cfg: RunConfig, connection: Connection) -> None:
    """Evaluates the weights that it receives, until the connection closes. Runs in the process of the evaluator."""
    os.nice(_NICENESS)
    try:
        policy, spec, _ = build(cfg)
        weights = FlatWeights(policy if isinstance(policy, nn.Module) else None)
        while True:
            flat = torch.frombuffer(bytearray(connection.recv_bytes()) or bytearray(1), dtype=torch.uint8)
            weights.read(flat[: weights.nbytes])
            result = evaluate(cfg, policy, spec).as_json()
            connection.send({name: value for name, value in result.items() if name not in ("returns", "lengths")})
    except EOFError:
        return
    except Exception as error:
        connection.send({"error": summary_of(error)})
        raise
