"""Every exception collectx raises for a reason of its own.

    CollectxError
    |-- ConfigError           the configuration is wrong; carries every problem found (exit status 2); a ValueError
    |   `-- DamagedFile       a file of a run folder cannot be read
    |-- SpaceError            a Gymnasium space that cannot be stored as tensors
    |-- RendezvousError       trainer and worker did not find each other, or did not know each other
    |-- LauncherError         a scheduler refused or ended a job, or does not answer
    |-- WorkerError           a worker is gone, or did not answer in time
    |   |-- WorkerDied        the process ended without a word (killed, out of memory, segfault)
    |   `-- WorkerTimeout     nothing arrived within the named timeout
    `-- ShapeError            an env or a policy returned what its spec does not allow; a ValueError

An exception raised by user code in a worker keeps its own type: the trainer raises the original exception with
the remote traceback attached as a note (`RemoteFailure`).
"""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# How many characters of an exception's text, and of its traceback, are kept; and how many bytes of it are pickled.
_MOST_TEXT, _MOST_TRACEBACK, _MOST_BYTES = 10_000, 50_000, 2**20


def text_of(error: BaseException) -> str:
    """`str(error)` as it can be kept and written anywhere: without its middle where it is long, surrogates escaped.
    Never raises, also where `error.__str__` does."""
    try:
        return _fit(str(error), _MOST_TEXT)
    except Exception as refusal:
        return f"(its text cannot be made: {type(refusal).__name__})"


def traceback_of(error: BaseException) -> str:
    """The formatted traceback of `error`, likewise."""
    return _fit("".join(traceback.format_exception(error)), _MOST_TRACEBACK)


def _fit(text: str, most: int) -> str:
    if len(text) > most:
        text = f"{text[: most // 2]} ... ({len(text) - most} characters left out) ... {text[-(most // 2) :]}"
    return text.encode(errors="backslashreplace").decode()


class CollectxError(Exception):
    """Base of all errors raised on purpose by collectx."""


class ConfigError(CollectxError, ValueError):
    """All problems of one configuration. A `ValueError`, as wrong arguments are one in TorchRL and PyTorch.

    Attributes:
        problems: one sentence or short paragraph each: what was given, the rule, what to do.
    """

    def __init__(self, problems: Sequence[str]):
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class DamagedFile(ConfigError):
    """A file of a run folder is not what collectx writes. The message names the file, and the line."""


class SpaceError(CollectxError):
    """A space has no fixed shape and dtype. The message names the space and its key."""


class ShapeError(CollectxError, ValueError):
    """An env or a policy returned a value whose shape or dtype differs from its spec, that its dtype cannot hold, or
    that is not finite. A `ValueError`."""


class RendezvousError(CollectxError):
    """Trainer and worker did not come together. The message says where each was looked for and what answered."""


class LauncherError(CollectxError):
    """A scheduler refused or ended a job, or does not answer. The message has the scheduler's own words."""


class WorkerError(CollectxError):
    """A worker cannot go on. The message names the worker, its pid and its log."""


class WorkerDied(WorkerError):
    """The worker's process ended without reporting an error."""


class WorkerTimeout(WorkerError):
    """A wait for a worker ran out. The message names the timeout's knob, its value and what was awaited."""


@dataclass(frozen=True)
class _Bare:
    """An exception's type, arguments and attributes, to be put together without its constructor."""

    kind: type[BaseException]
    args: tuple
    attributes: dict[str, Any] = field(default_factory=dict)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= _MOST_TEXT)


def _arguments(error: BaseException) -> tuple:
    # Of an `OSError`, the file's name is not among its `args`.
    reduced = error.__reduce__() if type(error).__reduce__ is OSError.__reduce__ else ()
    return reduced[1] if isinstance(reduced, tuple) and reduced else error.args


def _found(name: str) -> object:
    """What is called so, as in "module.Outer.Inner", in a module that is imported already."""
    parts = name.split(".")
    for end in range(len(parts) - 1, -1, -1):
        found: object = sys.modules.get(".".join(parts[:end]) or "builtins")
        if found is not None:
            for part in parts[end:]:
                found = getattr(found, part, None)
            return found
    return None


def _pickled(error: object) -> bytes | None:
    """By name where that can be; by value what this process has by value itself, such as a class of the trainer's main
    module, which the trainer then knows again. None where what was pickled cannot be read, or is very long."""
    with contextlib.suppress(Exception):
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
        return pickled if len(pickled) <= _MOST_BYTES else None
    with contextlib.suppress(Exception):
        import cloudpickle

        pickled = cloudpickle.dumps(error)
        pickle.loads(pickled)
        return pickled if len(pickled) <= _MOST_BYTES else None
    return None


@dataclass(frozen=True)
class RemoteFailure:
    """An exception as it travels from a worker to the trainer: always picklable.

    Attributes:
        pickled: the exception, or its type, arguments and attributes; None where neither survives pickling.
        type_name: qualified name of the exception's type.
        message: its text (`text_of`).
        traceback: the formatted remote traceback (`traceback_of`).
        arguments: the exception's arguments where they are plain data, otherwise its message alone.
        attributes: those of the exception's attributes that are plain data.
    """

    pickled: bytes | None
    type_name: str
    message: str
    traceback: str
    arguments: tuple = ()
    attributes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException) -> RemoteFailure:
        """Packs `error`: whole, or its type, arguments and plain attributes, or as text only, whichever survives
        pickling first."""
        attributes = {key: value for key, value in vars(error).items() if key[:1] != "_" and _is_plain(value)}
        kind, message = type(error), text_of(error)
        # An exception with a constructor of its own, or with a lock in it, survives only without; a long one is cut.
        forms = error, _Bare(kind, error.args, attributes), _Bare(kind, (message,), attributes)
        pickled = next((pickled for form in forms if (pickled := _pickled(form))), None)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        given = _arguments(error)
        arguments = given if all(map(_is_plain, given)) else (message,)
        return cls(pickled, name, message, traceback_of(error), arguments, attributes)

    def to_json(self) -> bytes:
        """As plain data, for peers from whom nothing is unpickled."""
        names = ("type_name", "message", "traceback", "arguments", "attributes")
        return json.dumps({name: getattr(self, name) for name in names}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> RemoteFailure:
        """What `to_json` made. The type is looked up by its name among the modules that this process has imported;
        nothing is imported or called for it."""
        fields = json.loads(text)
        kind = _found(fields["type_name"])
        pickled = None
        if isinstance(kind, type) and issubclass(kind, Exception):
            with contextlib.suppress(Exception):
                pickled = pickle.dumps(_Bare(kind, tuple(fields["arguments"]), fields["attributes"]))
        return cls(pickled, **(fields | {"arguments": tuple(fields["arguments"])}))

    def rebuild(self, where: str) -> Exception:
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
                    bare = error
                    error = bare.kind.__new__(bare.kind, *bare.args)
                    vars(error).update(bare.attributes)
        if not isinstance(error, Exception):
            error = WorkerError(f"{self.type_name}: {self.message}")
        error.add_note(f"raised in {where}\n{self.traceback}")
        return error
