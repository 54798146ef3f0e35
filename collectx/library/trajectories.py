"""Batches of whole trajectories: the keywords for them. Called in the trainer's process, by `library.keywords`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Assembly:
    """Batches of whole trajectories, whose frames come in several batches.

    Args:
        trajs_per_batch: every batch has so many trajectories that have ended, those of an earlier batch first; at the
            end of the run those that are left are dropped. With a replay buffer they go there, one after another. None:
            batches are of `frames_per_batch` frames.
        trajs_per_write: so many go to the replay buffer at once; None: 1.
        traj_format: "padded" or None: `[trajectories, longest]`, as `split_trajs` makes them; "cat": `[time]`, one
            trajectory after another.
    """

    trajs_per_batch: int | None = None
    trajs_per_write: int | None = None
    traj_format: str | None = None

    def problems(self) -> list[str]:
        """What is wrong."""
        found = []
        for name in ("trajs_per_batch", "trajs_per_write"):
            value = getattr(self, name)
            if value is not None and value < 1:
                found.append(f"{name}={value}: must be at least 1.")
        if self.traj_format not in (None, "padded", "cat"):
            found.append(f"traj_format={self.traj_format!r}: must be 'padded' or 'cat'.")
        if self.trajs_per_batch is None:
            found += [
                f"{name}={getattr(self, name)!r} without trajs_per_batch: give it how many trajectories a batch has."
                for name in ("trajs_per_write", "traj_format")
                if getattr(self, name) is not None
            ]
        return found
