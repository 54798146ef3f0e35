"""Frames per second written to and sampled from the replay buffers of collectx and TorchRL, in one process each.

write    batches of 256 frames into a full buffer
sample   samples of 256 frames from a full buffer; with new priorities if prioritised

The frames are those of a CartPole worker, or of an Atari one (a stack of four 84x84 images and its successor).
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import fresh

FRAMES = {"cartpole": 100_000, "atari": 10_000}
KINDS = ("uniform", "prioritized")
# collectx's buffer is in shared memory; TorchRL's storages are in memory of one process, or memory-mapped.
SIDES = ("ours", "ours_on_disk", "torchrl_tensor", "torchrl_memmap")
_BATCH = 256


def measure(side: str, frames: str, kind: str, seconds: float) -> dict[str, Any]:
    """Frames per second by `what`, medians of five equal parts of the time."""
    import torch

    torch.set_num_threads(1)
    batch = _batch(frames)
    write, sample = (_ours if side.startswith("ours") else _torchrl)(side, kind, FRAMES[frames])
    for _ in range(-(-FRAMES[frames] // _BATCH) + 1):
        write(batch)
    return {"write": _BATCH * _rate(lambda: write(batch), seconds), "sample": _BATCH * _rate(sample, seconds)}


def why_not(kind: str) -> str | None:
    """Returns why TorchRL cannot be measured here; None if it can."""
    try:
        fresh.run("benchmarks.replay", side="torchrl_tensor", frames="cartpole", kind=kind, seconds=0.1)
    except fresh.Failed as error:
        return str(error).strip().splitlines()[-1]
    return None


def _rate(call: Callable[[], Any], seconds: float) -> float:
    """Calls per second."""
    rates = []
    for _ in range(5):
        calls, began = 0, perf_counter()
        while (now := perf_counter()) - began < seconds / 5:
            call()
            calls += 1
        rates.append(calls / (now - began))
    return median(rates)


def _batch(frames: str) -> Any:
    import torch

    from collectx.batch import Layout, Leaf, batch_leaves, to_tensordict

    shape, dtype = ((4,), torch.float32) if frames == "cartpole" else ((4, 84, 84), torch.uint8)
    leaves = batch_leaves([Leaf(("observation",), shape, dtype)], [Leaf(("action",), (), torch.int64)])
    layout = Layout(leaves, 8, _BATCH // 8)
    memory = torch.zeros(layout.nbytes, dtype=torch.uint8)
    return to_tensordict(layout.tensors(memory, (8, _BATCH // 8)), (8, _BATCH // 8))


_Calls = tuple[Callable[[Any], Any], Callable[[], Any]]


def _ours(side: str, kind: str, capacity: int) -> _Calls:
    import tempfile

    import torch

    from collectx import ReplayBuffer
    from collectx.replay import PrioritizedSampler, UniformSampler

    sampler = UniformSampler(0) if kind == "uniform" else PrioritizedSampler(0.6, 0.4, seed=0)
    scratch = tempfile.gettempdir() if side == "ours_on_disk" else None
    buffer = ReplayBuffer(capacity, sampler=sampler, batch_size=_BATCH, scratch_dir=scratch)
    priority = torch.rand(_BATCH)

    def sample() -> None:
        drawn = buffer.sample()
        if kind == "prioritized":
            buffer.update_priority(drawn["index"], priority)

    return buffer.extend, sample


def _torchrl(side: str, kind: str, capacity: int) -> _Calls:
    import torch
    from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler, RandomSampler

    storage = LazyTensorStorage(capacity) if side == "torchrl_tensor" else LazyMemmapStorage(capacity)
    sampler = RandomSampler() if kind == "uniform" else PrioritizedSampler(capacity, 0.6, 0.4)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=_BATCH)
    priority = torch.rand(_BATCH)

    def sample() -> None:
        drawn = buffer.sample()
        if kind == "prioritized":
            buffer.update_priority(drawn["index"], priority)

    return lambda batch: buffer.extend(batch.reshape(-1)), sample


if __name__ == "__main__":
    fresh.serve(measure)
