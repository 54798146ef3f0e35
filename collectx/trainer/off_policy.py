"""The loop of the trainers that learn from a replay buffer, `dqn` and `sac`.

    batch --extend--> buffer --sample--> gradient steps --publish--> workers

Async workers of this machine write to the buffer themselves; the trainer then gets no batches. Rewards of several steps
are summed without an off-policy correction, as in Rainbow (Hessel et al. 2018).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict

from collectx.batch import Key, as_key
from collectx.collector.batch_info import WrittenBatch
from collectx.config.schema.trainer import OffPolicyTrainerConfig
from collectx.replay import ReplayBuffer
from collectx.trainer.base import BatchCollection, LearningTrainer, present_keys
from collectx.trainer.returns import nstep

# Maximum number of gradient steps that share a sample. More would need fewer calls, but use older targets and more
# memory.
_MAX_STEPS_PER_SAMPLE = 16


class OffPolicyTrainer(LearningTrainer):
    """Writes batches to a replay buffer, takes gradient steps on samples of it, and publishes the policy.

    Attributes:
        losses: names of the numbers that `learn` returns; they are logged for each batch.
    """

    _cfg: OffPolicyTrainerConfig
    losses: Sequence[str]

    def __init__(self, cfg: OffPolicyTrainerConfig, policy: Any, sampler: Any, device: torch.device):
        super().__init__(cfg, policy, device)
        self._policy_keys = [as_key(key) for key in policy.observation_keys]
        self._previous_frames = 0
        self._buffer = ReplayBuffer(cfg.buffer_frames, sampler=sampler)
        self.replay_buffers = {"replay": self._buffer}
        self.shared_replay = NstepWriter(self._buffer, policy.observation_keys, cfg.gamma, cfg.num_steps)
        self._due_steps = 0.0

    def state_dict(self) -> dict:
        """Returns the state for `load_state_dict`, without the frames of the replay buffer: only tensors and plain
        data."""
        return {"policy": self.policy.state_dict(), "due_steps": self._due_steps}

    def load_state_dict(self, state: dict) -> None:
        """Restores a result of `state_dict`. The replay buffer's `loads` restores the frames."""
        self._due_steps = state["due_steps"]
        self.policy.load_state_dict(state["policy"])

    def train(self, collection: BatchCollection) -> str | None:
        self._previous_frames = collection.frames
        return super().train(collection)

    def update(self, batch: TensorDict | WrittenBatch, collection: BatchCollection) -> dict[str, float]:
        cfg, new_frames = self._cfg, collection.frames - self._previous_frames
        self._previous_frames = collection.frames
        if isinstance(batch, TensorDict):
            self.shared_replay.extend(batch)
            if self._update_statistics is not None:
                seen = [batch[key].to(self.device) for key in self._policy_keys]
                self._update_statistics([self._learners.concatenate(part) for part in seen])
                self.statistics_changed()
        scalars = self.begin_batch(collection)
        # A run that continues without its buffer fills it first.
        written = self._learners.gather([self._buffer.write_count])
        if min(collection.frames, *(count for (count,) in written)) >= cfg.warmup_frames:
            self._due_steps += cfg.updates_per_frame * new_frames
            scalars |= self._take_steps(int(self._due_steps))
            self._due_steps %= 1
        return scalars

    def statistics_changed(self) -> None:
        """Called after the statistics of the policy's normalisation have changed."""

    def begin_batch(self, collection: BatchCollection) -> dict[str, float]:
        """Called for each batch before its gradient steps. Returns scalars for the log."""
        return {}

    @abstractmethod
    def learn(self, sample: TensorDict, steps: int) -> torch.Tensor:
        """Takes `steps` gradient steps on a sample `[steps * batch_size]` of the buffer, which is on the CPU. Returns
        the sums of `losses` over the steps."""

    def parts(self, frames: TensorDict, *prefix: str) -> list[Any]:
        """Returns the tensor of each of the policy's `observation_keys`, at the root or below `prefix`."""
        return [frames[(*prefix, *as_key(key))] for key in self.policy.observation_keys]

    def _take_steps(self, steps: int) -> dict[str, float]:
        sums = torch.zeros(len(self.losses), device=self.device)
        for done in range(0, steps, _MAX_STEPS_PER_SAMPLE):
            some = min(_MAX_STEPS_PER_SAMPLE, steps - done)
            sums += self.learn(self._buffer.sample(some * self._cfg.batch_size), some)
        return dict(zip(self.losses, (sums / steps).tolist(), strict=True)) if steps else {}


@dataclass(frozen=True)
class NstepWriter:
    """Writes n-step transitions to `buffer`, in the trainer's process or, pickled, in the workers."""

    buffer: ReplayBuffer
    observation_keys: Sequence[Key]
    gamma: float
    num_steps: int

    def extend(self, batch: TensorDict) -> torch.Tensor:
        """Writes the n-step transitions of a batch `[..., time]`. See `ReplayBuffer.extend`."""
        return self.buffer.extend(self._transitions(batch))

    def _transitions(self, batch: TensorDict) -> TensorDict:
        """Returns transitions, `[rows, time]`: observation and action of each frame, and over the `num_steps` frames
        that begin with it, the "return", the last "next" observation, and the "discount" of the value of the latter (0
        if its frame terminated)."""
        keys = present_keys(batch, self.observation_keys)
        rows = batch.select("action", "next", *keys).reshape(-1, batch.batch_size[-1])
        reward, done, terminated = (rows["next", name].squeeze(-1) for name in ("reward", "done", "terminated"))
        total, discount, last = nstep(reward, done, self.gamma, self.num_steps)
        row = torch.arange(len(rows), device=last.device)[:, None]
        result = rows.select("action", *keys)
        result["return"] = total
        # A truncated frame is not terminated: the value of its true final observation counts.
        result["discount"] = discount * ~terminated[row, last]
        for key in keys:
            result["next", *key] = rows["next", *key][row, last]
        return result
