"""Rules between options. A rule yields a `Problem` for each violation, with the arithmetic and what to change; its
docstring says what holds.

They run after each option is checked separately. The command line checks all rules; the Python classes check those
about collection and devices. What this machine can do is checked in `collectx/run/preflight.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from collectx.config.problem import Problem, check_all
from collectx.config.schema.run import RunConfig
from collectx.place import place_of
from collectx.rules import collection, evaluation_env, training
from collectx.transport.network import rpc_options

Rule = Callable[[RunConfig], Iterator[Problem]]


def place(cfg: RunConfig) -> Iterator[Problem]:
    """The place of the workers fits the collector, the backend and the launcher's options."""
    yield from place_of(cfg).problems()


def devices(cfg: RunConfig) -> Iterator[Problem]:
    """The devices exist in name, and workers see the GPUs of their policies."""
    yield from place_of(cfg).device_problems()


RULES: tuple[Rule, ...] = (
    collection.frames_per_batch,
    collection.resets,
    collection.min_workers,
    collection.overlap,
    collection.preemption,
    training.learnable_batches,
    training.recorded_episodes,
    training.best_checkpoint,
    collection.single_collector,
    place,
    rpc_options.tensorpipe,
    collection.nested_collectors,
    collection.inference_server,
    collection.served_policy,
    collection.gym_envs,
    evaluation_env.evaluation_env,
    training.convolutions,
    training.trainable_policy,
    devices,
)


def problems(cfg: RunConfig, rules: Iterable[Rule] = RULES) -> list[Problem]:
    """Returns the problems that `rules` find in `cfg`."""
    return [*check_all(rules, cfg)]
