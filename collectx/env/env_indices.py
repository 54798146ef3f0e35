"""The numbers of an env, which the code that makes it can use: an entry point, a constructor, a factory, a wrapper.

A parameter named like an attribute of `EnvNumbers` gets the number, unless the user passes a value. In strings of a
configuration, the number replaces the name in braces: "videos/{env_index}". The string "{env_index}" alone becomes the
number. The braces may contain one `*` or `%` and one `+` or `-` with an integer, and a format of Python for an integer:
"{env_index * 2 + 5002:06d}".
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from collectx.errors import CollectxError, ConfigError
from collectx.user_objects import arguments_of

_NAME = re.compile(
    r"\{ *(env_index|worker_index|restart_count)(?: *([*%]) *([1-9]\d*))?(?: *([+-]) *(\d+))? *(?::([^{}]*))?\}"
)


@dataclass(frozen=True)
class EnvNumbers:
    """The numbers of one env. At any time, no two envs of the workers have the same `env_index`. The envs of a replaced
    or resumed worker keep their index.

    Attributes:
        env_index: from 0 over all workers of the run; -1 for the env that is made to read its spaces, and -2, ... for
            further ones; below -1 for envs of an evaluation.
        worker_index: from 0 over all worker processes of the run; negative in the same cases.
        restart_count: number of earlier processes of the worker, over the whole run. Each restart of the worker and
            each resume of the run adds one.
    """

    env_index: int = 0
    worker_index: int = 0
    restart_count: int = 0

    def of(self, e: int) -> EnvNumbers:
        """Returns the numbers of env `e` of the group whose first env has these."""
        return replace(self, env_index=self.env_index + (-e if self == SPACES else e))

    def filled(self, value: Any) -> Any:
        """Returns `value` with the numbers in place of the names in its strings. Raises `ConfigError` if Python cannot
        format an integer as a string demands."""
        # Not any Mapping: Gymnasium's Dict space is one.
        if isinstance(value, dict):
            return {key: self.filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        if isinstance(value, str):
            if (alone := _NAME.fullmatch(value)) and alone[6] is None:
                return self._number(alone)
            return _NAME.sub(self._text, value)
        return value

    def _text(self, match: re.Match[str]) -> str:
        try:
            return format(self._number(match), match[6] or "")
        except (ValueError, OverflowError) as error:
            raise ConfigError(
                f"{match[0]} cannot be filled in: {error}. Use an integer format, such as {{env_index:03d}}."
            ) from None

    def _number(self, match: re.Match[str]) -> int:
        name, operator, factor, sign, offset, _ = match.groups()
        number = getattr(self, name)
        if operator:
            number = number * int(factor) if operator == "*" else number % int(factor)
        return number + int(f"{sign}{offset}") if sign else number

    def named_by(self, target: Callable[..., Any]) -> dict[str, int]:
        """Returns the numbers that are parameters of `target`, and that no `functools.partial` has set."""
        try:
            parameters = inspect.signature(target).parameters
        except (TypeError, ValueError):  # a builtin may have no signature
            return {}
        is_set = target.keywords if isinstance(target, partial) else ()
        return {name: number for name, number in vars(self).items() if name in parameters and name not in is_set}

    def arguments(
        self, target: Callable[..., Any], kwargs: Mapping[str, Any], where: str = "env.kwargs"
    ) -> dict[str, Any]:
        """Returns the keyword arguments of a call of `target`: `kwargs` of a configuration at `where`, as in
        `arguments_of`, and the numbers that it takes."""
        return {**self.named_by(target), **arguments_of(target, self.filled(dict(kwargs)), where)}

    @contextmanager
    def explained(self, made_by: object, kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Adds a note to an error of the block, which makes the env: the numbers, the name of `made_by`, and `kwargs`,
        the arguments that the configuration gives it."""
        try:
            yield
        except CollectxError:
            raise
        except Exception as error:
            shown = "an env in this process, to learn its observation and action spaces"
            which = shown if self == SPACES else f"env {self.env_index} of worker {self.worker_index}"
            while isinstance(made_by, partial):
                made_by = made_by.func
            name = getattr(made_by, "__qualname__", None) or type(made_by).__qualname__
            given = ", ".join(f"{key}={value!r}" for key, value in kwargs.items())
            error.add_note(f"raised while {name}({given[:100]}) was making {which}")
            if "HydraConfig" in str(error):
                error.add_note(_NO_HYDRA)
            raise


_NO_HYDRA = (
    "Hydra started neither this process nor its trainer, as in a script without @hydra.main. Pass what you need to the "
    "env as an argument."
)
# The numbers of the env that is made only to read its spaces.
SPACES = EnvNumbers(-1, -1)


def of_evaluation(num_envs: int) -> EnvNumbers:
    """Returns the numbers of the first of `num_envs` envs that evaluate a policy."""
    return EnvNumbers(-1 - num_envs, -2)
