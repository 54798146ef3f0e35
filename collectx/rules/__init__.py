"""What has to fit together. A rule yields a `Problem` for each violation, with the arithmetic and what to change; its
docstring says what holds.

first phase    `problems`: options, after each of them is checked by itself (`collectx/config/check.py`). Places
               contribute `Place.problems`. The command line and the Python classes check the same rules.
second phase   `fits`: options and the spec of the envs that were made, before workers start.

Between the two, `collectx/run/preflight.py` checks what this machine has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from collectx.config.problem import Problem, check_all
from collectx.config.schema.run import RunConfig
from collectx.place import place_of
from collectx.rules import collection, evaluation_env, training
from collectx.transport.network import rpc_options

Rule = Callable[[RunConfig], Iterator[Problem]]


RULES: tuple[Rule, ...] = (
    collection.frames_per_batch,
    collection.resets,
    collection.min_workers,
    collection.overlap,
    collection.preemption,
    collection.recorded_order,
    training.learnable_batches,
    training.recorded_episodes,
    training.several_learners,
    training.best_checkpoint,
    collection.single_collector,
    rpc_options.tensorpipe,
    collection.nested_collectors,
    collection.inference_server,
    collection.served_policy,
    collection.gym_envs,
    evaluation_env.evaluation_env,
    training.convolutions,
    training.trainable_policy,
    collection.devices,
)


def problems(
    cfg: RunConfig, rules: Iterable[Rule] = RULES, acting: Callable[[], Sequence[str]] | None = None
) -> list[Problem]:
    """Returns the problems that `rules`, and the place of the workers, find in `cfg`. `acting` returns the device of
    each worker's policy, by default that of `devices`."""
    return [*check_all((*rules, lambda cfg: place_of(cfg).problems(acting)), cfg)]
