"""Saves and restores the state of objects outside of Python.

    recreated                         MuJoCo's models and data
    kept by the resuming process,     the Arcade Learning Environment, processes of Gymnasium's AsyncVectorEnv, and envs
    which loads their state           with `state_dict` and `load_state_dict`

These packages are imported only if an env has already imported them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium
import numpy as np

from collectx.errors import NotRestorableError

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
