"""An env that observes an image, a vector and a number, and whose task needs both the image and the vector."""

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE, LENGTH = 12, 20
_MOVES = np.float32([[-2, 0], [2, 0], [0, -2], [0, 2]])


class ErrandEnv(gymnasium.Env):
    """A robot fetches a parcel. Only the camera sees the parcel, and only the vector tells where the robot is. The
    return of an episode is the fraction of the way that the robot has come closer; 1 if it has arrived.

    Args:
        continuous: whether the action is a Box of two numbers, by which the robot moves, in place of a direction.
        masked: whether moves out of the room are illegal.
        camera: whether it observes the image.
        vector: whether it observes the position.
    """

    def __init__(self, continuous=False, masked=False, camera=True, vector=True):
        self._continuous, self._masked = continuous, masked
        self.action_space = spaces.Box(-2, 2, (2,), np.float32) if continuous else spaces.Discrete(4)
        robot = {"position": spaces.Box(0, SIZE - 1, (2,), np.float32)} if vector else {}
        parts = {"robot": spaces.Dict(robot | {"step": spaces.Discrete(LENGTH + 1)})}
        if camera:
            parts["camera"] = spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
        if masked:
            parts["action_mask"] = spaces.MultiBinary(4)
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._robot, self._parcel = self.np_random.integers(0, SIZE - 1, (2, 2)).astype(np.float32)
        self._step, self._first = 0, max(1.0, self._distance())
        return self._observe(), {}

    def step(self, action):
        if self._masked:
            assert self._legal()[action], f"action {action} leads out of the room"
        before = self._distance()
        self._robot = self._moved(action if self._continuous else _MOVES[action])
        self._step += 1
        arrived = self._distance() <= 2
        reward = (before - (0.0 if arrived else self._distance())) / self._first
        return self._observe(), reward, arrived, self._step == LENGTH, {}

    def _moved(self, move):
        return (self._robot + move).clip(0, SIZE - 1).astype(np.float32)

    def _distance(self):
        return float(np.abs(self._robot - self._parcel).sum())

    def _legal(self):
        return np.array([np.abs(self._moved(move) - self._robot).sum() > 1 for move in _MOVES], np.int8)

    def _observe(self):
        camera = np.zeros((SIZE, SIZE), np.uint8)
        y, x = self._parcel.astype(int)
        camera[y : y + 2, x : x + 2] = 255
        robot = {"position": self._robot.copy(), "step": self._step}
        seen = {"robot": robot, "camera": camera, "action_mask": self._legal()}
        return {
            name: {key: robot[key] for key in space.spaces} if name == "robot" else seen[name]
            for name, space in self.observation_space.spaces.items()
        }


gymnasium.register("Errand-v0", ErrandEnv)


def torchrl_env():
    from torchrl.envs import GymWrapper

    return GymWrapper(ErrandEnv(), categorical_action_encoding=True)
