"""`eval.every_batches`: evaluates the policy during a run, in a separate process beside the trainer.

    main thread --newest weights, if due--> thread --pipe--> process: complete episodes, see evaluation.py
          ^                                   |                 |
          +------- next line of metrics.jsonl +<----result------+

The process does not belong to the worker pool: pool and transports deliver batches, and end the run when they lose a
process. Here there are no batches, losing the process is only an event, and every transport works.

No evaluation is skipped, so that curves do not depend on the load of the machine. While one runs, the weights of the
next one wait. If another one becomes due meanwhile, the trainer waits. Checkpoints contain the weights whose results
are in no line of `metrics.jsonl` yet, and a resumed run evaluates them.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from collectx.config.schema.run import RunConfig
from collectx.errors import summary_of
from collectx.place.local_launcher import LocalLauncher
from collectx.policy.flat_weights import FlatWeights
from collectx.run.after.evaluation import STEPS, evaluate, in_envs, with_video
from collectx.run.after.trained import build
from collectx.run.context import RunContext
from collectx.transport.connections import LONGEST_WAIT_S
from collectx.transport.peer import Handle, end_processes

# How far the process yields to trainer and workers; see nice(2).
_NICENESS = 10
# Seconds that the idle process may take to end.
_END_S = 2.0
# How many evaluations may be open, the running one included, while the trainer goes on.
_MAX_OPEN = 2
# Only longer waits of the trainer are reported.
_PATIENCE_S = 0.5
# How often a waiting trainer looks for a signal.
_LOOK_S = 0.1


class Evaluator:
    """Evaluates the policy with the options `cfg.eval`. The trainer's main thread calls the methods; `before_batch`,
    `wait` and `close` block.

    Args:
        run: gets an event for every result, waits of the trainer, the evaluations that a stopped run left, and the
            first error, which ends the evaluations. A run that a signal has stopped waits for no evaluation.
        newest_weights: returns a copy of the last published weights, a flat tensor; see `FlatWeights`.

    Attributes:
        last_batches: the number of batches of the newest weights that were to be evaluated.
        on_result: called with each result, before `result` returns it.
    """

    def __init__(self, run: RunContext, newest_weights: Callable[[], torch.Tensor]):
        self._cfg, self._statistics, self._signals, self._events = run.cfg, run.statistics, run.signals, run.add_event
        self._at = run.at
        self._newest_weights = newest_weights
        # A checkpoint of this batch contains its evaluation, see `state`.
        self.last_batches = run.statistics.batches
        self.on_result: Callable[[dict[str, Any]], object] = lambda result: None
        self._is_over = self._has_said_wait = False
        # The requests whose results `result` has not returned; the main thread's.
        self._pending: list[dict[str, Any]] = []
        # The number of requests without a result. Its condition also tells that the evaluations are over.
        self._num_open, self._changed = 0, threading.Condition()
        self._requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._handle: Handle | None = None
        self._launcher = LocalLauncher(1, run.cfg.collector.start_timeout_s, log_dir=run.folder.logs)
        self._launcher.names[0] = "evaluator"
        self._videos = run.folder.videos
        self._thread = threading.Thread(target=self._run, name="collectx-evaluator", daemon=True)
        self._thread.start()

    def before_batch(self) -> None:
        """Requests an evaluation if one is due. Waits while too many are open."""
        every, batches = self._cfg.eval.every_batches, self._statistics.batches
        if every is None or batches % every or batches == self.last_batches or self._is_over:
            return
        self.last_batches = batches
        self._wait(_MAX_OPEN - 1)
        self._request({"batches": batches, "frames": self._statistics.frames, "weights": self._newest_weights()})

    def state(self) -> list[dict[str, Any]]:
        """Returns the requests whose results are in no line of `metrics.jsonl`, for `load`. Does not copy the
        weights."""
        return [*self._pending]

    def load(self, state: Sequence[dict[str, Any]]) -> None:
        """Repeats the requests that `state` returned."""
        for request in state:
            self._request(request)

    def result(self) -> dict[str, Any] | None:
        """Returns the next new result, an entry `eval` of `metrics.jsonl`; None if there is none. Does not block."""
        try:
            result = self._results.get_nowait()
        except queue.Empty:
            return None
        self.on_result(result)
        del self._pending[0]
        return result

    def wait(self) -> None:
        """Requests the evaluation of the last batch if it is due. Waits for all evaluations, at most
        `eval.close_timeout_s`, or until a signal comes."""
        self.before_batch()
        timeout_s = self._cfg.eval.close_timeout_s
        if not self._wait(0, timeout_s):
            self._fail(f"it did not end within {timeout_s:g} s (eval.close_timeout_s)")

    def close(self) -> None:
        """Ends the process, also while it evaluates. Idempotent."""
        if (num_open := self._num_open) and not self._is_over:
            left = self._pending[-num_open:]
            self._events("evaluations_left", **{name: [each[name] for each in left] for name in ("batches", "frames")})
        self._is_over = True
        self._requests.put(None)
        if self._num_open and self._handle is not None:
            self._handle.kill()
        self._thread.join(2 * _END_S)

    def _request(self, request: dict[str, Any]) -> None:
        self._pending.append(request)
        with self._changed:
            self._num_open += 1
        self._requests.put(request)

    def _wait(self, num_open: int, timeout_s: float = LONGEST_WAIT_S) -> bool:
        """Waits until at most `num_open` evaluations are open, or they are over, or a signal comes; returns False after
        `timeout_s`."""
        began_s, has_said = time.monotonic(), num_open > 0 and self._has_said_wait
        # Another thread counts them down.
        with self._at("waiting for evaluations"):
            while (open_now := self._num_open) > num_open and not self._is_over and not self._signals.last:
                waited_s = time.monotonic() - began_s
                if waited_s >= timeout_s:
                    return False
                if waited_s >= _PATIENCE_S and not has_said:
                    has_said = self._has_said_wait = True
                    frames, is_end = [each["frames"] for each in self._pending[-open_now:]], num_open == 0
                    self._events("evaluation_awaited", frames=frames, timeout_s=timeout_s if is_end else None)
                with self._changed:
                    self._changed.wait(min(_LOOK_S, timeout_s))
                self._statistics.evaluation_s += time.monotonic() - began_s - waited_s
        return True

    def _run(self) -> None:
        connection, end = multiprocessing.Pipe()
        with connection:
            try:
                with end:
                    videos = self._videos if self._cfg.eval.video else None
                    self._handle = self._launcher.start(0, (run_evaluations, (self._cfg, end, videos)))
                while not self._is_over and (request := self._requests.get()) is not None:
                    connection.send(request["frames"])
                    connection.send_bytes(request["weights"].numpy().data)
                    result = self._receive(connection)
                    if "error" in result:
                        raise RuntimeError(result["error"])
                    result = {"batches": request["batches"], "frames": request["frames"]} | result
                    self._events("evaluated", **result)
                    self._results.put(result)
                    with self._changed:
                        self._num_open -= 1
                        self._changed.notify()
            except (EOFError, OSError):
                self._fail("its process ended")
            except Exception as error:
                self._fail(str(error))
        if self._handle is not None:
            end_processes([self._handle], _END_S)

    def _receive(self, connection: Connection) -> dict[str, Any]:
        """Returns the next message of the process that is no sign of progress."""
        # The process reports its progress after so many steps, and one may take as long as a step of a worker.
        timeout_s = STEPS * self._cfg.collector.worker_timeout_s
        while connection.poll(min(timeout_s, LONGEST_WAIT_S)):
            if result := connection.recv():
                return result
        raise RuntimeError(f"it made no progress for {timeout_s:g} s ({STEPS} x collector.worker_timeout_s)")

    def _fail(self, message: str) -> None:
        if not self._is_over:
            self._is_over = True
            with self._changed:
                self._changed.notify()
            self._events("evaluation_failed", message=f"{message}: {self._launcher.describe(0, self._handle)}")


def run_evaluations(cfg: RunConfig, connection: Connection, videos: Path | None = None) -> None:
    """Evaluates the weights that it receives, after the number of frames that the run had then, until the connection
    closes. With `videos`, writes a video of each episode to its folder `frames-N`. Runs in the process of the
    evaluator."""
    os.nice(_NICENESS)
    try:
        policy, spec, _ = build(cfg)
        cfg, spec = in_envs(cfg, spec)
        weights = FlatWeights(policy if isinstance(policy, nn.Module) else None)
        while True:
            frames = connection.recv()
            flat = torch.frombuffer(bytearray(connection.recv_bytes()) or bytearray(1), dtype=torch.uint8)
            weights.read(flat[: weights.nbytes])
            recording = cfg if videos is None else with_video(cfg, videos / f"frames-{frames}")
            result = evaluate(recording, policy, spec, lambda text: connection.send({})).as_json()
            connection.send({name: value for name, value in result.items() if name not in ("returns", "lengths")})
    except EOFError:
        return
    except Exception as error:
        connection.send({"error": summary_of(error)})
        raise
