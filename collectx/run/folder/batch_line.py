"""A line of `metrics.jsonl`: `BatchLine`, which a run writes for each batch, and which all readers of these files get.

Imports nothing heavy: `collectx status` and `watch` read many files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectx.errors import DamagedFileError

TIMES = ("env_s", "policy_s", "wait_s", "send_s")
"""The measured times of a worker's part of a batch, as `SlotReport` and `metrics.jsonl` name them."""


@dataclass(slots=True)
class PartTotals:
    """One worker's sums over its parts of batches: seconds of each of `TIMES`, frames, ended episodes and their
    returns. `lag` is the number of versions that its last part was behind the newest."""

    spent_s: tuple[float, ...] = (0.0,) * len(TIMES)
    frames: int = 0
    lag: int = 0
    episodes: int = 0
    total_return: float = 0.0

    def add(self, later: PartTotals) -> None:
        """Adds the sums of later parts."""
        self.spent_s = tuple(map(sum, zip(self.spent_s, later.spent_s, strict=True)))
        self.frames += later.frames
        self.lag = later.lag
        self.episodes += later.episodes
        self.total_return += later.total_return

    def since(self, earlier: PartTotals) -> PartTotals:
        """Returns the sums since an earlier copy."""
        return PartTotals(
            tuple(now - before for now, before in zip(self.spent_s, earlier.spent_s, strict=True)),
            self.frames - earlier.frames,
            self.lag,
            self.episodes - earlier.episodes,
            self.total_return - earlier.total_return,
        )

    def shares(self) -> tuple[float, ...]:
        """Returns the share of each of `TIMES`; they sum to 1, or are all 0 without measurements."""
        total_s = sum(self.spent_s)
        return tuple(each / total_s if total_s > 0 else 0.0 for each in self.spent_s)


@dataclass(slots=True)
class WorkerEntry:
    """A worker's part of a batch: the policy and settings versions at its start; `settings` is None before the first
    setting. A complete entry has the sums since the worker's previous complete one; the others have no `totals`."""

    worker: int
    policy_version: int
    settings: int | None = None
    totals: PartTotals | None = None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> WorkerEntry:
        """Returns the entry that `to_json` made."""
        totals = None
        if "frames" in entry:
            spent_s, episodes = tuple(float(entry[name]) for name in TIMES), int(entry["episodes"])
            total_return = episodes * float(entry["return"] or 0.0)
            totals = PartTotals(spent_s, int(entry["frames"]), int(entry["lag"]), episodes, total_return)
        return cls(int(entry["worker"]), int(entry["policy_version"]), entry.get("settings"), totals)

    def to_json(self) -> dict[str, Any]:
        """Returns the entry as plain data; `return` is the mean of the episodes."""
        entry: dict[str, Any] = {"worker": self.worker, "policy_version": self.policy_version}
        if self.settings is not None:
            entry["settings"] = self.settings
        if (totals := self.totals) is not None:
            entry |= {"lag": totals.lag, "frames": totals.frames}
            entry |= {name: round(spent_s, 6) for name, spent_s in zip(TIMES, totals.spent_s, strict=True)}
            mean_return = _short(totals.total_return / totals.episodes) if totals.episodes else None
            entry |= {"episodes": totals.episodes, "return": mean_return}
        return entry


@dataclass(slots=True, kw_only=True)
class BatchLine:
    """What a run records of one batch. A value that a batch lacks is None; in JSON, its key is missing.

    Attributes:
        batch: index of the batch.
        time: when it was delivered, in seconds since 1970.
        frames: frames since the start of the run.
        frames_per_s: the batch's frames divided by the seconds since the previous delivery; None before the second.
        waited_s: seconds in which the trainer waited for it.
        version: newest policy version at its delivery.
        lag: mean lag of its frames, in versions.
        settings: newest settings version at its delivery; None before the first setting.
        episodes, batch_return, batch_length: how many episodes ended in it, their mean return (in JSON, `return`) and
            their mean length (`length`).
        num_episodes: how many episodes have ended since the start of the run; None if none ended in this batch.
        mean_return: mean return of the last `RETURN_WINDOW` episodes.
        resumed: whether it is the first batch after a resume.
        workers: entries of some workers, see `WorkerEntry`.
        taking_part: how many workers take part, and how many were started; None if all take part.
        learners: with several learners, the seconds for which each waited for its workers, and for the others.
        digest: see `trainer.digest`.
        scalars: what the trainer logged, by name; in JSON, NaN and infinity are null.
        eval: the result of an evaluation that ended since the previous line.
    """

    batch: int
    time: float
    frames: int
    frames_per_s: float | None
    waited_s: float
    version: int
    lag: float
    settings: int | None = None
    episodes: int | None = None
    num_episodes: int | None = None
    batch_return: float | None = None
    batch_length: float | None = None
    mean_return: float | None = None
    resumed: bool = False
    workers: list[WorkerEntry] = field(default_factory=list)
    taking_part: tuple[int, int] | None = None
    learners: Sequence[Sequence[float]] = ()
    digest: str | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    eval: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, line: Mapping[str, Any], path: Path, part: str = "a line") -> BatchLine:
        """Returns the line that `to_json` made. Raises `DamagedFileError`, with `path` and `part`, if a value is
        missing, or has another type."""
        try:
            if not isinstance(digest := line.get("digest"), str | None):
                raise TypeError(f"its digest is {digest!r}")
            return cls(
                batch=int(line["batch"]),
                time=float(line["time"]),
                frames=int(line["frames"]),
                frames_per_s=_number(line["frames_per_s"]),
                waited_s=float(line["waited_s"]),
                version=int(line["version"]),
                lag=float(line["lag"]),
                settings=line.get("settings"),
                episodes=line.get("episodes"),
                num_episodes=line.get("num_episodes"),
                batch_return=_number(line.get("return")),
                batch_length=_number(line.get("length")),
                mean_return=_number(line.get("mean_return")),
                resumed=bool(line.get("resumed")),
                workers=[WorkerEntry.of(entry) for entry in line.get("workers", ())],
                taking_part=line.get("taking_part"),
                learners=line.get("learners", ()),
                digest=digest,
                scalars={
                    name: math.nan if value is None else float(value) for name, value in line.get("scalars", {}).items()
                },
                eval=line.get("eval"),
            )
        except KeyError as error:
            raise DamagedFileError(f"{path} is damaged: {part} has no {error}") from error
        except (AttributeError, OverflowError, TypeError, ValueError) as error:
            raise DamagedFileError(f"{path} is damaged: {part} does not describe a batch: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Returns the line as an object for JSON: numbers are rounded, and values that are None left out."""
        optional = {
            "settings": self.settings,
            "episodes": self.episodes,
            "num_episodes": self.num_episodes,
            "return": _short(self.batch_return),
            "length": _short(self.batch_length),
            "mean_return": _short(self.mean_return),
            "resumed": self.resumed or None,
            "workers": [entry.to_json() for entry in self.workers] or None,
            "taking_part": self.taking_part,
            "learners": [[round(each, 6) for each in times] for times in self.learners] or None,
            "digest": self.digest,
            "scalars": {name: _short(value) for name, value in self.scalars.items()} or None,
            "eval": self.eval,
        }
        return {
            "batch": self.batch,
            "time": round(self.time, 3),
            "frames": self.frames,
            "frames_per_s": None if self.frames_per_s is None else round(self.frames_per_s, 1),
            "waited_s": round(self.waited_s, 6),
            "version": self.version,
            "lag": round(self.lag, 3),
            **{name: value for name, value in optional.items() if value is not None},
        }


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _short(value: float | None) -> float | None:
    """Rounds to seven significant digits; whole numbers are left as they are."""
    if value is None or not math.isfinite(value) or float(value).is_integer():
        return value
    return float(f"{value:.7g}")
