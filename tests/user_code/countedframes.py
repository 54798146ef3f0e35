"""Frames of the counting env for a buffer, made without a collector, and what says that a sample of them is whole."""

import os
import signal

import numpy as np
import torch
from tensordict import TensorDict

from collectx.env.counting import episode_length, frame
from collectx.replay.pool import Pool

SIZE = 64
# Of observations that frames share.
LARGE = 256


class Stream:
    """Successive frames of `num_envs` counting envs from the global index `first_env` on: what a worker collects."""

    def __init__(self, num_envs: int = 1, first_env: int = 0, shortest: int = 5, size: int = SIZE):
        self._index = first_env + np.arange(num_envs)
        self._length = episode_length(self._index, shortest)
        self._clock = np.zeros(num_envs, np.int64)
        self._size = size

    def take(self, steps: int) -> TensorDict:
        """The next frames, `[envs, time]`."""
        clock = self._clock[:, None] + np.arange(steps)
        self._clock += steps
        return counted(np.broadcast_to(self._index[:, None], clock.shape), clock, self._length[:, None], self._size)


def counted(index: np.ndarray, clock: np.ndarray, length: np.ndarray, size: int = SIZE) -> TensorDict:
    """The frames of the envs `index` after `clock` steps each, `[*index.shape]`."""
    episode, step = clock // length, clock % length
    observation, after = (
        frame(*(part.reshape(-1) for part in (index, episode, then)), size).reshape(*index.shape, size)
        for then in (step, step + 1)
    )
    done = step + 1 >= length
    return TensorDict(
        {
            "observation": torch.from_numpy(observation),
            "next": {
                "observation": torch.from_numpy(after),
                "reward": torch.from_numpy((step + 1).astype(np.float32))[..., None],
                "done": torch.from_numpy(done)[..., None],
            },
            "collector": {"traj_ids": torch.from_numpy(index + 1000 * episode)},
        },
        batch_size=index.shape,
        names=[*[None] * (index.ndim - 1), "time"],
    )


def check_whole(sample: TensorDict) -> None:
    """Every frame of `sample` is one that a `Stream` gave, put together from no two; those of a slice follow one
    another."""
    for observation, more in ((sample["observation"], 0), (sample["next", "observation"], 1)):
        flat = observation.reshape(-1, observation.shape[-1]).numpy()
        assert np.array_equal(flat, frame(flat[:, 0], flat[:, 1], flat[:, 2], flat.shape[1])), "torn"
        head = sample["observation"].reshape(len(flat), -1)[:, :3].numpy()
        assert np.array_equal(flat[:, :3] - head, np.full_like(head, (0, 0, more))), "two frames' leaves"
    head = sample["observation"][..., :3]
    assert torch.equal(sample["next", "reward"].squeeze(-1), head[..., 2].float() + 1)
    assert torch.equal(sample["collector", "traj_ids"], head[..., 0] + 1000 * head[..., 1])
    if sample.ndim == 2:
        assert (head[:, 1:] - head[:, :-1] == torch.tensor((0, 0, 1))).all()


def write(buffer, first_env: int, batches: int) -> None:
    """A worker process: collects with two envs of its own."""
    stream = Stream(2, first_env)
    for _ in range(batches):
        buffer.extend(stream.take(8))


def die(buffer, where: str) -> None:
    """A worker process that is killed in the midst of a change: half of a leaf is copied, or a sampler is at work.

    Args:
        where: write, a method of the ring; shared, while it stores large observations; or dropped, written or update,
            methods of the sampler.
    """
    if where == "shared":
        store = Pool.write

        def stored(pool, positions, *values):
            store(pool, positions[:5], *(each[:5] for each in values))
            os.kill(os.getpid(), signal.SIGKILL)

        Pool.write = stored
        buffer.extend(Stream(2, size=LARGE).take(8))
    sampler = buffer.sampler
    attach = sampler.attach

    def attached(ring, memory):
        attach(ring, memory)
        part = ring if where == "write" else sampler
        original = getattr(part, where)

        def killed(*arguments):
            if where == "write":
                places = np.arange(ring.end, ring.end + 16) % ring.capacity
                ring.views()[0]["observation",][places, : SIZE // 2] = -1
            else:
                original(*arguments)
                if where == "update":
                    memory[64:].view(np.float64)[: ring.capacity] = 7.0  # the weights, without their sums
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(part, where, killed)

    sampler.attach = attached
    if where == "update":
        buffer.update_priority(buffer.sample(4)["index"].reshape(-1), torch.ones(4))
    else:
        buffer.extend(Stream(2).take(8))
