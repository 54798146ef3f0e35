"""`trainer.kind=meter`: takes batches and learns nothing; the run around it counts, digests and times them."""

from __future__ import annotations

from collectx.trainer.base import Collection


class MeterTrainer:
    """The smallest trainer."""

    def train(self, collection: Collection) -> None:
        """Returns when the collection is exhausted."""
        for _ in collection:
            pass

    def state_dict(self) -> dict:
        """Empty: nothing is learnt."""
        return {}
