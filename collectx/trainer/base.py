"""The two protocols of training: `Trainer`, and `BatchCollection`, which a trainer gets. The base class of the built-in
trainers that learn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import nn

from collectx.batch import Key, as_key
from collectx.collector.batch_info import WrittenBatch, workers_can_write
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import RETURN_WINDOW, LearningTrainerConfig
from collectx.errors import ConfigError
from collectx.trainer.learners import ALONE, Learners
from collectx.trainer.optimizer import Adam
from collectx.user_objects import Hooks
from collectx.worker.spec import ConfigOverrides


class BatchCollection(Protocol):
    """The argument of `Trainer.train`: an iterator over batches, which also publishes weights. It has the methods of
    `collectx.collector.env_methods.EnvMethods`, which change the envs.

    Attributes:
        total_frames: number of frames of the run; -1: no limit.
        frames: number of frames delivered so far, including the current batch.
        mean_return: mean undiscounted return of the last 100 episodes that ended; NaN before the first one ends.
        num_episodes: number of episodes that ended so far.
        folder: the run folder.
        run_id: the id of the run, which a resume keeps.
        learners: this process among those that train (`trainer.num_learners`); one, unless the option says otherwise.
    """

    total_frames: int
    frames: int
    mean_return: float
    num_episodes: int
    folder: Path
    run_id: str
    learners: Learners

    def __iter__(self) -> Iterator[TensorDict | WrittenBatch]:
        """Yields batches (`collectx docs concepts`, "A batch") until `total_frames` are delivered. You may keep and
        change a batch, because its memory is only used again when its last tensor is gone; but with
        `collector.zero_copy=true`, it is valid only until the next one is requested. If the workers write to the
        trainer's `shared_replay`, yields a `WrittenBatch` instead of each batch."""

    def __next__(self) -> TensorDict | WrittenBatch:
        """Returns the next batch. Raises `StopIteration` after the last one, which `train` need not catch."""

    def publish(self, policy: nn.Module) -> int:
        """Publishes a copy of the weights of `policy` to the workers, and returns their version. Sync workers act with
        them from the next batch on, with `collector.overlap=1` from the batch after that; async workers from their next
        batch on."""

    def log(self, **scalars: float) -> None:
        """Adds scalars to the line of the current batch in metrics.jsonl, and to the progress display."""


class Trainer(Protocol):
    """What learns in a run: an object with the method `train`, which gets a collection of batches. `train` returns when
    the collection is exhausted, or earlier to end the run as completed. If it returns a string, that is the
    `exit_reason` of the run.

    Everything but `train` is optional. Checkpoints contain what `state_dict` returns before a batch is requested;
    without it, only the weights that it published last. On resume, collectx creates the trainer, calls
    `load_state_dict` of the trainer and its buffers, then `train`; without a saved state, it gets the policy with those
    weights.

    Attributes:
        shared_replay: a `collectx.ReplayBuffer`, or a picklable object whose `extend(batch)` writes to one. Async
            workers of this machine then write their batches to it, `[envs, time]`, in the order in which they are
            ready. They do not if batches are hashed or consist of whole trajectories.
        replay_buffers: a mapping from names to `collectx.ReplayBuffer`s, which checkpoints then contain.
        checkpoint_written: a method without arguments, called when a checkpoint is on the disk.
    """

    def train(self, collection: BatchCollection) -> str | None:
        """Learns from the batches of `collection`, and publishes weights."""

    def state_dict(self) -> dict:
        """Returns the state for `load_state_dict`: only tensors and plain data."""

    def load_state_dict(self, state: dict) -> None:
        """Restores the result of `state_dict`."""


class MeterTrainer:
    """`trainer.kind=meter`: consumes batches, and learns nothing. The run counts, hashes and times them."""

    def __init__(self, *arguments: Any):
        """Ignores the arguments, which are those of every trainer."""

    def train(self, collection: BatchCollection) -> None:
        """Consumes batches until the collection is exhausted."""
        for _ in collection:
            pass


class LearningTrainer(ABC):
    """Base class of the built-in trainers that learn: updates the policy with every batch, and publishes it.

    Attributes:
        optimizers: those whose learning rates `trainer.anneal` decreases; set by the subclass.
    """

    optimizers: Sequence[Adam]

    def __init__(self, cfg: LearningTrainerConfig, policy: Any, device: torch.device):
        self._cfg: Any = cfg
        self.policy, self.device = policy, device
        self._update_statistics = getattr(policy, "update_statistics", None)
        self._learners = ALONE

    def train(self, collection: BatchCollection) -> str | None:
        """Trains until the collection is exhausted, or `target_return` is reached, which the result then says."""
        self._learners = collection.learners
        for optimizer in self.optimizers:
            optimizer.learners = self._learners
        for batch in collection:
            if reason := self._reached(collection):
                return reason
            if self._cfg.anneal:
                for optimizer in self.optimizers:
                    optimizer.param_groups[0]["lr"] = self._cfg.learning_rate * remaining_fraction(collection)
            scalars = self.update(batch, collection)
            collection.publish(self.policy)
            collection.log(**self._averaged(scalars))
        return None

    @abstractmethod
    def update(self, batch: TensorDict | WrittenBatch, collection: BatchCollection) -> dict[str, float]:
        """Updates the networks with a batch of the collection. Returns scalars for the log."""

    def _averaged(self, scalars: dict[str, float]) -> dict[str, float]:
        means = zip(*self._learners.gather([*scalars.values()]), strict=True)
        return {name: sum(values) / len(values) for name, values in zip(scalars, means, strict=True)}

    def _reached(self, collection: BatchCollection) -> str | None:
        """Returns a sentence if the mean return of 100 episodes is at least `target_return`; otherwise None."""
        value, is_known = collection.mean_return, collection.num_episodes >= RETURN_WINDOW
        target = self._cfg.target_return
        if target is None or not is_known or value < target:
            return None
        last = f"the last {RETURN_WINDOW} episodes"
        return f"reached trainer.target_return={target:g}: the mean return of {last} is {value:.6g}"


def check_trainable(cfg: LearningTrainerConfig, policy: Callable | None, attributes: Sequence[str], advice: str) -> Any:
    """Returns `policy`. Raises `ConfigError`, with this `advice`, if the policy lacks one of the `attributes` that the
    trainer needs. What the trainer needs of envs is checked in `collectx/rules/fits.py`."""
    if policy is None or not all(hasattr(policy, name) for name in attributes):
        name = f"a policy of type {type(policy).__name__}"
        if not isinstance(policy, torch.nn.Module):
            name = "policy=random" if policy is None else f"the function {getattr(policy, '__name__', policy)}"
        raise ConfigError(f"trainer={cfg.kind} cannot train {name}: {advice}")
    return policy


def present_keys(batch: TensorDict, observation_keys: Sequence[Key]) -> list[Key]:
    """Returns a policy's `observation_keys` as tuples, all of which the batch contains.

    Raises:
        ConfigError: a key is missing from the batch, at the root or below `next`.
    """
    keys = [as_key(key) for key in observation_keys]
    if missing := [key for key in keys if batch.get(key, None) is None or batch.get(("next", *key), None) is None]:
        below_next = [as_key(key) for key in batch["next"].keys(True, True)]
        known_keys = [key for key in below_next if batch.get(key, None) is not None]
        names, known = (", ".join(".".join(key) for key in each) for each in (missing, known_keys))
        raise ConfigError(
            f"the policy's observation_keys name {names}, but the batches contain no such key. Use keys that they "
            f"contain for each frame and the next: {known}."
        )
    return keys


def load_moments(optimizer: torch.optim.Optimizer, state: dict) -> None:
    """Restores an optimiser's `state_dict()`, but not its hyperparameters: a resume may have changed them."""
    ours = [{name: value for name, value in each.items() if name != "params"} for each in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, options in zip(optimizer.param_groups, ours, strict=True):
        group.update(options)


def remaining_fraction(collection: BatchCollection) -> float:
    """Returns the fraction of the run's frames that are still to be delivered; 1 without a limit."""
    if collection.total_frames <= 0:
        return 1.0
    return max(0.0, 1.0 - collection.frames / collection.total_frames)


def replay_overrides(trainer: Trainer, cfg: RunConfig) -> list[ConfigOverrides]:
    """Returns the overrides for workers that write to the trainer's `shared_replay` themselves. Empty if the trainer's
    process must write; see `workers_can_write`."""
    replay = getattr(trainer, "shared_replay", None)
    # The trainer's process updates the policy's statistics.
    has_statistics = getattr(getattr(trainer, "policy", None), "update_statistics", None) is not None
    if replay is None or not workers_can_write(
        cfg, needs_batches=cfg.trainer.digest or has_statistics, is_ordered=True
    ):
        return []
    return [ConfigOverrides(hooks=Hooks(write_batch=replay.extend))] * cfg.collector.num_workers
