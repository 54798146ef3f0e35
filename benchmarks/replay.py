"""Frames per second written to and sampled from replay buffers: collectx, TorchRL, cpprb and Stable-Baselines3.

    python -m benchmarks.replay [--turns 5] [--seconds 0.4]

write    batches of 256 frames into a full buffer
sample   samples of 256 frames from a full buffer; if prioritised, each is followed by new priorities

A frame has an observation, an action, a reward, the next observation and an end, with the same types on all sides but
Stable-Baselines3's, whose ends are floats. `CartPole` has 100,000 frames; `Atari`, a stack of four 84x84 images, has
10,000. collectx's buffer is in shared memory and takes a lock; the others belong to one process. One thread; all sides
of a row are measured in turn. cpprb runs in `.bench/cpprb`, which `make bench-replay` makes.
"""

import argparse
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np

from benchmarks import fresh, printing

FRAMES = {"CartPole": 100_000, "Atari": 10_000}
# What a sample is, by side.
SIDES = {
    "collectx": "TensorDict",
    "collectx, all keys of a batch": "TensorDict",
    "TorchRL, LazyTensorStorage": "TensorDict",
    "cpprb": "NumPy arrays",
    "cpprb, next_of": "NumPy arrays",
    "Stable-Baselines3": "tensors",
}
_WHAT = ("write", "sample")
_BATCH = 256
# Envs of a batch.
_ENVS = 8

# Writes a batch, and samples.
Calls = tuple[Callable[[], Any], Callable[[], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.4, help="per turn, side, and writing or sampling (0.4)")
    options = parser.parse_args()
    printing.say_about("benchmarks.replay", "tensordict", "torchrl", "stable_baselines3")
    print("| sampling, frames | buffer | a sample | written/s | collectx / it | sampled/s | collectx / it |")
    print("|---|---|---|---|---|---|---|")
    for kind in ("uniform", "prioritised"):
        for frames in FRAMES:
            for side, rates in _rates(kind, frames, options.turns, options.seconds).items():
                print(f"| {kind}, {frames} | {side} | {rates} |", flush=True)


def _rates(kind: str, frames: str, turns: int, seconds: float) -> dict[str, str]:
    """The last cells of each side's row."""
    with ExitStack() as stack:
        sessions = {
            side: stack.enter_context(
                fresh.Session(
                    "benchmarks.replay",
                    python=fresh.python_of("cpprb") if side.startswith("cpprb") else sys.executable,
                    cores=fresh.cores()[:1],
                    **{"side": side, "frames": frames, "kind": kind},
                )
            )
            for side in SIDES
            if kind == "uniform" or side != "Stable-Baselines3"
        }
        failures: dict[str, str] = {}
        results: dict[str, dict[str, list[float]]] = {}
        for side, session in sessions.items():
            try:
                session.wait_until_ready()
                results[side] = {what: [] for what in _WHAT}
            except fresh.Failed as error:
                failures[side] = str(error).strip().splitlines()[-1]
        for _ in range(turns):
            for side, rates in results.items():
                for what, rate in sessions[side].turn(seconds).items():
                    rates[what].append(rate)
    rows = {side: f"{SIDES[side]} | | | | {failure}" for side, failure in failures.items()}
    for side, rates in results.items():
        figures = (
            f"{median(rates[what]):,.0f} | {printing.spread(printing.ratios(results['collectx'][what], rates[what]))}"
            for what in _WHAT
        )
        rows[side] = " | ".join([SIDES[side], *figures])
    return {side: rows[side] for side in sessions}


def measuring(side: str, frames: str, kind: str, **_: Any) -> Generator[dict[str, Any], float, None]:
    """Measures frames per second by `_WHAT`."""
    make = {"collectx": _ours, "TorchRL": _torchrl, "cpprb": _cpprb, "Stable-Baselines3": _sb3}[side.split(",")[0]]
    write, sample = make(side, frames, kind)
    calls = {"write": lambda: write() or _BATCH, "sample": lambda: sample() or _BATCH}
    for _ in range(-(-FRAMES[frames] // _BATCH) + 1):
        write()
    seconds = yield {}
    while True:
        for call in calls.values():
            fresh.taken(call, 0.1 * seconds)
        taken = {what: fresh.taken(call, seconds) for what, call in calls.items()}
        seconds = yield {what: count / elapsed_s for what, (count, elapsed_s) in taken.items()}


def _arrays(frames: str) -> dict[str, np.ndarray]:
    """A batch of 256 frames, by cpprb's names."""
    shape, dtype = ((4,), np.float32) if frames == "CartPole" else ((4, 84, 84), np.uint8)
    return {
        "obs": np.ones((_BATCH, *shape), dtype),
        "act": np.ones(_BATCH, np.int64),
        "rew": np.ones((_BATCH, 1), np.float32),
        "next_obs": np.ones((_BATCH, *shape), dtype),
        "done": np.zeros((_BATCH, 1), np.bool_),
    }


def _tensordict(frames: str, all_keys: bool = False) -> Any:
    """The same, by TorchRL's names; or what a collector delivers."""
    import torch
    from tensordict import TensorDict

    from collectx.batch import Layout, Leaf, batch_leaves, to_tensordict

    torch.set_num_threads(1)
    tensors = {name: torch.from_numpy(array) for name, array in _arrays(frames).items()}
    if all_keys:
        observation = tensors["obs"]
        leaf = Leaf(("observation",), tuple(observation.shape[1:]), observation.dtype)
        layout = Layout(batch_leaves([leaf], [Leaf(("action",), (), torch.int64)]), _ENVS, _BATCH // _ENVS)
        size = _ENVS, _BATCH // _ENVS
        return to_tensordict(layout.tensors(torch.zeros(layout.nbytes, dtype=torch.uint8), size), size)
    following = {"observation": tensors["next_obs"], "reward": tensors["rew"], "done": tensors["done"]}
    return TensorDict({"observation": tensors["obs"], "action": tensors["act"], "next": following}, [_BATCH])


def _ours(side: str, frames: str, kind: str) -> Calls:
    from collectx import ReplayBuffer
    from collectx.replay import PrioritizedSampler, UniformSampler

    sampler = UniformSampler(0) if kind == "uniform" else PrioritizedSampler(0.6, 0.4, seed=0)
    buffer = ReplayBuffer(FRAMES[frames], sampler=sampler, batch_size=_BATCH)
    return _tensordict_calls(buffer, kind, _tensordict(frames, all_keys=side != "collectx"))


def _torchrl(side: str, frames: str, kind: str) -> Calls:
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler, RandomSampler

    capacity = FRAMES[frames]
    sampler = RandomSampler() if kind == "uniform" else PrioritizedSampler(capacity, 0.6, 0.4)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), sampler=sampler, batch_size=_BATCH)
    return _tensordict_calls(buffer, kind, _tensordict(frames))


def _tensordict_calls(buffer: Any, kind: str, batch: Any) -> Calls:
    import torch

    priority = torch.rand(_BATCH)

    def write() -> None:
        buffer.extend(batch)

    def sample() -> None:
        drawn = buffer.sample()
        if kind != "uniform":
            buffer.update_priority(drawn["index"], priority)

    return write, sample


def _cpprb(side: str, frames: str, kind: str) -> Calls:
    import cpprb

    arrays, shared = _arrays(frames), side == "cpprb, next_of"
    fields = {name: {"shape": array.shape[1:] or 1, "dtype": array.dtype} for name, array in arrays.items()}
    if shared:
        del fields["next_obs"]
    make = cpprb.ReplayBuffer if kind == "uniform" else cpprb.PrioritizedReplayBuffer
    buffer = make(FRAMES[frames], fields, next_of="obs" if shared else None)
    priority = np.random.default_rng(0).random(_BATCH, np.float32)
    length = _BATCH // _ENVS
    parts = [{name: array[e * length :][:length] for name, array in arrays.items()} for e in range(_ENVS)]

    def write() -> None:
        if not shared:
            buffer.add(**arrays)
            return
        for part in parts:  # a frame's next observation is its successor's, but for an env's last
            buffer.add(**part)
            buffer.on_episode_end()

    def sample() -> None:
        drawn = buffer.sample(_BATCH)
        if kind != "uniform":
            buffer.update_priorities(drawn["indexes"], priority)

    return write, sample


def _sb3(side: str, frames: str, kind: str) -> Calls:
    """All frames of a batch are those of one step of as many envs, its fastest case."""
    import torch
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    torch.set_num_threads(1)
    arrays, infos = _arrays(frames), [{} for _ in range(_BATCH)]
    like = arrays["obs"]
    observation = spaces.Box(0, 255, like.shape[1:], like.dtype.type)
    buffer = ReplayBuffer(FRAMES[frames], observation, spaces.Discrete(2), "cpu", n_envs=_BATCH)

    def write() -> None:
        done = arrays["done"][:, 0]
        buffer.add(arrays["obs"], arrays["next_obs"], arrays["act"], arrays["rew"][:, 0], done, infos)

    def sample() -> None:
        buffer.sample(_BATCH)

    return write, sample


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        fresh.serve_turns(measuring)
    else:
        main()
