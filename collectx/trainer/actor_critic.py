"""What trainers of an actor and a critic do with a run, whatever they learn from a batch.

In the trainer's process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from collectx.config import ImpalaTrainerConfig, PpoTrainerConfig
from collectx.trainer.base import Collection
from collectx.trainer.learner import Learner
from collectx.trainer.rows import Rows


class ActorCriticTrainer(ABC):
    """Learns from every batch once it is there, and publishes."""

    def __init__(self, cfg: PpoTrainerConfig | ImpalaTrainerConfig, learner: Learner):
        self._cfg = cfg
        self._learner = learner

    def train(self, collection: Collection) -> None:
        """Returns when the collection is exhausted or `target_return` is reached."""
        learner = self._learner
        for batch in collection:
            if learner.reached_target(collection):
                return
            learner.anneal(collection)
            losses = self.learn(Rows.of(batch, learner.policy.observation_keys, learner.device))
            collection.publish(learner.policy)
            collection.log(**losses)

    def state_dict(self) -> dict:
        """See `collectx.trainer.base.Trainer`."""
        return self._learner.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Goes on from `state_dict()`."""
        self._learner.load_state_dict(state)

    @abstractmethod
    def learn(self, rows: Rows) -> dict[str, float]:
        """Updates the networks from the frames of a batch; returns the losses."""
