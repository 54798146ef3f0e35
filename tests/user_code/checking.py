"""A trainer that checks every frame of the counting env, over all parts of a run that is resumed. Imported by runs."""

import json
import os
import time
from pathlib import Path

import torch

from collectx.env.counting import EPISODES_PER_INCARNATION
from user_code.streams import StreamChecker


class CheckingTrainer:
    """Raises at the first frame that is lost, repeated or torn; its state has what it has checked.

    Args:
        pulse: the file that it replaces at the begin and after each batch: batches, frames, and the sum of the workers'
            lives.
        pause_s: after each batch, unless the file `pulse` + ".hurry" exists.
        num_envs: of each worker.
    """

    def __init__(self, pulse: str, pause_s: float, num_envs: int):
        self._pulse, self._pause_s, self._num_envs = Path(pulse), pause_s, num_envs
        self._hurry = Path(f"{pulse}.hurry")
        self._checker = StreamChecker(restarts=True)
        self._lives: dict[int, int] = {}

    def train(self, collection) -> None:
        self._write_pulse()  # no batch may be left
        for batch in collection:
            self._checker.take(batch)
            for env, episode in batch["observation"][..., :2].reshape(-1, 2).tolist():
                self._lives[env // self._num_envs] = episode // EPISODES_PER_INCARNATION
            self._write_pulse()
            if not self._hurry.exists():
                time.sleep(self._pause_s)

    def _write_pulse(self) -> None:
        numbers = {
            "batches": self._checker.batches,
            "frames": self._checker.frames,
            "lives": sum(self._lives.values()),
        }
        temporary = Path(f"{self._pulse}.new")
        temporary.write_text(json.dumps(numbers))
        os.replace(temporary, self._pulse)

    def state_dict(self) -> dict:
        # The tensor makes writing a checkpoint take long enough to be hit.
        return {"checker": dict(vars(self._checker)), "lives": self._lives, "filler": torch.zeros(1 << 19)}

    def load_state_dict(self, state: dict) -> None:
        vars(self._checker).update(state["checker"])
        self._lives = state["lives"]
