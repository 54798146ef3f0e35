"""An env over `simulator.py`: starts the simulator in its constructor, and steps it over its port."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np

SIMULATOR = Path(__file__).with_name("simulator.py")
# How long a simulator may take to listen.
_START_S = 60.0


class SimulatedEnv(gymnasium.Env):
    """Counts to a goal, by one or two in each step.

    Args:
        port: of the first env; every env has its own.
        folder: of the simulators' files.
        level: how much farther the goal is.
        flags: of the simulator.
        leaves_session: starts it in a session of its own.
        step_s: how long a step takes.
        hangs_at: the number of a step that never ends, in every life of the env.
        closes: whether `close` ends the simulator.
    """

    observation_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self, port, folder, env_index, level=0, flags=(), leaves_session=False, step_s=0.0, hangs_at=None, closes=False
    ):
        port += env_index + 1  # -1 shows the spaces
        self._level, self._step_s, self._hangs_at, self._closes = level, step_s, hangs_at, closes
        self._steps, self._hangs = 0, Path(folder, f"{port}.hangs")
        words = [sys.executable, "-S", str(SIMULATOR), str(port), str(folder), *flags]
        self._simulator = subprocess.Popen(words, start_new_session=leaves_session, stdout=subprocess.DEVNULL)
        end_s = time.monotonic() + _START_S
        while True:
            try:
                self._connection = socket.create_connection(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.005)
        self._lines = self._connection.makefile("rw")

    def _ask(self, name, number):
        print(name, number, file=self._lines, flush=True)
        return json.loads(self._lines.readline())

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        level = (options or {}).get("level", self._level)
        return np.float32([self._ask("reset", level)["position"]]), {}

    def step(self, action):
        self._steps += 1
        if self._steps == self._hangs_at:
            self._hangs.touch()
            time.sleep(3600)
        time.sleep(self._step_s)
        answer = self._ask("step", int(action))
        info = {"is_success": answer["success"]}
        return np.float32([answer["position"]]), answer["reward"], answer["done"], False, info

    def close(self):
        self._lines.close()
        self._connection.close()
        if self._closes:
            self._simulator.terminate()
            self._simulator.wait()
        else:
            self._simulator.returncode = 0  # Popen gives no warning of a process that is left
