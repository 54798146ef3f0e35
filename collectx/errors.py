"""Every exception collectx raises for a reason of its own.

    CollectxError
    |-- ConfigError           the configuration is wrong; carries every problem found (exit status 2)
    |-- SpaceError            a Gymnasium space that cannot be stored as tensors
    |-- WorkerError           a worker is gone, or did not answer in time
    |   |-- WorkerDied        the process ended without a word (killed, out of memory, segfault)
    |   `-- WorkerTimeout     nothing arrived within the named timeout
    `-- ShapeError            an env or a policy returned what its spec does not allow

An exception raised by user code in a worker keeps its own type: the trainer raises the original exception with
the remote traceback attached as a note (`RemoteFailure`).
"""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass


class CollectxError(Exception):
    """Base of all errors raised on purpose by collectx."""


class ConfigError(CollectxError):
    """All problems of one configuration.

    Attributes:
        problems: one sentence or short paragraph each: what was given, the rule, what to do.
    """

    def __init__(self, problems: Sequence[str]):
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class SpaceError(CollectxError):
    """A space has no fixed shape and dtype. The message names the space and its key."""


class ShapeError(CollectxError):
    """An env or a policy returned a value whose shape or dtype differs from its spec."""


class WorkerError(CollectxError):
    """A worker cannot go on. The message names the worker, its pid and its log."""


class WorkerDied(WorkerError):
    """The worker's process ended without reporting an error."""


class WorkerTimeout(WorkerError):
    """A wait for a worker ran out. The message names the timeout's knob, its value and what was awaited."""


@dataclass(frozen=True)
class _Bare:
    """An exception's type and arguments, to be put together without its constructor."""

    kind: type[BaseException]
    args: tuple


@dataclass(frozen=True)
class RemoteFailure:
    """An exception as it travels from a worker to the trainer: always picklable.

    Attributes:
        pickled: the exception, or its type and arguments; None where neither survives pickling.
        type_name: qualified name of the exception's type.
        message: `str()` of the exception.
        traceback: the formatted remote traceback.
    """

    pickled: bytes | None
    type_name: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> RemoteFailure:
        """Packs `error`: whole, or its type and arguments, or as text only, whichever survives pickling first."""
        pickled = None
        # An exception with a constructor of its own, or with a lock in it, survives only without.
        for form in (error, _Bare(type(error), error.args)):
            try:
                pickled = pickle.dumps(form)
                pickle.loads(pickled)
                break
            except Exception:
                pickled = None
        kind = type(error)
        try:
            message = str(error)
        except Exception:
            message = "(its text cannot be made)"
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return cls(pickled, name, message, "".join(traceback.format_exception(error)))

    def rebuild(self, where: str) -> BaseException:
        """The original exception with a note that says where it was raised and shows the remote traceback.

        An exception that cannot be pickled, or that is none (a worker's `SystemExit` must not end the trainer), comes
        back as a `WorkerError` that names the original type.
        """
        error: object = None
        if self.pickled is not None:
            # What the worker could import, the trainer perhaps cannot.
            with contextlib.suppress(Exception):
                error = pickle.loads(self.pickled)
                if isinstance(error, _Bare):
                    error = error.kind.__new__(error.kind, *error.args)
        if not isinstance(error, Exception):
            error = WorkerError(f"{self.type_name}: {self.message}")
        error.add_note(f"raised in {where}\n{self.traceback}")
        return error
