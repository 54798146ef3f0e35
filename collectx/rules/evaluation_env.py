"""The envs of evaluations: those of the run, with the changes of `eval.env`. Evaluations, and whoever checks an env or
looks for the code that it names, ask here for the changed configuration."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from collectx.config.check import check_group
from collectx.config.problem import Problem, check_all
from collectx.config.registry import KINDS
from collectx.config.schema.fields import Unset, incomplete
from collectx.config.schema.run import EvalOptions, RunConfig
from collectx.rules import collection

# The options of `env` in a message, as distinct from a module `env` of the user.
_NAMES = sorted({field.name for kind in KINDS["env"].values() for field in dataclasses.fields(kind.schema)})
_OPTION = re.compile(rf"(?<![\w./])env\.(?=(?:{'|'.join(_NAMES)})\b)")


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
    env = check_group("env", _merged(base, changes), found)
    for problem in found:
        name = problem.path.split(".")[1]
        # A wrong option of `env` is absent from it, and reported there.
        if name in changes or name in base or not base:
            yield _of_evaluation(problem)
    known = [*check_all([collection.gym_envs], cfg)]
    for problem in collection.gym_envs(incomplete(RunConfig, env=env)):
        if problem not in known:
            yield _of_evaluation(problem)


def also_evaluated(check: Callable[[RunConfig], list[str]], cfg: RunConfig) -> list[str]:
    """Returns the messages of `check` for `cfg`, and those that only the envs of evaluations cause."""
    messages = check(cfg)
    with suppress(Unset):  # an option that has failed its check
        others = [] if evaluated(cfg) is cfg else check(evaluated(cfg))
        messages += [in_evaluation(text) for text in others if not {text, in_evaluation(text)} & {*messages}]
    return messages


def in_evaluation(text: str) -> str:
    """Returns a message, or an option's name, whose options of `env` are named as options of `eval.env`."""
    return _OPTION.sub("eval.env.", text)


def _of_evaluation(problem: Problem) -> Problem:
    rule, advice = in_evaluation(problem.rule), in_evaluation(problem.advice)
    return dataclasses.replace(problem, path=f"eval.{problem.path}", rule=rule, advice=advice)


def _base(cfg: RunConfig) -> Mapping[str, Any]:
    """Returns the options of `env` that stay; those that failed their check are absent."""
    kind = vars(cfg.env).get("kind")
    return vars(cfg.env) if cfg.eval.env.get("kind", kind) == kind else {}


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    both = [key for key in changes if isinstance(changes[key], Mapping) and isinstance(values.get(key), Mapping)]
    return {**values, **changes, **{key: _merged(values[key], changes[key]) for key in both}}
