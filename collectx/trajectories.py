"""Makes batches of complete trajectories, and masks for padded batches."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from collectx.batch import POLICY_VERSION, SETTINGS_VERSION, TRAJ_IDS, Key, as_key
from collectx.errors import DataError

MASK = ("collector", "mask")
# Seconds without a complete batch of trajectories after which a message says so.
_SAY_S = 10.0


def split_trajectories(
    batch: TensorDictBase,
    *,
    prefix: str | Key | None = None,
    trajectory_key: str | Key | None = None,
    done_key: str | Key | None = None,
    as_nested: bool = False,
) -> TensorDictBase:
    """Splits a batch into trajectories, in the order of their ids. Leaves out padding: frames whose mask is False, or
    without a mask, whose trajectory id is negative.

    Args:
        batch: `[*, time]`, a batch whose last dimension is time; it may be padded.
        prefix: the key above "traj_ids" and "mask"; None: "collector" if the batch contains it, otherwise the root.
        trajectory_key: the key of the trajectory ids, instead of `prefix`; the mask is stored beside them.
        done_key: the flag below "next" that ends a trajectory, for a batch without trajectory ids; None: "done". The
            result then contains ids, from 0.
        as_nested: whether to return nested tensors of torch instead of padding.

    Returns:
        `[trajectories, longest]`, padded with zeros at the end, in new memory on the batch's device. The mask,
        `("collector", "mask")` bool, is True for frames. A trajectory in several places of the batch (from envs that
        spend a step on a reset) is joined. With `as_nested`, `[trajectories, -1]` without a mask.

    Raises:
        TypeError: the batch is not a TensorDict.
        ValueError: the batch contains neither trajectory ids nor `done_key`.

    Examples:
        >>> with Collector(
        ...     lambda: gymnasium.make("CartPole-v1"), frames_per_batch=200, total_frames=200
        ... ) as collector:
        ...     trajectories = split_trajectories(next(collector))
        >>> int(trajectories["collector", "mask"].sum())
        200
    """
    if not isinstance(batch, TensorDictBase):
        raise TypeError(f"split_trajectories() needs a TensorDict, but got a value of type {type(batch).__name__}.")
    if trajectory_key is None:
        prefix = "collector" if prefix is None and "collector" in batch else prefix
        trajectory_key = (*(() if prefix is None else as_key(prefix)), "traj_ids")
    key = as_key(trajectory_key)
    frames = batch.reshape(batch.shape.numel())
    keys = frames.keys(include_nested=True)
    if key not in keys:
        done = ("next", *as_key(done_key or "done"))
        if done not in keys:
            names = ", ".join(repr(name) for name in map(str, batch.keys())) or "no entries"
            raise ValueError(
                f"split_trajectories() needs {'.'.join(key)!r} or {'.'.join(done)!r}, but the batch only contains "
                f"{names}. Pass a batch of a collector."
            )
        frames = frames.copy().set(key, _count_ends(batch[done], batch.shape))
    if (is_filled := filled(frames, key)) is not None:
        frames = frames[is_filled]
    _, lengths, order = _order(frames[key])
    frames, mask_key = frames[order], (*key[:-1], "mask")
    if not as_nested:
        return _pad(frames, lengths, mask_key)
    sizes, frames = lengths.tolist(), frames.exclude(mask_key)
    return frames.apply(lambda leaf: torch.nested.as_nested_tensor([*leaf.split(sizes)]), batch_size=[len(sizes), -1])


def filled(batch: TensorDictBase, trajectory_key: Key = TRAJ_IDS) -> torch.Tensor | None:
    """Returns which frames of a batch are not padding, bool of the batch's shape; None: all of them. The mask is beside
    the trajectory ids; without one, padding has negative ids."""
    keys, mask_key = batch.keys(include_nested=True), (*trajectory_key[:-1], "mask")
    mask = batch[mask_key] if mask_key in keys else None
    if mask is None or mask.dtype != torch.bool or mask.shape != batch.shape:
        mask = batch[trajectory_key] >= 0 if trajectory_key in keys else None
    return None if mask is None or bool(mask.all()) else mask


def _count_ends(done: torch.Tensor, size: torch.Size) -> torch.Tensor:
    """Returns trajectory ids, `[frames]` int64: each row of a batch of this size begins a trajectory, and so does each
    frame after one that is done."""
    begins = torch.ones(size, dtype=torch.bool, device=done.device)
    begins[..., 1:] = (done.flatten(len(size)).any(-1) if done.ndim > len(size) else done)[..., :-1]
    return begins.flatten().cumsum(0) - 1


def _order(traj_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the sorted trajectory ids; their numbers of frames; and the places of the frames, in order of id and
    time."""
    ids, lengths = torch.unique(traj_ids, return_counts=True)
    # A stable sort keeps the frames of a trajectory in order of time.
    return ids, lengths, torch.argsort(traj_ids, stable=True)


def add_mask(batch: TensorDict, steps: Sequence[int]) -> None:
    """Adds `("collector", "mask")` to a stacked batch, `[workers, ..., time]`. Zeroes missing frames, and sets their
    trajectory id to -1.

    Args:
        steps: the number of filled steps of each part.
    """
    mask = torch.zeros(batch.shape, dtype=torch.bool, device=batch.device)
    for part, filled, row in zip(batch.unbind(0), steps, mask.unbind(0), strict=True):
        row[..., :filled] = True
        rest = part[..., filled:]
        rest.zero_()
        rest[TRAJ_IDS].fill_(-1)
    batch[MASK] = mask


def _pad(frames: TensorDictBase, lengths: torch.Tensor, mask_key: Key = MASK) -> TensorDictBase:
    """Splits successive frames into trajectories of these lengths, and pads them."""
    longest = int(lengths.max()) if len(lengths) else 0
    mask = torch.arange(longest, device=lengths.device) < lengths[:, None]
    place = mask.reshape(-1).nonzero().squeeze(-1)
    padded = torch.zeros_like(frames[:1]).expand(mask.numel()).clone()
    padded[place] = frames
    split: Any = padded.view(len(lengths), longest)
    split.names = [None, "time"]
    split[mask_key] = mask
    return split


class Assembler:
    """Joins the frames of trajectories until they have ended.

    Args:
        trajs_per_batch, traj_format: see `conf/collector/multi_sync.yaml`.
        ends_with_batch: whether trajectories end with their batch.
        post_traj: called with each ended trajectory, `[time]`; its result replaces the trajectory, None drops it.
            `add` raises `DataError` if the result is no trajectory.
        say: called once with a message if no batch is complete after some seconds of adding frames.
        prefix: stands before option names in this message.
        env_of: returns a key for the env of a trajectory id. An env that begins a trajectory before its last one has
            ended was reset, or its worker was lost: the frames of the last one are dropped. None: they are kept.

    Attributes:
        num_unfinished: number of frames of unfinished trajectories.
    """

    def __init__(
        self,
        trajs_per_batch: int,
        traj_format: str,
        ends_with_batch: bool,
        post_traj: Callable[[TensorDictBase], TensorDictBase | None] | None = None,
        say: Callable[[str], object] = lambda text: None,
        prefix: str = "",
        env_of: Callable[[int], Hashable] | None = None,
    ):
        self._say = say
        self._prefix = prefix
        self._has_said = False
        # When frames were first added after the last batch was taken.
        self._since_s: float | None = None
        self._post_traj = post_traj
        self._trajs_per_batch = trajs_per_batch
        self._format = traj_format
        self._ends_with_batch = ends_with_batch
        self._unfinished: dict[int, list[TensorDictBase]] = {}
        # Ids of trajectories whose beginnings were dropped, so their later frames are dropped too.
        self._dropped: set[int] = set()
        self._env_of = env_of
        # The newest trajectory of each env, until it ends.
        self._newest: dict[Hashable, int] = {}
        self.forget()

    def forget(self) -> None:
        """Drops all frames, and the later frames of trajectories that are unfinished."""
        self._dropped |= set(self._unfinished)
        self.num_unfinished = 0
        # Whether frames have a settings version.
        self._has_settings = False
        self._unfinished = {}
        self._ended: deque[TensorDictBase] = deque()

    def state(self) -> dict[str, Any]:
        """Returns a copy of the frames as tensors and plain data, for `load`."""
        unfinished = {index: [_saved(each) for each in pieces] for index, pieces in self._unfinished.items()}
        ended = [_saved(each) for each in self._ended]
        return {"unfinished": unfinished, "ended": ended, "dropped": sorted(self._dropped)}

    def load(self, state: dict[str, Any]) -> None:
        """Restores the result of `state`."""
        self._dropped = set(state["dropped"])
        self._unfinished = {
            index: [_restored(each) for each in pieces] for index, pieces in state["unfinished"].items()
        }
        self._ended = deque(_restored(each) for each in state["ended"])
        self._has_settings = False
        self.num_unfinished = sum(len(each) for pieces in self._unfinished.values() for each in pieces)
        self._newest = {}
        for index in sorted(self._dropped.union(self._unfinished)):
            self._drop_earlier(index)

    def next(self, collect: Callable[[], TensorDictBase]) -> TensorDictBase:
        """Returns the next batch of trajectories, from batches that `collect` returns."""
        while (trajectories := self.take()) is None:
            self.add(collect())
        return trajectories

    def add(self, batch: TensorDictBase) -> None:
        """Copies the frames of a batch, `[*, time]`, without padding. The frames of an env must arrive in order of
        time."""
        frames = batch.reshape(-1)
        if (is_filled := filled(frames)) is not None:
            frames = frames[is_filled]
        if not self._has_settings and SETTINGS_VERSION in frames.keys(include_nested=True):
            self._has_settings = True
            self._add_settings_version()
        ids, lengths, order = _order(frames[TRAJ_IDS])
        for index, places in zip(ids.tolist(), order.split(lengths.tolist()), strict=True):
            self._drop_earlier(index)
            has_ended = bool(frames["next", "done"][places[-1]].all())
            if has_ended and self._env_of is not None:
                self._newest.pop(self._env_of(index), None)
            if index in self._dropped:
                if has_ended:
                    self._dropped.remove(index)
                continue
            pieces = self._unfinished.setdefault(index, [])
            pieces.append(frames[places])
            self.num_unfinished += len(places)
            if has_ended:
                self.num_unfinished -= sum(map(len, pieces))
                trajectory: TensorDictBase | None = torch.cat(self._unfinished.pop(index))
                if self._post_traj is not None:
                    trajectory = self._post_traj(_joined([trajectory]))
                    self._check(trajectory)
                if trajectory is not None:
                    self._ended.append(trajectory)
        if self._ends_with_batch:
            self._unfinished.clear()
            self._newest.clear()
            self.num_unfinished = 0
        if not self._has_said:
            self._note_wait()

    def _check(self, trajectory: Any) -> None:
        """Raises `DataError` if `trajectory`, which `post_traj` returned, is none, or has other keys than the one
        before it."""
        if trajectory is None:
            return
        if not isinstance(trajectory, TensorDictBase) or trajectory.ndim != 1 or not len(trajectory):
            wrong = f"a value of type {type(trajectory).__name__}"
            if isinstance(trajectory, TensorDictBase):
                wrong = f"a TensorDict of shape {list(trajectory.shape)}"
            raise DataError(
                f"post_traj returned {wrong}. Return a TensorDict of shape [time] with at least one frame, or None to "
                "drop the trajectory."
            )
        last = self._ended[-1] if self._ended else trajectory
        if differing := {*trajectory.keys(True, True)} ^ {*last.keys(True, True)}:
            names = ", ".join(sorted(".".join(as_key(key)) for key in differing))
            raise DataError(
                f"post_traj returned trajectories with different keys: only some have {names}. Return the same keys "
                "for all."
            )

    def _add_settings_version(self) -> None:
        """Adds the version 0 to frames from before the first setting, so that later ones can be joined to them."""
        for frames in itertools.chain(*self._unfinished.values(), self._ended):
            keys = frames.keys(include_nested=True)
            # What `post_traj` returned may lack the policy version.
            if SETTINGS_VERSION not in keys and POLICY_VERSION in keys:
                frames[SETTINGS_VERSION] = torch.zeros_like(frames[POLICY_VERSION])

    def _note_wait(self) -> None:
        now_s, count = time.monotonic(), len(self._ended)
        if self._since_s is None:
            self._since_s = now_s
        if count < self._trajs_per_batch and now_s - self._since_s > _SAY_S:
            self._has_said = True
            option = f"{self._prefix}trajs_per_batch={self._trajs_per_batch}"
            self._say(
                f"only {count} of the {self._trajs_per_batch} trajectories of a batch ({option}) ended within "
                f"{now_s - self._since_s:.0f} s, and memory holds {self.num_unfinished:,} frames of unfinished ones. "
                f"If these never end, cut each after N frames with {self._prefix}max_frames_per_traj=N."
            )

    def _drop_earlier(self, index: int) -> None:
        """Notes that an env is in this trajectory, and drops its last one if that has not ended."""
        if self._env_of is None:
            return
        env = self._env_of(index)
        if (last := self._newest.setdefault(env, index)) < index:
            self.num_unfinished -= sum(map(len, self._unfinished.pop(last, ())))
            self._dropped.discard(last)
            self._newest[env] = index

    def take(self) -> TensorDictBase | None:
        """Returns `trajs_per_batch` ended trajectories; None if there are fewer."""
        if len(self._ended) < self._trajs_per_batch:
            return None
        self._since_s = None
        chosen = [self._ended.popleft() for _ in range(self._trajs_per_batch)]
        if self._format == "cat":
            return _joined(chosen)
        return _pad(_joined(chosen), torch.tensor([len(each) for each in chosen], device=chosen[0].device))

    def take_ended(self) -> list[TensorDictBase]:
        """Returns all ended trajectories, `[time]` each, and forgets them."""
        ended, self._ended = [*self._ended], deque()
        return ended

    def take_unfinished(self, min_frames: int) -> list[TensorDictBase]:
        """Returns the unfinished trajectories that have at least `min_frames` frames, `[time]` each, and forgets these
        frames. When such a trajectory ends, only its later frames are taken."""
        lengths = {index: sum(map(len, pieces)) for index, pieces in self._unfinished.items()}
        chosen = [index for index, length in lengths.items() if length >= min_frames]
        self.num_unfinished -= sum(lengths[index] for index in chosen)
        return [torch.cat(self._unfinished.pop(index)) for index in chosen]

    def unfinished(self) -> list[TensorDictBase]:
        """Returns the unfinished trajectories, `[time]` each."""
        return [torch.cat(pieces) for pieces in self._unfinished.values()]

    def writes(self, count: int | None) -> Iterator[TensorDictBase]:
        """Yields all ended trajectories joined along time, `[time]`, at most `count` at a time; None: all at once."""
        while self._ended:
            self._since_s = None
            size = len(self._ended) if count is None else min(count, len(self._ended))
            yield _joined([self._ended.popleft() for _ in range(size)])


def _saved(frames: TensorDictBase) -> tuple[dict[str, Any], int, str, list]:
    nested = [(key, list(part.shape)) for key, part in frames.items(True) if isinstance(part, TensorDictBase)]
    return frames.clone().to_dict(), len(frames), str(frames.device), nested


def _restored(saved: tuple[dict[str, Any], int, str, list]) -> TensorDictBase:
    content, length, device, nested = saved
    frames = TensorDict.from_dict(content, batch_size=[length], device=None if device == "None" else device)
    for key, size in nested:
        frames.get(key).batch_size = size
    return frames


def _joined(trajectories: list[TensorDictBase]) -> TensorDictBase:
    joined: Any = torch.cat(trajectories)
    joined.names = ["time"]
    return joined
