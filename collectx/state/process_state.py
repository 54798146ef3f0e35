"""The state of an env in a process of Gymnasium's AsyncVectorEnv; see `collectx.state.simulators` for the other end of
the pipe."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch

from collectx.errors import NotRestorableError
from collectx.random_state import load_generators, save_generators
from collectx.state.pickles import dumps, loads
from collectx.state.simulators import SAVES_PROCESS


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
