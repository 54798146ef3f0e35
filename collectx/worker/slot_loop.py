"""The loop of every worker: loads the newest weights, fills granted slots, and reports how long each part took.

    acquire --Fill--> refresh --> fill --report--> send --> acquire ...

Runs in the worker's process, or in the trainer's for inline workers.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Protocol

from collectx import progress
from collectx.errors import text_of
from collectx.rollout.loop import RolloutStopped
from collectx.transport.base import Fill, Link, Request, SlotReport


class BatchSource(Protocol):
    """Fills slots: with rollouts, or with the batches of another collector."""

    def refresh(self) -> object:
        """Loads the newest weights."""

    def fill(self, grant: Fill) -> SlotReport:
        """Resets as the grant demands, then fills its slot. Sets all fields of the report except `wait_s` and `send_s`.
        Raises `RolloutStopped` if the trainer stops the worker; the slot is incomplete."""

    def reply(self, request: Request) -> None:
        """Replies to a request."""

    def close(self) -> None:
        """Releases envs and processes."""


PutBack = Callable[[Fill | Request, KeyboardInterrupt], None]


def run_worker_loop(
    link: Link, make_source: Callable[[], BatchSource], put_back: PutBack | None = None
) -> Generator[None]:
    """Fills granted slots; yields after each sent batch and each reply. Makes the source when it is first advanced, and
    closes it at the end. Reports an error to the trainer before it closes the source, because closing may hang or fail;
    then raises the error with the attribute `is_reported`. If only closing fails, that error is raised but not
    reported, because the trainer no longer listens. `put_back` is called with the grant or request when Ctrl-C
    interrupts an inline worker, so that the worker acquires it again. None: Ctrl-C ends the worker."""
    source: BatchSource | None = None
    try:
        with reported(link):
            try:
                source = make_source()
            except StopIteration as error:
                raise _renamed(error) from error
            yield from _fill_slots(link, source, put_back)
    except (RolloutStopped, GeneratorExit):
        if source is not None:
            source.close()
        raise
    except BaseException as error:
        try:
            if isinstance(error, Exception):
                yield  # an inline worker's trainer raises the error before the source is closed
        finally:
            if source is not None:
                _close_after(source, error)
        raise
    source.close()


def _fill_slots(link: Link, source: BatchSource, put_back: PutBack | None) -> Generator[None]:
    send_s = 0.0
    while True:
        idle_since_s = perf_counter()
        acquired = link.acquire()
        if acquired is None:
            return
        acquired_s = perf_counter()
        try:
            if isinstance(acquired, Request):
                source.reply(acquired)
                yield
                continue
            source.refresh()
            refreshed_s = perf_counter()
            report = source.fill(acquired)
        except StopIteration as error:
            raise _renamed(error) from error
        except RuntimeError as error:
            # Python replaces the error of an env, which a generator steps.
            if str(error) == "generator raised StopIteration" and isinstance(error.__cause__, StopIteration):
                raise _renamed(error.__cause__) from error.__cause__
            raise
        except KeyboardInterrupt as interruption:
            if put_back is None:
                raise
            put_back(acquired, interruption)
            yield
            continue
        filled_s = perf_counter()
        report.wait_s, report.send_s = acquired_s - idle_since_s, send_s + refreshed_s - acquired_s
        link.send(acquired.slot, report)
        send_s = perf_counter() - filled_s
        yield


def _renamed(error: StopIteration) -> RuntimeError:
    """Returns an error that says where `error` was raised, with its notes. A generator cannot raise a `StopIteration`:
    Python replaces it by an error that says nothing."""
    *_, call = traceback.extract_tb(error.__traceback__)
    renamed = RuntimeError(
        f"an env, the policy or a hook raised StopIteration in {call.filename}, line {call.lineno}, in `{call.line}`. "
        "It would end the worker's loop. Catch it there."
    )
    for note in getattr(error, "__notes__", ()):
        renamed.add_note(note)
    return renamed


def _close_after(source: BatchSource, error: BaseException) -> None:
    try:
        source.close()
    except Exception as another:
        error.add_note(f"closing the worker then failed too ({type(another).__name__}: {text_of(another)})")


def run_until_stopped(link: Link, make_source: Callable[[], BatchSource]) -> None:
    """Runs the loop until the trainer stops the worker; see `run_worker_loop`."""
    with suppress(RolloutStopped), progress.counting_imports():
        for _ in run_worker_loop(link, make_source):
            pass


@contextmanager
def reported(link: Link) -> Iterator[None]:
    """Reports an error of the block to the trainer, then raises it with the attribute `is_reported`. Does not report
    that the trainer stopped the worker."""
    try:
        yield
    except (RolloutStopped, GeneratorExit):
        raise
    except BaseException as error:
        link.fail(error)
        with suppress(AttributeError):
            error.is_reported = True  # type: ignore[attr-defined]
        raise
