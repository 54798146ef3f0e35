"""Places: where the workers of a run are, and how their batches travel to the trainer (`place_of`)."""

from __future__ import annotations

from collectx.config.schema.run import RunConfig
from collectx.place.base import Place
from collectx.place.local import Inline, Local
from collectx.place.ray import RayCluster
from collectx.place.slurm.jobs import SlurmJob, SlurmLearners, SlurmParts, SlurmWorkerJobs

_PLACES: dict[str, type[Place]] = {
    "inline": Inline,
    "local": Local,
    "ray": RayCluster,
    "slurm": SlurmJob,
    "submitit": SlurmWorkerJobs,
    "submitit_delayed": SlurmParts,
}


def place_of(cfg: RunConfig) -> Place:
    """Returns the place of a run's workers. Raises `Unset` if `cfg.launcher` failed its check."""
    place = _PLACES[cfg.launcher.kind]
    return (SlurmLearners if place is SlurmJob and cfg.trainer.num_learners > 1 else place)(cfg)
