"""Pickles envs together with everything that they share, and recreates them from the bytes.

`loads` executes the bytes. Only the resuming worker calls it, with bytes of a trainer that it has authenticated
(docs/reference/network.md); the trainer passes the bytes on without reading them.

The state of an env in a process of Gymnasium's AsyncVectorEnv; see `collectx.state.reducers` for the other end of
the pipe.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import gymnasium
import torch

from collectx.errors import NotRestorableError, text_of
from collectx.random_state import load_generators, save_generators
from collectx.state.reducers import SAVES_PROCESS, Kept, ReducingPickler, kept_of, restore_global

_ENVS = (gymnasium.Env, gymnasium.vector.VectorEnv)
# A node of a linked list takes two nested calls, each with some hundred bytes of the stack.
_DEEPEST, _STACK_BYTES = 100_000, 256 << 20
# The deepest recursion for which the stack of any thread is large enough.
_DEEP = 10_000
_THREAD = "collectx-pickle"
# The recursion limit is that of all threads.
_has_recursion_limit = threading.Lock()
_MAX_PATH = 16
_Result = TypeVar("_Result")


def dumps(value: Any, name: str, outside: Sequence[Any] = (), level: int = 1) -> torch.Tensor:
    """Returns the pickle of `value` as a uint8 tensor, which torch saves and loads with `weights_only=True`. Messages
    call the value `name`, if not "". Raises `NotRestorableError` if the value cannot be pickled; the message names the
    part.

    Args:
        outside: objects that the value may refer to, but that are not part of its state, such as the policy. `loads`
            puts other objects in their places.
        level: compression level; 0 does not compress, and takes a fiftieth of the time.
    """
    file = io.BytesIO()
    try:
        _deeply(lambda: _Pickler(file, outside).write(value))
    except Exception as error:
        where = ": ".join(filter(None, (name and f"{name} cannot be saved", _culprit(value, outside), _line(error))))
        raise NotRestorableError(where) from error
    # Compressed, because bounds of spaces and models of simulators are mostly zeros.
    return torch.frombuffer(bytearray(zlib.compress(file.getbuffer(), level)), dtype=torch.uint8)


def loads(saved: torch.Tensor, current: Any, name: str, outside: Sequence[Any] = ()) -> Any:
    """Returns the value that was saved. Executes code from the bytes. `current` is an object that was built like the
    saved value. Parts that cannot be recreated, such as processes, are taken from it. Raises `NotRestorableError` if
    the bytes cannot be read, or belong to other envs. Objects of `current` may then have changed, so its envs must be
    reset."""
    try:
        return _Unpickler(saved, _kept(current, outside), outside).read()
    except Exception as error:
        raise NotRestorableError(f"the saved state of {name} cannot be read: {_line(error)}") from error


def reason_not_saved(value: Any) -> str | None:
    """Returns why `value` cannot be saved or recreated; None if it can."""
    try:
        saved = dumps(value, "", level=0)
        _Unpickler(saved, _kept(value, ()), (), loads_kept=False).read()
    except NotRestorableError as error:
        # The `state_dict` of an env that was not reset may raise an error.
        return None if isinstance(error.__cause__, _StateDictError) else str(error)
    except Exception as error:
        return f"what was saved could not be read back: {_line(error)}"
    return None


class _StateDictError(NotRestorableError):
    """A `state_dict` of the user raised an error."""


class _Pickler(ReducingPickler):
    """Pickles a value, then the data of the modules and classes that occurred in it. `kept` are the objects that the
    resuming process provides, in the order in which they occurred."""

    def __init__(self, file: Any, outside: Sequence[Any], saves_kept: bool = True):
        super().__init__(file)
        self._outside = {id(each): index for index, each in enumerate(outside)}
        self._saves_kept = saves_kept
        self._numbers: dict[int, int] = {}
        self.kept: list[tuple[Any, Kept]] = []

    def write(self, value: Any) -> None:
        self.dump(value)
        while states := self.take_globals():
            self.dump(states)
        self.dump(None)

    def persistent_id(self, value: Any) -> Any:
        if id(value) in self._outside:
            return "outside", self._outside[id(value)]
        kind = kept_of(value)
        if kind is None:
            return None
        number = self._numbers.get(id(value))
        if number is not None:
            return "kept", number, None
        number = self._numbers[id(value)] = len(self.kept)
        self.kept.append((value, kind))
        return "kept", number, self._state_of(value, kind) if self._saves_kept else None

    def _state_of(self, value: Any, kind: Kept) -> Any:
        try:
            return (kind.save(value),)
        except NotRestorableError:
            raise
        except Exception as error:
            kind_of_error = _StateDictError if kind.is_users else NotRestorableError
            raise kind_of_error(f"{type(value).__name__}: {_line(error)}") from error


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, saved: torch.Tensor, kept: Sequence[tuple[Any, Kept]], outside: Sequence[Any], loads_kept: bool = True
    ):
        super().__init__(io.BytesIO(zlib.decompress(saved.numpy().tobytes())))
        self._kept = kept
        self._outside = outside
        self._loads_kept = loads_kept

    def read(self) -> Any:
        value = self.load()
        while (states := self.load()) is not None:
            # A trial does not change classes and modules.
            for holder, names in states if self._loads_kept else ():
                for name, each in names.items():
                    restore_global(holder, name, each)
        return value

    def persistent_load(self, reference: Any) -> Any:
        if reference[0] == "outside":
            return self._outside[reference[1]]
        _, number, state = reference
        if number >= len(self._kept):
            raise NotRestorableError("the env lacks objects of the saved env that cannot be recreated")
        value, kind = self._kept[number]
        if state is not None and self._loads_kept:
            kind.load(value, *state)
        return value


def _kept(value: Any, outside: Sequence[Any]) -> list[tuple[Any, Kept]]:
    """Returns the objects in `value` that its pickle only refers to, in the order of the pickle."""
    pickler = _Pickler(io.BytesIO(), outside, saves_kept=False)
    _deeply(lambda: pickler.write(value))
    return pickler.kept


def _deeply(call: Callable[[], _Result]) -> _Result:
    """Calls a function. If it exceeds the recursion limit, calls it again in a thread with a larger stack; also if the
    user's limit is so high that the stack would overflow first."""
    if threading.current_thread().name == _THREAD:
        return call()
    results: list[Any] = []

    def run() -> None:
        try:
            results.append((call(), None))
        except BaseException as error:
            results.append((None, error))

    with _has_recursion_limit:
        limit = sys.getrecursionlimit()
        with contextlib.suppress(RecursionError):
            if limit <= _DEEP:
                return call()
        size = threading.stack_size(_STACK_BYTES)
        try:
            sys.setrecursionlimit(_DEEPEST)
            thread = threading.Thread(target=run, name=_THREAD)
            thread.start()
            thread.join()
        finally:
            sys.setrecursionlimit(limit)
            threading.stack_size(size)
    result, error = results[0]
    if error is not None:
        raise error
    return result


def _culprit(value: Any, outside: Sequence[Any]) -> str:
    """Returns the path of the innermost object that cannot be pickled by itself. For an env, the path begins with its
    class."""
    path = ""
    for _ in range(_MAX_PATH):
        found = next((part for part in _parts(value) if not _is_picklable(part[1], outside)), None)
        if found is None:
            break
        step, value = found
        path = type(value).__name__ if isinstance(value, _ENVS) else path + step
    return path.removeprefix(".")


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]" if isinstance(key, str | int) else "[...]", each) for key, each in value.items()]
    if isinstance(value, list | tuple | deque):
        return [(f"[{index}]", each) for index, each in enumerate(value)]
    attributes = getattr(value, "__dict__", {})
    return [(f".{name}", each) for name, each in attributes.items()] if isinstance(attributes, dict) else []


def _is_picklable(value: Any, outside: Sequence[Any]) -> bool:
    try:
        _deeply(lambda: _Pickler(io.BytesIO(), outside, saves_kept=False).dump(value))
    except Exception:
        return False
    return True


def _line(error: Exception) -> str:
    first = text_of(error).strip().partition("\n")[0]
    return first if isinstance(error, NotRestorableError) else f"{type(error).__name__}: {first}"


class ProcessState(gymnasium.Wrapper):
    """Wraps each env of Gymnasium's `AsyncVectorEnv`, so that checkpoints can save it.

    The wrapper saves and restores its env, and the global random generators, in the process that steps the env. Its
    metadata say so. The vector env copies the metadata of its first env, which then stand for all of them.
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.metadata = {**env.metadata, SAVES_PROCESS: True}
        # With autoreset mode NEXT_STEP, the process resets the env in the step after the end of an episode. Only the
        # saved process knew that a reset was due, so a restored env does the reset itself.
        self._has_ended = self._resets_next = False
        # The state that `load_process` restores; the vector env sets it.
        self.received = b""

    def reset(self, **kwargs: Any) -> Any:
        self._has_ended = self._resets_next = False
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self._resets_next:
            observation, info = self.reset()
            return observation, 0, False, False, info
        result = self.env.step(action)
        self._has_ended = bool(result[2] or result[3])
        return result

    def save_process(self) -> bytes | str:
        """Returns the state, or as a str the reason why it cannot be saved."""
        state = {
            "env": self.env,
            "has_ended": self._has_ended or self._resets_next,
            "generators": save_generators(),
        }
        try:
            # As bytes: torch would send tensors through shared memory, which ends with the process.
            return dumps(state, "the env").numpy().tobytes()
        except NotRestorableError as error:
            return str(error)

    def load_process(self) -> str | None:
        """Restores the state `received`. Returns None; or the reason why it does not fit, in which case the env must be
        reset."""
        current = {"env": self.env}
        try:
            state = loads(torch.frombuffer(bytearray(self.received), dtype=torch.uint8), current, "the env")
        except NotRestorableError as error:
            return str(error)
        self.env, self._resets_next = state["env"], state["has_ended"]
        load_generators(state["generators"])
        return None
