"""The exceptions of collectx.

An exception raised by user code in a worker keeps its type: the trainer raises the original exception with the remote
traceback as a note (`RemoteFailure`).
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import pickle
import re
import sys
import sysconfig
import traceback
from dataclasses import dataclass, field
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Limits of an exception's text and traceback, in characters, and of its pickle, in bytes.
_MAX_TEXT, _MAX_TRACEBACK, _MAX_BYTES = 10_000, 50_000, 2**20
_NO_TERMINAL = (
    "breakpoint() in a worker has no terminal. Add debug=inline; in a script, use a Collector, which has no workers."
)


def text_of(error: BaseException) -> str:
    """Returns `str(error)`, without its middle if it is long, and with escaped surrogates, so that any file can store
    it. A `KeyError` with a sentence, such as a TensorDict's, has no quotes around it. Never raises, even if
    `error.__str__` does."""
    try:
        is_sentence = type(error) is KeyError and len(error.args) == 1 and " " in str(error.args[0])
        text = str(error.args[0] if is_sentence else error)
        if key := re.match(r"key (?:'|\")(.*?)(?:'|\") not found in \w+ with keys (\[.*\])$", text):
            name, names = key[1], re.findall(r"'(.*?)'", key[2])
            # Or one that is abbreviated, as by obs.
            similar = difflib.get_close_matches(name, names, n=1) or [each for each in names if each.startswith(name)]
            text += "".join(f". Did you mean '{each}'?" for each in similar[:1])
        if isinstance(error, AttributeError) and text.endswith(f"no attribute '{error.name}'"):
            with contextlib.suppress(Exception):  # the user's object may not say what it has
                (near,) = difflib.get_close_matches(str(error.name), dir(error.obj), n=1, cutoff=0.8)
                text += f". Did you mean '{near}'?"  # as Python's own traceback says
        return _shorten(text, _MAX_TEXT)
    except Exception as refusal:
        return f"(no text: str() raised {type(refusal).__name__})"


def summary_of(error: BaseException) -> str:
    """Returns the type and the text (`text_of`) of an error."""
    return f"{type(error).__name__}: {text_of(error)}"


def misfit_of(error: Exception) -> str:
    """Returns, in one line, why a `load_state_dict` refused a state. torch lists every weight; this names the first,
    and rather one of another size than a missing one."""
    _, *lines = text_of(error).splitlines() or [""]
    if not isinstance(error, RuntimeError) or not lines:
        return " ".join(summary_of(error).split())
    return next((line for line in lines if "size mismatch" in line), lines[0]).strip().rstrip(".")


TRACEBACK = "\nTraceback (most recent call last):\n"
"""How a traceback begins."""


def traceback_of(error: BaseException) -> str:
    """Returns the formatted traceback of `error`, shortened and escaped like `text_of`."""
    return _shorten("".join(traceback.format_exception(error)), _MAX_TRACEBACK)


def frames_of_user(error: BaseException) -> list[traceback.FrameSummary]:
    """Returns the frames of the traceback that are neither collectx's nor of an installed package or of Python, the
    innermost one last."""
    paths = sysconfig.get_paths()
    others = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    # In the source folder, collectx.cli is not within collectx.
    ours = [path for name in ("collectx", "collectx.cli") if name in sys.modules for path in sys.modules[name].__path__]
    not_users = tuple(f"{path}{os.sep}" for path in (*ours, *others))
    frames = traceback.extract_tb(error.__traceback__)
    return [each for each in frames if os.path.isfile(each.filename) and not each.filename.startswith(not_users)]


def _shorten(text: str, limit: int) -> str:
    if len(text) > limit:
        text = f"{text[: limit // 2]} ... ({len(text) - limit} characters left out) ... {text[-(limit // 2) :]}"
    return text.encode(errors="backslashreplace").decode()


def printable(text: str) -> str:
    """Returns `text` with surrogates escaped, and control characters except line breaks and tabs: names, reasons and
    logs in a folder may contain control sequences, which a terminal would execute."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text).encode(errors="backslashreplace").decode()


def set_worker(error: BaseException, worker: int) -> None:
    """Records which worker raised the error."""
    with contextlib.suppress(AttributeError):  # the type allows no attributes
        error._collectx_worker = worker  # type: ignore[attr-defined]


def worker_of(error: BaseException) -> int | None:
    """Returns the index of the worker that raised the error; None if none did, as far as `set_worker` knows."""
    return getattr(error, "_collectx_worker", None)


class CollectxError(Exception):
    """Base of all exceptions of collectx."""


class ConfigError(CollectxError, ValueError):
    """The configuration is wrong; lists all its problems. A `ValueError`, as TorchRL and PyTorch raise for wrong
    arguments. A command ends with exit status 2.

    Args:
        problems: one or more, each a `Problem`, or a sentence or short paragraph with the value, the rule and the
            remedy.
    """

    def __init__(self, *problems: object):
        super().__init__(*map(str, problems))

    def __str__(self) -> str:
        if len(self.problems) < 2:
            return "".join(self.problems)
        return "\n  - ".join([f"{len(self.problems)} problems:", *self.problems])

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems, in the order in which they were found."""
        return self.args


class NotRestorableError(CollectxError):
    """The state of an env cannot be saved, or does not fit the env to restore; the message says why."""


class DamagedFileError(ConfigError):
    """A file that collectx saved is damaged, or was changed. The message names the file, and the line if it has
    lines."""


class SpaceError(CollectxError):
    """A space lacks a fixed shape and dtype. The message names the space and its key."""


class DataError(CollectxError, ValueError):
    """A value of an env, a policy or a batch is not finite, or does not fit its spec: it has another shape or dtype, or
    is no number. A `ValueError`."""


class TrainingDivergedError(CollectxError):
    """A loss or a weight is not finite. The message names it; for a built-in trainer, also the gradient step."""


class EpisodeTooLongError(CollectxError):
    """An evaluated episode does not end. The message gives its frames, the limit, and how to end episodes."""


class ExportError(CollectxError):
    """A format cannot represent a policy. The message has the cause, the line that raised it, and what to change."""


class RendezvousError(CollectxError):
    """Trainer and worker did not connect. The message lists the addresses that were tried and their answers."""


class LauncherError(CollectxError):
    """A scheduler refused or ended a job, or does not answer. The message quotes the scheduler."""


class JobEnded(LauncherError):
    """A scheduler ended a worker's job: it was preempted, cancelled or at its time limit."""


# Deprecated aliases.
NotRestorable, TrainingDiverged, ShapeError = NotRestorableError, TrainingDivergedError, DataError


class WorkerError(CollectxError):
    """A worker failed. The message names the worker, its pid and its log."""


class WorkerDied(WorkerError):
    """The worker process ended without reporting an error."""


class WorkerTimeout(WorkerError):
    """A wait for a worker timed out. The message names the option, its value and what was awaited."""


@dataclass(frozen=True)
class _Bare:
    """An exception's type, arguments and attributes, to rebuild it without its constructor."""

    kind: type[BaseException]
    args: tuple
    attributes: dict[str, Any] = field(default_factory=dict)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= _MAX_TEXT)


def _arguments(error: BaseException) -> tuple:
    # The `args` of an `OSError` lack the file name.
    reduced = error.__reduce__() if type(error).__reduce__ is OSError.__reduce__ else ()
    return reduced[1] if isinstance(reduced, tuple) and reduced else error.args


def _lookup(name: str) -> object:
    """Returns the object named "module.Outer.Inner", if its module is already imported; otherwise None."""
    parts = name.split(".")
    for end in range(len(parts) - 1, -1, -1):
        value: object = sys.modules.get(".".join(parts[:end]) or "builtins")
        if value is not None:
            for part in parts[end:]:
                value = getattr(value, part, None)
            return value
    return None


def _cut_debugger(error: BaseException) -> None:
    """Removes the frames of Python's debugger from the end of the traceback."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        if last.tb_next.tb_frame.f_globals.get("__name__") in ("bdb", "pdb"):
            last.tb_next = None
        else:
            last = last.tb_next


def _pickled(error: object) -> bytes | None:
    """Returns a pickle of `error`; None if it cannot be loaded, or is too long. Tries to pickle classes by reference,
    then by value: the worker may have got the class by value, from the trainer's main module."""
    import cloudpickle

    for dumps in (pickle.dumps, cloudpickle.dumps):
        with contextlib.suppress(Exception):
            pickled = dumps(error)
            pickle.loads(pickled)
            return pickled if len(pickled) <= _MAX_BYTES else None
    return None


@dataclass(frozen=True)
class RemoteFailure:
    """An exception on its way from a worker to the trainer; always picklable.

    Attributes:
        pickled: the exception, or its type, arguments and attributes; None if neither survives pickling.
        type_name: qualified name of the exception's type.
        message: the exception's text (`text_of`).
        traceback: the formatted remote traceback (`traceback_of`).
        arguments: the exception's arguments if they are plain data, otherwise only its message.
        attributes: the exception's attributes that are plain data.
        notes: the exception's notes, such as the env that raised it.
    """

    pickled: bytes | None
    type_name: str
    message: str
    traceback: str
    arguments: tuple = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: BaseException) -> RemoteFailure:
        """Returns `error` in the first form that can be pickled: as it is; its type, arguments and plain attributes; or
        only its text. A `BdbQuit` says what to do where there is no terminal, as `breakpoint()` raises it there."""
        import bdb

        if isinstance(error, bdb.BdbQuit) and not (sys.stdin is not None and sys.stdin.isatty()):
            error.args = (_NO_TERMINAL,)
            _cut_debugger(error)
        attributes = {key: value for key, value in vars(error).items() if key[:1] != "_" and _is_plain(value)}
        kind, message = type(error), text_of(error)
        # The second form is for exceptions with an unusual constructor or with a lock; the third for long ones.
        forms = error, _Bare(kind, error.args, attributes), _Bare(kind, (message,), attributes)
        pickled = next((pickled for form in forms if (pickled := _pickled(form))), None)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        arguments = _arguments(error)
        if not all(map(_is_plain, arguments)):
            arguments = (message,)
        notes = tuple(_shorten(str(note), _MAX_TEXT) for note in getattr(error, "__notes__", ()))
        return cls(pickled, name, message, traceback_of(error), arguments, attributes, notes)

    def to_json(self) -> bytes:
        """Returns plain data, for connections that unpickle nothing."""
        return json.dumps({name: value for name, value in vars(self).items() if name != "pickled"}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> RemoteFailure:
        """Returns the failure of which `to_json` made `text`. The type is looked up by its name in imported modules;
        nothing is imported or called."""
        fields = json.loads(text)
        fields |= {name: tuple(fields[name]) for name in ("arguments", "notes")}
        kind = _lookup(fields["type_name"])
        pickled = None
        if isinstance(kind, type) and issubclass(kind, Exception):
            with contextlib.suppress(Exception):
                pickled = pickle.dumps(_Bare(kind, fields["arguments"], fields["attributes"]))
        return cls(pickled, **fields)

    def rebuild(self, where: str) -> Exception:
        """Returns the original exception with its notes, and one that contains its origin and the remote traceback.

        If it cannot be pickled, or is not an `Exception` (a worker's `SystemExit` must not end the trainer), returns a
        `WorkerError` that names the original type.
        """
        error: object = None
        if self.pickled is not None:
            # The trainer may lack a module that the worker imported.
            with contextlib.suppress(Exception):
                error = pickle.loads(self.pickled)
                if isinstance(error, _Bare):
                    bare = error
                    error = bare.kind.__new__(bare.kind, *bare.args)
                    vars(error).update(bare.attributes)
        if not isinstance(error, Exception):
            error = WorkerError(f"{self.type_name}: {self.message}".removesuffix(": "))
        # A pickled exception has its notes.
        for note in () if hasattr(error, "__notes__") else self.notes:
            error.add_note(note)
        error.add_note(f"raised in {where}\n{self.traceback}")
        return error
