"""How a worker fills the slots that it is granted, wherever its batches come from: takes the newest weights before
each, and tells the trainer where the time went.

    acquire --slot--> refresh --> fill --BatchStats--> send --> acquire ...

Runs in the worker's process, or in the trainer's for inline workers. Must not know where batches come from.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from collectx.errors import text_of
from collectx.rollout.loop import Stopped
from collectx.transport.base import REQUEST_PENDING, BatchReport, Link


@dataclass(frozen=True, slots=True, eq=False)
class BatchStats:
    """What a source says of the batch that it has put into a slot; the fields are those of
    `collectx.transport.base.BatchReport`."""

    policy_version: int
    env_s: float
    policy_s: float
    returns: np.ndarray
    lengths: np.ndarray
    steps: int | None = None


class BatchSource(Protocol):
    """What batches come from."""

    def refresh(self) -> None:
        """Takes the newest weights."""

    def fill(self, slot: int, order: int) -> BatchStats:
        """Does what `order` says, then fills the slot.

        Raises:
            Stopped: the trainer wants the worker to stop; the slot is incomplete.
        """

    def reply(self) -> None:
        """RequestHandler the link's question, where it is an `RequestLink`."""

    def close(self) -> None:
        """Releases what it holds."""


def run_worker_loop(link: Link, source: BatchSource) -> Generator[None]:
    """Fills granted slots; yields after each batch it has sent, and after each answer. At its end the source is closed.
    An error is reported before that, as closing may hang or fail as well."""
    try:
        yield from _fill(link, source)
    except (Stopped, GeneratorExit):
        source.close()
        raise
    except Exception as error:
        link.fail(error)
        try:
            yield  # an inline worker's trainer raises the error before the source is closed
        finally:
            _close_after(source, error)
        raise
    except BaseException as error:
        link.fail(error)
        _close_after(source, error)
        raise
    source.close()


def _fill(link: Link, source: BatchSource) -> Generator[None]:
    send_s = 0.0
    while True:
        asked = perf_counter()
        slot = link.acquire()
        if slot is None:
            return
        if slot == REQUEST_PENDING:
            source.reply()
            yield
            continue
        granted = perf_counter()
        source.refresh()
        refreshed = perf_counter()
        filled = source.fill(slot, link.reset)
        collected = perf_counter()
        report = BatchReport(
            filled.policy_version,
            filled.env_s,
            filled.policy_s,
            granted - asked,
            send_s + refreshed - granted,
            filled.returns,
            filled.lengths,
            filled.steps,
        )
        link.send(slot, report)
        send_s = perf_counter() - collected
        yield


def _close_after(source: BatchSource, error: BaseException) -> None:
    """Closes the source; what that raises is a note of `error`."""
    try:
        source.close()
    except Exception as another:
        error.add_note(f"closing failed afterwards: {type(another).__name__}: {text_of(another)}")


def run_until_stopped(filling: Iterator[None], link: Link) -> None:
    """Goes on with `filling` until the trainer says stop; an error is reported to it, then raised."""
    try:
        for _ in filling:
            pass
    except Stopped:
        pass
    except BaseException as error:
        link.fail(error)
        raise
