"""The global random generators of a worker: torch's (CPU), NumPy's and Python's.

Policy and envs share these generators, until the envs seed one. From then on, the envs use a separate state while they
are called (`collectx.rollout.wrappers.OwnGeneratorsEnv`). Otherwise an env that calls `torch.manual_seed(0)` in `reset`
would give every episode the same actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collectx.random_state import HeldGenerators, SeedWatch, load_generators, save_generators, seed_generators
from collectx.rollout.loop import Rollout
from collectx.worker.inference.rollout import ServedRollout
from collectx.worker.spec import Placement, policy_seed, seed_policy


class ProcessGenerators:
    """Seeds the global generators when the worker starts, and separates those of the envs if needed."""

    def __init__(self, seed: int, placement: Placement):
        self._seed, self._placement = seed, placement
        self._held: HeldGenerators | None = None
        seed_policy(seed, placement)
        self._watch = SeedWatch()

    def trust(self) -> None:
        """Call this after code other than the envs has seeded the generators."""
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
        """Separates the generators that the envs seeded in their constructors or in a reset with seeds."""
        self._separate(rollout, [*self._watch.seeded(), *self._watch.python_seeded()])

    def after_batch(self, rollout: Rollout | ServedRollout) -> None:
        """Separates the torch and NumPy generators that the envs seeded in the batch. Takes less than 1 µs."""
        if names := self._watch.seeded():
            self._separate(rollout, names)

    def state(self) -> dict[str, Any]:
        """Returns a copy of the generators' states for `load`: tensors and plain data."""
        state: dict[str, Any] = {"seed": self._seed, "policy": save_generators()}
        if self._held is not None:
            with self._held.in_use():
                state["envs"] = save_generators(self._held.names)
        return state

    def load(self, state: dict[str, Any], rollout: Rollout | ServedRollout) -> None:
        self._seed = state["seed"]
        if "envs" in state:
            self._separate(rollout, [*state["envs"]])
            assert self._held is not None
            with self._held.in_use():
                load_generators(state["envs"])
        load_generators(state["policy"])
        self._watch.renew()

    def _separate(self, rollout: Rollout | ServedRollout, names: Sequence[str]) -> None:
        """Gives the current states of these generators to the envs, and seeds the policy's states again."""
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
