"""The global random generators of a worker: torch's (CPU), NumPy's and Python's.

Its policy and its envs draw from them and share their states, until the envs seed one. Then the envs get a separate
state, used while they are called (`collectx.rollout.wrappers.OwnGeneratorsEnv`): otherwise an env that calls
`torch.manual_seed(0)` in `reset` would give every episode the same actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collectx.random_state import HeldGenerators, SeedWatch, load_generators, save_generators, seed_generators
from collectx.rollout.loop import Rollout
from collectx.worker.inference.rollout import ServedRollout
from collectx.worker.spec import Placement, policy_seed, seed_policy


class ProcessGenerators:
    """Seeds the generators when the worker starts.

    Args:
        seed: the run's seed.
    """

    def __init__(self, seed: int, placement: Placement):
        self._seed, self._placement = seed, placement
        self._held: HeldGenerators | None = None
        seed_policy(seed, placement)
        self._watch = SeedWatch()

    def trust(self) -> None:
        """Says that not the envs, but other code has seeded the generators up to now."""
        self._watch.renew()

    def reseed(self, seed: int) -> None:
        """Seeds the generators of envs and policy again."""
        self._seed = seed
        seed_policy(seed, self._placement)
        if self._held is not None:
            self._held.add(self._held.names)
            self._seed_policy_apart(self._held.names)
        self._watch.renew()

    def after_reset(self, rollout: Rollout | ServedRollout) -> None:
        """Separates the generators that the envs seeded while they were made, or reset with seeds."""
        self._separate(rollout, [*self._watch.seeded(), *self._watch.python_seeded()])

    def after_batch(self, rollout: Rollout | ServedRollout) -> None:
        """Separates the torch and NumPy generators that the envs seeded in the batch. Takes less than 1 us."""
        if names := self._watch.seeded():
            self._separate(rollout, names)

    def state(self) -> dict[str, Any]:
        """Returns a copy of the states for `load`: tensors and plain data."""
        state: dict[str, Any] = {"seed": self._seed, "policy": save_generators()}
        if self._held is not None:
            with self._held.in_use():
                state["envs"] = save_generators(self._held.names)
        return state

    def load(self, state: dict[str, Any], rollout: Rollout | ServedRollout) -> None:
        """Restores states."""
        self._seed = state["seed"]
        if "envs" in state:
            self._separate(rollout, [*state["envs"]])
            assert self._held is not None
            with self._held.in_use():
                load_generators(state["envs"])
        load_generators(state["policy"])
        self._watch.renew()

    def _separate(self, rollout: Rollout | ServedRollout, names: Sequence[str]) -> None:
        """Leaves the current states of these generators to the envs, and seeds the policy's again."""
        if not names:
            return
        if self._held is None:
            self._held = HeldGenerators(names)
            rollout.hold(self._held)
        else:
            self._held.add([name for name in names if name not in self._held.names])
        self._seed_policy_apart(names)
        self._watch.renew()

    def _seed_policy_apart(self, names: Sequence[str]) -> None:
        seed_generators(policy_seed(self._seed, self._placement, is_apart=True), names)
