"""Continues a run: finds its newest checkpoint, checks it, and restores the record, the trainer and the random
generators. The collector restores itself and its workers.

Used in the trainer's process; the command line and jobs only ask whether there is a checkpoint. torch is imported only
to read one.

A reproduction repeats the delivery order of an async run, which its `metrics.jsonl` records (`recorded_order`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from collectx.checkpoints import STATE, Checkpoint, Checkpoints
from collectx.config.derived import is_elastic, share_of
from collectx.config.problem import counted
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError, DamagedFileError, misfit_of
from collectx.run.digest import Digest
from collectx.run.folder import saved_config
from collectx.run.folder.batch_line import BatchLine
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.result import LOSSES, ResultBuilder

if TYPE_CHECKING:
    from collectx.collector.saved_state import CollectorState
    from collectx.trainer.base import Trainer


NO_CHECKPOINT = "contains no checkpoint, so the run starts over"


def starts_over(run_folder: RunFolder) -> bool:
    """Whether the run in a folder can only start over: it is not completed, and left no checkpoint."""
    return not run_folder.is_completed and not run_folder.has_checkpoint


def no_checkpoint(run_folder: RunFolder) -> str:
    return f"{run_folder.path} contains no checkpoint to continue from."


def check_ends(checkpoint: Checkpoint, cfg: RunConfig, minutes: float = 0.0) -> None:
    """Raises `ConfigError` if a checkpoint is already past the end that `cfg` sets. `minutes` is how long the run had
    taken by then, which only the state in the checkpoint tells."""
    frames, batches = checkpoint.manifest.get("frames"), checkpoint.manifest.get("batches")
    if not isinstance(frames, int) or not isinstance(batches, int):
        return  # `ResumePoint` refuses this checkpoint
    # Of each end, by how much it may be exceeded: a run delivers whole batches.
    ends = (
        ("collector.total_frames", cfg.collector.total_frames, frames, "frames", cfg.collector.frames_per_batch),
        ("run.max_batches", cfg.run.max_batches, batches, "batches", 1),
        ("run.max_minutes", cfg.run.max_minutes, round(minutes, 2), "minutes", 0),
    )
    text = "{}={} is too small: the checkpoint {} already contains {:,} {}. Choose more than {:,}."
    problems = [
        text.format(name, end, checkpoint.path, done, what, done)
        for name, end, done, what, unit in ends
        if end is not None and 0 <= end <= done - unit
    ]
    if problems:
        raise ConfigError(*problems)


class ResumePoint:
    """The point that a run continues from: the newest checkpoint that is not damaged, and whose batches all have their
    lines in `metrics.jsonl`. Raises `ConfigError` if there is none.

    Args:
        rank: the learner that continues, from its part of the checkpoint.
        batches: the batches of the checkpoint that learner 0 has chosen, for the others.

    Attributes:
        batches: how many batches the run had delivered at the checkpoint.
        num_learners: how many learners the run had then.
        state: the content of `state.pt`.
        collector: the collector's part of `state`, which `collectx.collector.start_collector` takes.
        order: the order in which an async run delivered the batches after the checkpoint, which are collected again;
            see `collectx.run.resume.recorded_order`. Empty if it cannot be repeated.
        damaged: messages about newer checkpoints that are damaged.
        empty_buffers: names of the trainer's replay buffers that the checkpoint does not contain, see `load_trainer`.
    """

    def __init__(self, run_folder: RunFolder, cfg: RunConfig, rank: int = 0, batches: int | None = None):
        checkpoints = Checkpoints(run_folder.checkpoints)

        def load(checkpoint: Checkpoint) -> tuple[Checkpoint, dict[str, Any], Digest, Iterator[BatchLine]]:
            lines = run_folder.read_metrics()
            part = _part(run_folder, checkpoint, cfg, rank)
            return *part, _digest(checkpoint, run_folder.metrics, lines), lines

        if batches is None:
            found, self.damaged = checkpoints.newest(load)
        else:
            found, self.damaged = load(Checkpoint(checkpoints.folder(batches), names=[STATE])), []
        if found is None:
            raise ConfigError(checkpoints.no_intact(self.damaged) if self.damaged else no_checkpoint(run_folder))
        self._checkpoint, self.state, self._digest, lines = found
        self.batches: int = self._checkpoint.manifest["batches"]
        self.num_learners: int = self._checkpoint.manifest.get("num_learners", 1)
        self.collector: CollectorState = self.state["collector"]
        check_ends(self._checkpoint, cfg, self.state["wall_s"] / 60)
        self.moved = saved_config.moved(run_folder, cfg)
        self.order = self._order(run_folder, cfg, lines, rank)
        self.empty_buffers: list[str] = []

    def _order(
        self, run_folder: RunFolder, cfg: RunConfig, lines: Iterator[BatchLine], rank: int
    ) -> list[tuple[int, ...]]:
        if cfg.collector.schedule != "async":
            return []
        if is_elastic(cfg.collector) or not saved_config.is_equal_run(run_folder.newest_config, cfg):
            return []
        if any("reason" in each["rollout"] for each in self.collector["workers"].values()):
            return []
        try:
            if has_losses(run_folder.read_events(), self.batches):
                return []
            return order_of(run_folder.metrics, lines, cfg.trainer.num_learners, rank, cfg.collector.num_workers)
        except (LookupError, TypeError, ValueError):
            return []  # lines after the last sync may be damaged

    def rewind(self, run_folder: RunFolder) -> None:
        """Removes the lines and checkpoints of batches after this checkpoint from the folder."""
        for rank in range(self.num_learners):
            run_folder.checkpoints_of(rank).remove_after(self.batches)
        if run_folder.metrics.exists():
            with open(run_folder.metrics, "rb") as file:
                for _ in range(self.batches):
                    file.readline()
                position = file.tell()
            os.truncate(run_folder.metrics, position)

    def load_record(self, record: ResultBuilder) -> None:
        """Restores the statistics and the digest of the run."""
        # The start of this process counts, as the first one's did.
        record.statistics.load(self.state["statistics"], record.start_s)
        record.start_s -= self.state["wall_s"]
        record.evaluated = self.state.get("evaluated", {})  # none in checkpoints of earlier versions
        if record.digest is not None:
            record.digest = self._digest

    def load_policy(self, policy: Any) -> None:
        """Gives a policy the weights that were published last, if the trainer, whose state would contain them, saved
        none. Raises `ConfigError` if they are those of another network."""
        from collectx.policy.flat_weights import FlatWeights

        weights = self.collector["weights"]
        if self.state["trainer"] is None and weights.numel():
            try:
                FlatWeights(policy).read(weights)
            except ValueError as error:
                raise ConfigError(
                    f"cannot continue from {self._checkpoint.path}: the weights of the policy have another size than "
                    "the saved ones. Restore the code of the run."
                ) from error

    def load_trainer(self, trainer: Trainer) -> None:
        """Restores the trainer and its replay buffers. Raises `ConfigError` if the trainer does not accept the state,
        or it defines `state_dict` but not `load_state_dict`."""
        name, state = type(trainer).__name__, self.state["trainer"]
        try:
            if state:
                trainer.load_state_dict(state)
            for key, buffer in getattr(trainer, "replay_buffers", {}).items():
                if (saved := buffer_file(key)) in self._checkpoint:
                    buffer.load_state_dict(self._checkpoint.load(saved, mmap=True))
                else:
                    self.empty_buffers.append(key)
        except Exception as error:
            text = (
                f"{name} does not accept its saved state ({misfit_of(error)}). Restore the code of the run, or mend "
                "load_state_dict."
            )
            if not hasattr(trainer, "load_state_dict"):
                text = f"{name} has no load_state_dict. Add a method load_state_dict(state), the inverse of state_dict."
            raise ConfigError(f"cannot continue from {self._checkpoint.path}: {text}") from error

    def load_generators(self) -> None:
        """Restores the random generators of this process. Call it right before training."""
        from collectx import state

        state.load_generators(self.state["generators"])


def resume_point(run_folder: RunFolder, cfg: RunConfig, say: Callable[[str], None]) -> ResumePoint | None:
    """Returns the point from which the run in the folder continues; None if it left no checkpoint. `say` receives
    messages. Raises `ConfigError` as `ResumePoint` does, or if `cfg` does not fit the saved state."""
    if starts_over(run_folder):
        # A folder with neither file belongs to a submitted job that has not begun.
        if run_folder.metrics.exists() or run_folder.result.exists():
            say(f"{run_folder.path} {NO_CHECKPOINT}")
        return None
    if problems := saved_config.problems(run_folder, cfg):
        raise ConfigError(*problems)
    point = ResumePoint(run_folder, cfg)
    for text in point.damaged:
        say(f"{text}. The run continues from an earlier checkpoint.")
    return point


def buffer_file(name: str) -> str:
    """Returns the name of a replay buffer's file in a checkpoint."""
    return f"replay-{quote(name, safe='')}.pt"


def _load(checkpoint: Checkpoint) -> tuple[Checkpoint, dict[str, Any]]:
    """Returns a checkpoint and its state, on the CPU. Raises `DamagedFileError` if it does not belong to the
    manifest."""
    manifest, state = checkpoint.manifest, checkpoint.load()
    try:
        counts = [(each["batches"], each["frames"]) for each in (manifest, state["statistics"]["sums"])]
        is_timed = isinstance(manifest["time"], float)
    except (LookupError, TypeError) as error:
        raise DamagedFileError(f"{checkpoint.path} is not the checkpoint of a run: {error!r}") from error
    if counts[0] != counts[1] or counts[0][0] != int(checkpoint.path.name.rpartition("-")[2]) or not is_timed:
        text = f"manifest.json and state.pt belong to different checkpoints: (batches, frames) {counts}"
        raise DamagedFileError(f"{checkpoint.path}: {text}")
    return checkpoint, state


def _part(run_folder: RunFolder, first: Checkpoint, cfg: RunConfig, rank: int) -> tuple[Checkpoint, dict[str, Any]]:
    """Returns a learner's part of the checkpoint `first`, and its state. Learner 0 verifies all parts. If the number of
    learners has changed, a learner takes the part of an earlier one, and its workers begin new episodes."""
    # None in checkpoints of one learner by earlier versions.
    before, batches = first.manifest.get("num_learners", 1), int(first.path.name)
    if not isinstance(before, int) or before < 1:
        raise DamagedFileError(f"{first.path} is not the checkpoint of a run: num_learners is {before!r}")

    def part(which: int, names: Collection[str] | None) -> Checkpoint:
        return Checkpoint(run_folder.checkpoints_of(which).folder(batches), names) if which else first

    others = [part(which, None) for which in range(1, before) if rank == 0]
    checkpoint, state = _load(part(rank % before, None))
    if before != cfg.trainer.num_learners:
        from collectx.collector.saved_state import without_episodes

        parts = [first, *(others or [part(which, [STATE]) for which in range(1, before)])]
        saved = [_load(each)[1]["collector"] for each in parts]
        state["collector"] = without_episodes(saved, share_of(cfg).collector.num_workers, cfg.trainer.num_learners)
    return checkpoint, state


def _digest(checkpoint: Checkpoint, metrics: Path, lines: Iterator[BatchLine]) -> Digest:
    """Returns the digest of a checkpoint's batches. Consumes their lines, and raises `DamagedFileError` if one is
    missing or damaged."""
    batches, all_frames = checkpoint.manifest["batches"], checkpoint.manifest["frames"]
    # The file may be larger than the memory.
    digest, count, frames = Digest(), 0, 0
    for count, line in enumerate(islice(lines, batches), start=1):
        frames = line.frames
        try:
            digest.resume([] if line.digest is None else [line.digest])
        except ValueError as error:
            raise DamagedFileError(f"{metrics}: line {count}: its digest is {line.digest!r}") from error
    if (count, frames) != (batches, all_frames):
        found = f"{counted(count, 'batch', 'batches')} ({frames:,} frames)"
        expected = f"{counted(batches, 'batch', 'batches')} ({all_frames:,} frames)"
        raise DamagedFileError(f"{metrics} contains {found}, but the checkpoint {checkpoint.path} counts {expected}")
    return digest


def recorded_order(
    folder: str | Path, num_learners: int = 1, rank: int = 0, num_workers: int = 0
) -> list[tuple[int, ...]]:
    """Returns for each batch of an async run: (worker, policy version at its start, newest policy version at its
    delivery, settings version at its start, newest settings version at its delivery). Raises `ValueError` if the order
    cannot be repeated (the message says why), or `DamagedFileError` if a file of the folder cannot be read. With
    several learners, describes the part of the learner `rank`, and numbers its workers from 0 if the run's
    `num_workers` are given."""
    run_folder = RunFolder(folder)
    if has_losses(run_folder.read_events()):
        raise ValueError("that run lost a worker, and did not record between which two batches")
    batches = order_of(run_folder.metrics, run_folder.read_metrics(), num_learners, rank, num_workers)
    if not batches:
        raise ValueError("it contains no delivered batch")
    return batches


def has_losses(events: Iterable[dict[str, Any]], after: int = 0) -> bool:
    """Whether a worker was lost while the run collected its batches after the first `after`. A loss does not count if
    the run was resumed from a checkpoint before it, as its batches were collected again; nor does a failure that ended
    the run."""
    num_losses, at_checkpoint = 0, {}
    for event in events:
        name, batches = event.get("event"), event.get("batches")
        if name in LOSSES:
            num_losses += 1
        elif name == "checkpoint":
            at_checkpoint[batches] = num_losses
        elif name == "resumed":
            num_losses = at_checkpoint.get(batches, num_losses)
    return num_losses > at_checkpoint.get(after, 0)


def order_of(
    path: Path, lines: Iterable[BatchLine], num_learners: int = 1, rank: int = 0, num_workers: int = 0
) -> list[tuple[int, ...]]:
    """Returns the same as `recorded_order`, from lines of `metrics.jsonl`; `path` names the file in errors."""
    batches: list[tuple[int, ...]] = []
    for line in lines:
        if len(line.workers) != num_learners:
            raise ValueError(
                f"{path} belongs to a sync run ({len(line.workers)} workers per batch), and only an async run has an "
                "order to repeat"
            )
        entry = line.workers[rank]
        settings = entry.settings or 0, line.settings or 0
        batches.append(
            (entry.worker - rank * num_workers // num_learners, entry.policy_version, line.version, *settings)
        )
    return batches
