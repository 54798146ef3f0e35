"""Places: where the workers of a run are, and how their batches travel to the trainer (`place_of`)."""

from __future__ import annotations

from collectx.config.schema.run import RunConfig
from collectx.place.base import Place
from collectx.place.local import Inline, Local
from collectx.place.ray import RayCluster, RayLearners
from collectx.place.slurm.jobs import SlurmJob, SlurmLearners, SlurmParts, SlurmWorkerJobs

_PLACES: dict[str, type[Place]] = {
    "inline": Inline,
    "local": Local,
    "ray": RayCluster,
    "slurm": SlurmJob,
    "submitit": SlurmWorkerJobs,
    "submitit_delayed": SlurmParts,
}
_PLACES_OF_LEARNERS: dict[str, type[Place]] = {"ray": RayLearners, "slurm": SlurmLearners}


def place_of(cfg: RunConfig) -> Place:
    """Returns the place of a run's workers. Raises `Unset` if `cfg.launcher` failed its check."""
    places = _PLACES | _PLACES_OF_LEARNERS if cfg.trainer.num_learners > 1 else _PLACES
    return places[cfg.launcher.kind](cfg)
