"""An env with a level, which shows its level, and a trainer that raises it."""

import os
import signal

import gymnasium
import numpy as np


class LevelEnv(gymnasium.Env):
    """An episode has five frames. Observes its level and the option "speed" of the last reset.

    Args:
        dies_at: the process is killed once, in this step of env 0, unless the file `died` exists.
    """

    observation_space = gymnasium.spaces.Box(-1, 1000, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, env_index=0, dies_at=None):
        self.level, self._speed, self._length, self._steps = 0, 0, 0, 0
        self._dies_at = dies_at if env_index == 0 else None

    def _seen(self):
        return np.float32([self.level, self._speed])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._length, self._speed = 0, (options or {}).get("speed", 0)
        return self._seen(), {}

    def step(self, action):
        self._length, self._steps = self._length + 1, self._steps + 1
        if self._steps == self._dies_at and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._seen(), float(self.level), self._length == 5, False, {}

    def set_level(self, level, by=0):
        self.level = level + by
        return self

    def where(self):
        return {"level": self.level, "seen": self._seen()}


gymnasium.register("Level-v0", LevelEnv)


def torchrl_env():
    from torchrl.envs import GymWrapper

    return GymWrapper(LevelEnv(), categorical_action_encoding=True)


def torchrl_processes():
    from torchrl.envs import ParallelEnv

    return ParallelEnv(2, torchrl_env)


def torchrl_norm():
    """An env that TorchRL itself steps."""
    from torchrl.envs import ObservationNorm, TransformedEnv

    return TransformedEnv(torchrl_env(), ObservationNorm(0.0, 1.0, in_keys=["observation"]))


class Course:
    """Raises the level after every third batch, by a method, and the speed by an option of resets.

    Args:
        every: number of batches with the same level.
    """

    def __init__(self, policy, every=3):
        self.policy, self.every, self.num_batches = policy, every, 0

    def train(self, collection):
        for batch in collection:
            self.num_batches += 1
            # The first observation of a part is older than the settings of the part.
            level, speed = batch["next", "observation"].unbind(-1)
            settings = batch.get(("collector", "settings_version"), None)
            version = 0 if settings is None else settings.max().item()
            collection.log(level=level.max(), lowest=level.min(), speed=speed.max(), settings=version)
            if self.num_batches % self.every == 0:
                stage = self.num_batches // self.every
                collection.call("set_level", stage, by=10)
                collection.set_reset_options({"speed": stage})
                assert set(collection.get_attr("level")) == {stage + 10}
            collection.publish(self.policy)

    def state_dict(self):
        return {"num_batches": self.num_batches}

    def load_state_dict(self, state):
        self.num_batches = state["num_batches"]
