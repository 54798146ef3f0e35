"""The state that objects hold outside of Python: MuJoCo and the Arcade Learning Environment; or in other processes:
Gymnasium's AsyncVectorEnv.

Used by `collectx.state.save`. Their packages are imported only where an env has already done so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectx.errors import NotRestorable

SAVES_PROCESS = "saves_process"
"""In the metadata of an AsyncVectorEnv: its envs are `collectx.state.ProcessState`."""


@dataclass(frozen=True)
class Simulator:
    """How the state of one class of objects is saved and restored.

    Attributes:
        package, name: of the class.
        save: returns a copy of the state: bytes, or numbers and arrays by name.
        restore: changes an object to a state; raises a ValueError where it does not fit.
    """

    package: str
    name: str
    save: Callable[[Any], Any]
    restore: Callable[[Any, Any], None]


def simulator_of(value: Any) -> Simulator | None:
    """The entry of the table for an object; None: it is of no simulator."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    return next((each for each in _SIMULATORS if (each.package, each.name) == (package, kind.__name__)), None)


def _model_digest(model: Any) -> str:
    """Stands for the model, which does not change in an episode, but may be another in each env."""
    import mujoco

    buffer = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.blake2b(buffer.tobytes(), digest_size=16).hexdigest()


def _check_model(model: Any, digest: str) -> None:
    if _model_digest(model) != digest:
        raise ValueError("the MuJoCo model is not that of the saved env")


def _arrays(data: Any) -> dict[str, np.ndarray]:
    """The arrays of an MjData that have the same size in every step, over its memory."""
    names = [name for name in dir(data) if not name.startswith(("_", "efc_", "iefc_", "contact"))]
    arrays = {name: getattr(data, name) for name in names}
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray) and array.flags.writeable}


def _save_data(data: Any) -> dict[str, Any]:
    return {"time": data.time, "arrays": {name: array.copy() for name, array in _arrays(data).items()}}


def _restore_data(data: Any, state: dict[str, Any]) -> None:
    """Computes constraints and contacts from the positions. Then all arrays get their saved values, as some are of an
    earlier moment within the last step."""
    import mujoco

    arrays = _arrays(data)
    for name in ("qpos", "qvel", "act", "ctrl", "qacc_warmstart", "mocap_pos", "mocap_quat"):
        arrays[name][...] = state["arrays"][name]
    data.time = state["time"]
    mujoco.mj_forward(data.model, data)
    for name, saved in state["arrays"].items():
        if arrays[name].shape == saved.shape:
            arrays[name][...] = saved


def _save_atari(ale: Any) -> bytes:
    if ale.getFloat("repeat_action_probability") > 0:
        raise NotRestorable(
            "the Arcade Learning Environment does not save the last action, which sticky actions repeat: set "
            "repeat_action_probability=0"
        )
    return ale.cloneState(include_rng=True).serialize()


def _restore_atari(ale: Any, state: bytes) -> None:
    import ale_py

    ale.restoreState(ale_py.ALEState(state))


def _save_processes(env: Any) -> list[bytes]:
    if SAVES_PROCESS not in env.metadata or not env.shared_memory:
        raise NotRestorable(
            "an AsyncVectorEnv is saved if the option env.vectorization_mode=async has made it, or if its env_fns "
            "return collectx.state.ProcessState(env), with shared_memory=True"
        )
    states = env.call("save_process")
    for index, state in enumerate(states):
        if isinstance(state, str):
            raise NotRestorable(f"env {index} of the AsyncVectorEnv: {state}")
    return list(states)


def _restore_processes(env: Any, states: list[bytes]) -> None:
    # So that no process resets its env at the next step, as it does in the autoreset mode NEXT_STEP.
    env.reset()
    env.set_attr("received", states)
    for index, reason in enumerate(env.call("load_process")):
        if reason is not None:
            raise NotRestorable(f"env {index} of the AsyncVectorEnv: {reason}")


_SIMULATORS = (
    Simulator("mujoco", "MjModel", _model_digest, _check_model),
    Simulator("mujoco", "MjData", _save_data, _restore_data),
    Simulator("ale_py", "ALEInterface", _save_atari, _restore_atari),
    Simulator("gymnasium", "AsyncVectorEnv", _save_processes, _restore_processes),
)
