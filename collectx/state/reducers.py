"""How to pickle objects that `pickle` and `cloudpickle` refuse or silently change.

    memory that arrays and tensors share     shared again
    arrays that are read from a mapped file  opened again, `np.load(path, mmap_mode="r")`
    closures, lambdas, local functions       with the globals of their module, and variables that they share
    envs that pickle their arguments only    `gymnasium.utils.EzPickle`: with their attributes
    weak references                          to the objects of the graph
    data of modules, classes, functions      of the user's modules that pickled objects reach: numbers, containers,
                                             generators, spaces, ...; and generators of an installed env's classes

Open files, memoryviews, memory that processes share, and objects of the process, such as threads, raise
`NotRestorableError`.

Saves and restores the state of objects outside of Python.

    recreated                         MuJoCo's models and data
    kept by the resuming process,     the Arcade Learning Environment, processes of Gymnasium's AsyncVectorEnv, and envs
    which loads their state           with `state_dict` and `load_state_dict`

These packages are imported only if an env has already imported them.
"""

from __future__ import annotations

import array
import contextlib
import datetime
import enum
import importlib
import io
import itertools
import pickle
import random
import sys
import types
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Space
from gymnasium.utils import EzPickle

from collectx.errors import NotRestorableError
from collectx.imports import is_installed

# Packages whose objects refer to parts of the process, such as file descriptors.
_OF_PROCESS = ("asyncio", "concurrent", "ctypes", "mmap", "multiprocessing", "selectors", "socket", "subprocess")
_REFUSED = (memoryview, io.TextIOWrapper)
_NUMPYS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_GENERATORS = (*_NUMPYS, random.Random, torch.Generator, Space)
_MUTABLE = (bytearray, list, dict, set, deque, array.array, np.ndarray, torch.Tensor, *_GENERATORS)
_DATA = (
    *(type(None), bool, int, float, complex, str, bytes, tuple, frozenset, np.generic, *_MUTABLE),
    *(types.SimpleNamespace, itertools.count, itertools.cycle, datetime.date, datetime.timedelta, Decimal, Fraction),
    *(gymnasium.Env, gymnasium.vector.VectorEnv),
)
# Values that a class or a module only defines.
_DEFINED = (type, types.FunctionType, types.ModuleType, enum.Enum)


class ReducingPickler(cloudpickle.Pickler):
    """A pickler with the reducers of this module; see its docstring."""

    def __init__(self, file: Any):
        super().__init__(file, protocol=5)
        # The array that stands for each block of memory, by address. It is kept alive, so its address is not reused.
        self._blocks: dict[int, np.ndarray] = {}
        self._addresses: list[int] = []
        self._contents: dict[bytes, bytes] = {}
        self._holders: dict[int, Any] = {}
        self._num_taken = 0
        # The function of each closure variable, for functions that are pickled with a copy of their globals.
        self._cells: dict[int, Any] = {}

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, type):
            reduced = super().reducer_override(value)
            if reduced is NotImplemented:
                self._note(value)
            return reduced
        if isinstance(value, _REFUSED) or kind.__module__.partition(".")[0] in _OF_PROCESS:
            raise NotRestorableError(f"{kind.__module__}.{kind.__qualname__} cannot be saved")
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, torch.UntypedStorage):
            return self._storage(value)
        if isinstance(value, torch.storage.TypedStorage):
            return _typed, (value._untyped_storage, value.dtype)
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.CellType:
            return types.CellType, (), _contents(value), None, None, _set_cell
        if isinstance(value, weakref.ReferenceType):
            return _weak(value)
        if kind in (weakref.ProxyType, weakref.CallableProxyType):
            return weakref.proxy, (value.__init__.__self__,)
        if kind in (weakref.WeakKeyDictionary, weakref.WeakValueDictionary):
            return kind, (), None, None, iter([*value.items()])
        if isinstance(value, EzPickle) and kind.__getstate__ is EzPickle.__getstate__:
            return object.__new__, (kind,), object.__getstate__(value), None, None, _set_attributes
        if (reduce := simulator_reducer(kind)) is not None:
            return reduce(value, self._contents)
        return super().reducer_override(value)

    def dump(self, value: Any) -> None:
        # Not cloudpickle's `dump`, which hides a RecursionError.
        pickle.Pickler.dump(self, value)

    def take_globals(self) -> list[tuple[Any, dict[str, Any]]]:
        """Returns the modules, classes and functions that occurred since the last call, and what they refer to, each
        with its data by name."""
        taken = []
        while self._num_taken < len(self._holders):
            holder = [*self._holders.values()][self._num_taken]
            self._num_taken += 1
            if _is_users(holder):
                for value in [*vars(holder).values()]:
                    self._note(getattr(value, "__func__", value))  # of a class method or static method
            if data := _data_of(holder):
                taken.append((holder, data))
        return taken

    def _note(self, value: Any) -> None:
        """Notes a module of the user; a class or a function that is pickled by name, with its module, base classes and
        metaclass. Envs of installed packages are noted too, as their classes may have generators."""
        holders: list[Any]
        if isinstance(value, types.ModuleType):
            holders = [value] if _is_users(value) else []
        elif not isinstance(value, type | types.FunctionType) or not _has_name(value):
            return
        elif isinstance(value, type) and not issubclass(value, enum.Enum):
            kinds = [each for each in (*value.__mro__, *type(value).__mro__) if _is_users(each) or _is_env(each)]
            holders = [sys.modules[each.__module__] for each in kinds if _is_users(each)] + kinds
        else:
            holders = [sys.modules[value.__module__], value] if _is_users(value) else []
        for holder in holders:
            self._holders.setdefault(id(holder), holder)

    def _array(self, array: np.ndarray) -> Any:
        file = _mapped(array)
        if file is not None and (file is array or self._blocks.get(_address(array)) is not array):
            if file.mode not in ("r", "c"):
                raise NotRestorableError(f"numpy.memmap with mode {file.mode!r} cannot be saved. Open it with mode 'r'")
            is_copy = file.mode == "c" or file.filename is None
            if array is file and not is_copy:
                return _open_map, (file.filename, file.dtype, file.offset, file.shape, file.flags.c_contiguous)
            return _view, self._place(array, np.asarray(file) if is_copy else file)
        if type(array) is not np.ndarray:
            if type(array).__reduce__ is not np.ndarray.__reduce__ or not getattr(array, "__dict__", None):
                return NotImplemented
            make, arguments, state = array.__reduce__()  # type: ignore[str-unpack]
            return make, arguments, (state, vars(array)), None, None, _set_array
        base = array.base
        if not array.nbytes or self._blocks.get(_address(array)) is array:
            return NotImplemented
        # The base of a view of `tensor.numpy()` is that array.
        owner = base.base if type(base) is np.ndarray else base
        if isinstance(owner, torch.Tensor):
            return _view, self._place(array, _bytes(owner.untyped_storage()))
        if type(base) is np.ndarray and base.base is None and (base.flags.c_contiguous or base.flags.f_contiguous):
            if not array.dtype.hasobject:
                return _view, self._place(array, base)
            # One more reference is that of the array. If there is another, something else refers to it.
            if sys.getrefcount(base) > _num_own_references() + 1:
                raise NotRestorableError(
                    "an object array that is a view of another one cannot be saved. Copy it (array.copy())"
                )
            return NotImplemented
        if array.dtype.hasobject or not array.flags.contiguous:
            return NotImplemented
        block = self._block(array)
        return NotImplemented if block is array else (_view, self._place(array, block))

    def _storage(self, storage: torch.UntypedStorage) -> Any:
        array = _bytes(storage)
        if storage.device.type != "cpu" or not storage.nbytes():
            return _storage_on, (array.copy(), storage.device)
        if storage.is_shared():
            raise NotRestorableError("shared memory cannot be saved")
        block = self._block(array)
        return _storage_of, (block, _address(array) - _address(block), storage.nbytes())

    def _place(self, array: np.ndarray, base: np.ndarray) -> tuple[Any, ...]:
        """Returns the arguments of `_view` for an array that is a view of `base`."""
        block = self._block(base)
        return block, _address(array) - _address(block), array.shape, array.strides, array.dtype, array.flags.writeable

    def _block(self, array: np.ndarray) -> np.ndarray:
        """Returns the array that stands for the memory of `array`: the first one with this memory."""
        address = _address(array)
        place = bisect_right(self._addresses, address) - 1
        if place >= 0:
            block = self._blocks[self._addresses[place]]
            if address + array.nbytes <= _address(block) + block.nbytes:
                return block
        if address not in self._blocks:
            self._addresses.insert(place + 1, address)
        self._blocks[address] = array
        return array

    def _function(self, function: types.FunctionType) -> Any:
        reduced = super().reducer_override(function)
        if reduced is NotImplemented:
            self._note(function)
            return reduced  # by its name
        module = sys.modules.get(function.__globals__.get("__name__", ""))
        by_value = ("__main__", *cloudpickle.list_registry_pickle_by_value())
        if module is None or vars(module) is not function.__globals__ or module.__name__ in by_value:
            for cell in function.__closure__ or ():
                if self._cells.setdefault(id(cell), function) is not function:
                    raise NotRestorableError(
                        f"the function {function.__qualname__} shares a variable, but belongs to no module"
                    )
            return reduced
        names = ("__qualname__", "__module__", "__doc__", "__annotations__", "__defaults__", "__kwdefaults__")
        state = {name: getattr(function, name) for name in names}, vars(function)
        arguments = function.__code__, module.__name__, function.__name__, function.__closure__
        return _make_function, arguments, state, None, None, _set_function


def _data_of(holder: Any) -> dict[str, Any]:
    """Returns the data of a module, class or function by name, without data that cannot be pickled by itself: of
    installed code, only generators; of a function, also its mutable defaults."""
    data = {}
    for name, value in [*vars(holder).items(), *_defaults(holder)]:
        is_data = isinstance(value, _DATA) or type(value) is object or _is_users(type(value))
        if not _is_users(holder):
            is_data = isinstance(value, _GENERATORS)
        is_special = name.startswith("__") and name.endswith("__") and name not in _DEFAULTS
        if is_data and not is_special and not isinstance(value, _DEFINED):
            try:
                ReducingPickler(io.BytesIO()).dump(value)
            except Exception:
                continue
            data[name] = value
    return data


_DEFAULTS = ("__defaults__", "__kwdefaults__")


def _defaults(holder: Any) -> list[tuple[str, Any]]:
    """Returns the mutable defaults of a function's parameters."""
    both = [(name, getattr(holder, name)) for name in _DEFAULTS] if isinstance(holder, types.FunctionType) else []
    return [
        (name, values)
        for name, values in both
        if any(isinstance(each, _MUTABLE) for each in (values.values() if isinstance(values, dict) else values or ()))
    ]


def restore_global(holder: Any, name: str, value: Any) -> None:
    """Sets a datum that `ReducingPickler.take_globals` returned."""
    # What a class does not let anybody set, nobody has changed.
    with contextlib.suppress(AttributeError, TypeError):
        setattr(holder, name, value)


def _is_users(value: Any) -> bool:
    """Whether a module, class or function is defined in a file of the user, other than the script that is executed."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    if not isinstance(name, str) or name == "__main__" or name.partition(".")[0] == "collectx":
        return False
    path = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(path, str) and not _is_installed(path)


_is_installed = cache(is_installed)


def _is_env(kind: type) -> bool:
    return issubclass(kind, gymnasium.Env | gymnasium.vector.VectorEnv)


def _has_name(value: Any) -> bool:
    """Whether a class or function is found by its name in its module."""
    found: Any = sys.modules.get(value.__module__ or "")
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


def _num_own_references() -> int:
    """Returns what `sys.getrefcount` counts for an object that only the caller refers to: Python 3.14 does not count
    its argument."""
    value = object()
    return sys.getrefcount(value)


def _bytes(storage: torch.UntypedStorage) -> np.ndarray:
    """Returns all bytes of a storage: a view, or a copy of those of a GPU."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu().numpy()


def _address(array: np.ndarray) -> int:
    return np.lib.array_utils.byte_bounds(array)[0] if array.size else array.ctypes.data


def _view(base: np.ndarray, offset: int, shape: Any, strides: Any, dtype: Any, is_writeable: bool) -> np.ndarray:
    """Returns a view of the memory of a contiguous array; `offset` is that of the view's lowest address."""
    offset -= sum(min(0, stride * (size - 1)) for size, stride in zip(shape, strides, strict=True))
    view = np.ndarray(shape, dtype, base if base.flags.c_contiguous else base.T, offset, strides)
    view.flags.writeable = is_writeable
    return view


def _storage_of(block: np.ndarray, offset: int, nbytes: int) -> torch.UntypedStorage:
    flat = np.ndarray((nbytes,), np.uint8, block if block.flags.c_contiguous else block.T, offset)
    return torch.from_numpy(flat).untyped_storage()


def _storage_on(content: np.ndarray, device: torch.device) -> torch.UntypedStorage:
    return torch.from_numpy(content).to(device).untyped_storage()


def _mapped(array: Any) -> np.memmap | None:
    """Returns the map of a file whose memory an array is a part of; None without one."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and not isinstance(array.base, np.ndarray):
            return array if hasattr(array, "_mmap") and array._mmap is not None else None
        array = array.base
    return None


def _open_map(path: str, dtype: np.dtype, offset: int, shape: tuple[int, ...], is_c_contiguous: bool) -> np.memmap:
    return np.memmap(path, dtype, "r", offset, shape, "C" if is_c_contiguous else "F")


def _typed(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _set_array(array: np.ndarray, state: tuple[Any, dict[str, Any]]) -> None:
    array.__setstate__(state[0])
    vars(array).update(state[1])


def _make_function(code: types.CodeType, module: str, name: str, closure: Any) -> types.FunctionType:
    return types.FunctionType(code, vars(importlib.import_module(module)), name, None, closure)


def _set_function(function: types.FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    for name, value in state[0].items():
        setattr(function, name, value)
    vars(function).update(state[1])


def _contents(cell: types.CellType) -> Any:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _set_cell(cell: types.CellType, contents: tuple[Any, ...]) -> None:
    for value in contents:
        cell.cell_contents = value


def _weak(reference: weakref.ReferenceType) -> Any:
    if reference.__callback__ is not None:
        raise NotRestorableError("a weak reference with a callback cannot be saved")
    value = reference()
    return (_dead, ()) if value is None else (weakref.ref, (value,))


class _Nothing:
    """The target of a dead weak reference."""


def _dead() -> weakref.ReferenceType:
    return weakref.ref(_Nothing())


def _set_attributes(value: Any, state: Any) -> None:
    """Sets the attributes that `object.__getstate__` returned, without calling the object's own `__setstate__`."""
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    for name, each in {**(attributes or {}), **(slots or {})}.items():
        object.__setattr__(value, name, each)


SAVES_PROCESS = "saves_process"
"""In the metadata of an AsyncVectorEnv: its envs are `collectx.state.ProcessState`."""


@dataclass(frozen=True)
class Kept:
    """How to save and load the state of objects that cannot be recreated.

    Attributes:
        save: returns the state of an object, which can be pickled.
        load: restores a state in an object.
        is_users: whether these functions call the user's code.
    """

    save: Callable[[Any], Any]
    load: Callable[[Any, Any], None]
    is_users: bool = False


def kept_of(value: Any) -> Kept | None:
    """Returns how to save and load an object; None if it can be recreated."""
    return _kept_of(type(value))  # type: ignore[arg-type]


def simulator_reducer(kind: type) -> Callable[[Any, dict[bytes, bytes]], Any] | None:
    """Returns the function that reduces objects of a class for pickling; None for the default. It takes the object, and
    the contents that were pickled before, so that equal contents are pickled once.
    """
    return _REDUCERS.get((kind.__module__.partition(".")[0], kind.__name__))


@cache
def _kept_of(kind: type) -> Kept | None:
    for each in kind.__mro__:
        if kept := _KEPT.get((each.__module__.partition(".")[0], each.__name__)):
            return kept
    names = ("state_dict", "load_state_dict")
    is_env = issubclass(kind, gymnasium.Env | gymnasium.vector.VectorEnv)
    return _STATE_DICT if is_env and all(callable(getattr(kind, name, None)) for name in names) else None


def _save_state_dict(env: Any) -> Any:
    return env.state_dict(), getattr(env.unwrapped, "_np_random", None)


def _load_state_dict(env: Any, state: Any) -> None:
    content, generator = state
    env.load_state_dict(content)
    if generator is not None:
        env.unwrapped._np_random = generator


def _reduce_model(model: Any, contents: dict[bytes, bytes]) -> Any:
    make, arguments, content, *_ = model.__reduce_ex__(4)
    return make, arguments, contents.setdefault(content, content)


def _reduce_data(data: Any, contents: dict[bytes, bytes]) -> Any:
    names = _names(type(data))  # type: ignore[arg-type]
    return _make_data, (data.model, data.time, {name: np.array(getattr(data, name)) for name in names})


@cache
def _names(kind: type) -> list[str]:
    """Returns the names of those arrays of an MjData whose size is the same in every step."""
    import mujoco

    data = mujoco.MjData(mujoco.MjModel.from_xml_string("<mujoco/>"))
    names = [name for name in dir(kind) if not name.startswith(("_", "efc_", "iefc_", "contact"))]
    arrays = {name: getattr(data, name) for name in names}
    return [name for name, each in arrays.items() if isinstance(each, np.ndarray) and each.flags.writeable]


def _make_data(model: Any, time: float, arrays: dict[str, np.ndarray]) -> Any:
    """Returns a new MjData: computes constraints and contacts from the positions, then sets all arrays to their saved
    values, because some date from an earlier moment within the last step."""
    import mujoco

    data = mujoco.MjData(model)
    for name in ("qpos", "qvel", "act", "ctrl", "qacc_warmstart", "mocap_pos", "mocap_quat"):
        getattr(data, name)[...] = arrays[name]
    data.time = time
    mujoco.mj_forward(model, data)
    for name, saved in arrays.items():
        array = getattr(data, name)
        if array.shape == saved.shape:
            array[...] = saved
    return data


def _save_atari(ale: Any) -> bytes:
    if ale.getFloat("repeat_action_probability") > 0:
        raise NotRestorableError(
            "the Arcade Learning Environment does not save the last action, which sticky actions repeat. Set "
            "repeat_action_probability=0."
        )
    return ale.cloneState(include_rng=True).serialize()


def _load_atari(ale: Any, state: bytes) -> None:
    import ale_py

    ale.restoreState(ale_py.ALEState(state))


def _save_processes(env: Any) -> list[bytes]:
    if SAVES_PROCESS not in env.metadata or not env.shared_memory:
        raise NotRestorableError(
            "an AsyncVectorEnv can be saved only if env.vectorization_mode=async made it, or its env_fns return "
            "collectx.state.ProcessState(env) with shared_memory=True"
        )
    states = env.call("save_process")
    for index, state in enumerate(states):
        if isinstance(state, str):
            raise NotRestorableError(f"env {index} of the AsyncVectorEnv: {state}")
    return list(states)


def _load_processes(env: Any, states: list[bytes]) -> None:
    # In autoreset mode NEXT_STEP, otherwise a process might reset its env in the next step.
    env.reset()
    env.set_attr("received", states)
    for index, reason in enumerate(env.call("load_process")):
        if reason is not None:
            raise NotRestorableError(f"env {index} of the AsyncVectorEnv: {reason}")


_STATE_DICT = Kept(_save_state_dict, _load_state_dict, is_users=True)
_KEPT = {
    ("ale_py", "ALEInterface"): Kept(_save_atari, _load_atari),
    ("gymnasium", "AsyncVectorEnv"): Kept(_save_processes, _load_processes),
}
_REDUCERS: dict[tuple[str, str], Callable[[Any, dict[bytes, bytes]], Any]] = {
    ("mujoco", "MjModel"): _reduce_model,
    ("mujoco", "MjData"): _reduce_data,
}
