"""Checks that batches of counting envs (`collectx/env/counting.py`) hold every frame once. Imported by tests, and by
runs of theirs."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from collectx.env.counting import EPISODES_PER_INCARNATION, frame


class StreamChecker:
    """Verifies that batches of counting envs hold every frame of every env once, in order and whole.

    Batches may come from any number of workers in any order, as long as those of one env come in order; their leading
    dimensions may have any shape, with time last. An episode may end early (a time limit), if its last frame is done.
    With `restarts`, an env's frames may stop anywhere, and continue with the first frame of a later incarnation.
    `frames` and `batches` count what was checked.
    """

    def __init__(self, restarts: bool = False):
        self.frames = 0
        self._restarts = restarts
        self.batches = 0
        # For each env: episode and step of the frame that must come next, and the trajectory it must belong to.
        self._next: dict[int, tuple[int, int, int | None]] = {}
        self._trajectories: dict[int, tuple[int, int]] = {}

    def take(self, batch: Any) -> None:
        """Checks a batch: a TensorDict, or a mapping by the same keys ("observation", ("next", "done"), ...). An
        AssertionError names the first lost, repeated, reordered or torn frame."""
        traj_ids = np.asarray(batch["collector", "traj_ids"]).reshape(-1)
        num_frames = len(traj_ids)
        observation, following = (
            np.asarray(part).reshape(num_frames, -1) for part in (batch["observation"], batch["next", "observation"])
        )
        done = np.asarray(batch["next", "done"]).reshape(num_frames)
        self._refuse_torn(observation, "observation")
        self._refuse_torn(following, "next.observation")
        for f in range(num_frames):
            self._check_frame(f, observation, following, bool(done[f]), int(traj_ids[f]))
        self.frames += num_frames
        self.batches += 1

    def _refuse_torn(self, observation: np.ndarray, name: str) -> None:
        right = frame(observation[:, 0], observation[:, 1], observation[:, 2], observation.shape[1])
        torn = np.flatnonzero((observation != right).any(axis=1))
        if len(torn):
            f = int(torn[0])
            raise AssertionError(
                f"{self._where(f, observation)}: torn {name}: {observation[f].tolist()}, expected {right[f].tolist()}"
            )

    def _check_frame(self, f: int, observation: np.ndarray, after: np.ndarray, done: bool, trajectory: int) -> None:
        index, episode, step = observation[f, :3].tolist()
        where = self._where(f, observation)
        following = self._next.get(index, (0, 0, None))
        incarnation, first = divmod(episode, EPISODES_PER_INCARNATION)
        if self._restarts and (first, step) == (0, 0) and incarnation > following[0] // EPISODES_PER_INCARNATION:
            following = (episode, step, None)
        expected_episode, expected_step, expected_trajectory = following
        if (episode, step) != (expected_episode, expected_step):
            fault = "lost"
            if (episode, step) < (expected_episode, expected_step):
                fault = "repeated"
            elif (observation[f:, :3] == (index, expected_episode, expected_step)).all(axis=1).any():
                fault = "reordered"
            raise AssertionError(
                f"{where}: {fault}: expected episode {expected_episode}, step {expected_step}, "
                f"got episode {episode}, step {step}"
            )
        if expected_trajectory not in (None, trajectory):
            change = f"from {expected_trajectory} to {trajectory}"
            raise AssertionError(f"{where}: traj_ids changed {change} within an episode")
        if self._trajectories.setdefault(trajectory, (index, episode)) != (index, episode):
            raise AssertionError(f"{where}: traj_ids {trajectory} was already used by {self._trajectories[trajectory]}")
        if after[f, :3].tolist() != [index, episode, step + 1]:
            raise AssertionError(
                f"{where}: next.observation is env {after[f, 0]}, episode {after[f, 1]}, step {after[f, 2]}, "
                f"expected env {index}, episode {episode}, step {step + 1}"
            )
        self._next[index] = (episode + 1, 0, None) if done else (episode, step + 1, trajectory)

    def _where(self, f: int, observation: np.ndarray) -> str:
        return f"env {observation[f, 0]}, frame {f} of batch {self.batches}"


def check_stream(batches: Iterable[Any]) -> int:
    """Checks all of `batches` with one `StreamChecker`; returns the number of frames."""
    checker = StreamChecker()
    for batch in batches:
        checker.take(batch)
    return checker.frames
