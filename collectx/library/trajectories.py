"""The keywords about batches of complete trajectories."""

from __future__ import annotations

from dataclasses import dataclass

from collectx.library.keywords.options import limited, option


@dataclass(frozen=True)
class Assembly:
    """Assembles complete trajectories from several batches.

    Args:
        trajs_per_batch: number of trajectories of a batch, in the order in which they ended; those left at the end of
            the run are dropped. With a replay buffer they are written there one by one. None: batches have
            `frames_per_batch` frames.
        trajs_per_write: number of trajectories that one write to the replay buffer has; None: 1.
        traj_format: "padded" or None: `[trajectories, longest]`, as with `split_trajs`; "cat": `[time]`, trajectories
            concatenated.
    """

    trajs_per_batch: int | None = option("collector.trajs_per_batch", None)
    trajs_per_write: int | None = limited(None, minimum=1)
    traj_format: str | None = option("collector.traj_format", None)

    def problems(self) -> list[str]:
        """What is wrong."""
        if self.trajs_per_batch is not None:
            return []
        return [
            f"{name}={getattr(self, name)!r} without trajs_per_batch: give the number of trajectories of a batch."
            for name in ("trajs_per_write", "traj_format")
            if getattr(self, name) is not None
        ]
