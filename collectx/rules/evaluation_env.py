"""The envs of evaluations: those of the run, with the changes of `eval.env`. Evaluations, and whoever checks an env or
looks for the code that it names, ask here for the changed configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from collectx.config.check import check_group
from collectx.config.problem import Problem, check_all
from collectx.config.schema.fields import Unset, incomplete
from collectx.config.schema.run import EvalOptions, RunConfig
from collectx.rules import collection

_T = TypeVar("_T")
# The name of these options.
OF_EVALUATIONS = "eval.env"


def evaluated(cfg: RunConfig) -> RunConfig:
    """Returns the configuration whose `env` is that of evaluations; `cfg` itself without `eval.env`. A mapping, such as
    kwargs, is merged with that of `env`, as Hydra does. If `eval.env` names another kind, no option of `env` stays.
    Options that failed their check stay absent."""
    if not cfg.eval.env:
        return cfg
    env = check_group("env", _merged(_base(cfg), cfg.eval.env), [])
    options = incomplete(EvalOptions, **vars(cfg.eval) | {"env": {}})
    return incomplete(RunConfig, **vars(cfg) | {"env": env, "eval": options})


def evaluation_env(cfg: RunConfig) -> Iterator[Problem]:
    """The types and ranges of `env`, and `gym_envs`, hold with the changes of `eval.env`."""
    base, changes = _base(cfg), cfg.eval.env
    if not changes or not (base or "kind" in changes):  # the choice of `env` is wrong
        return
    found: list[Problem] = []
    env = check_group("env", _merged(base, changes), found, OF_EVALUATIONS)
    for problem in found:
        name = problem.path.split(".")[2]
        # A wrong option of `env` is absent from it, and reported there.
        if name in changes or name in base or not base:
            yield problem
    yield from _others([*check_all([collection.gym_envs], cfg)], collection.gym_envs, incomplete(RunConfig, env=env))


def also_evaluated(check: Callable[..., Iterable[_T]], cfg: RunConfig) -> list[_T]:
    """Returns what `check` finds in `cfg`, and what it only finds in the envs of evaluations. `check` takes the name of
    the options of `env` as its second argument."""
    found = [*check(cfg)]
    with suppress(Unset):  # an option that has failed its check
        if (changed := evaluated(cfg)) is not cfg:
            found += _others(found, check, changed)
    return found


def _others(known: Collection[_T], check: Callable[..., Iterable[_T]], changed: RunConfig) -> Iterator[_T]:
    for as_of_run, found in zip(check(changed), check(changed, OF_EVALUATIONS), strict=True):
        if as_of_run not in known and found not in known:
            yield found


def _base(cfg: RunConfig) -> Mapping[str, Any]:
    """Returns the options of `env` that stay; those that failed their check are absent."""
    kind = vars(cfg.env).get("kind")
    return vars(cfg.env) if cfg.eval.env.get("kind", kind) == kind else {}


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    both = [key for key in changes if isinstance(changes[key], Mapping) and isinstance(values.get(key), Mapping)]
    return {**values, **changes, **{key: _merged(values[key], changes[key]) for key in both}}
