"""Interpolations of a configuration: their values, and those that a snapshot keeps as written.

`${oc.env:NAME}` may be a secret, or the folder of one job. So snapshots, loggers and reports contain these words, not
the value, and whoever reads a snapshot resolves them anew. All other interpolations are saved as values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from collectx.config.check import UNSET, Unresolved
from collectx.config.registry import GROUPS, KEPT_GROUPS, marked
from collectx.config.schema.run import RunConfig, Written

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException


def resolved(node: DictConfig) -> tuple[dict[str, Any], list[Written]]:
    """Returns a configuration without Hydra's part as plain data, and its values that a snapshot keeps as written. An
    option whose interpolation cannot be resolved is `Unresolved`."""
    written: list[Written] = []
    with _environment() as names:
        reader = _Reader(names, written)
        return {str(key): reader.option(node, (key,)) for key in node if key != "hydra"}, written


def as_written(cfg: RunConfig, is_escaped: bool = True, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns a configuration as plain data, with `${oc.env:NAME}` as written.

    Args:
        is_escaped: whether other texts are such that OmegaConf resolves them to their value.
        like: the same data of another configuration; words that it lacks are replaced by their values.
    """
    values = asdict(cfg)
    del values["written"]
    content = escaped(values) if is_escaped else values
    for path, text in cfg.written:
        is_known = like is None or _at(like, path) == text
        if is_known and _at(content, path) is not None:
            _at(content, path[:-1])[path[-1]] = text
    return content


def written_values(cfg: RunConfig) -> dict[str, Any]:
    """Returns each value that a snapshot keeps as written, by `option=words`."""
    values = asdict(cfg)
    return {f"{'.'.join(map(str, path))}={text}": _at(values, path) for path, text in cfg.written}


def why_unresolved(error: OmegaConfBaseException, where: str = "") -> str:
    """Returns a predicate with what OmegaConf says about an interpolation, and what to do; `where` stands between the
    two."""
    from omegaconf.errors import UnsupportedInterpolationType

    text = re.sub(r'^\w+ raised while resolving interpolation: "?(.*?)"?$', r"\1", str(error).splitlines()[0])
    advice = "."
    if isinstance(error, UnsupportedInterpolationType):
        advice = ". Register the resolver in hydra_plugins/NAME.py in the working directory."
    elif missing := re.fullmatch(r"Environment variable '(.*)' not found", text):
        text = f"the environment variable '{missing[1]}' is not set"
        advice = f". Set it, or write a default: ${{oc.env:{missing[1]},VALUE}}"
    elif missing := re.fullmatch(r"Interpolation key '(.*)' not found", text):
        text = f"there is no option '{missing[1]}'"
        advice = ". Write the name in full, as in ${collector.num_workers}."
    return f"cannot be resolved: {text}{where}{advice}"


class _Reader:
    """Reads the values of a configuration. `names` are the environment variables that the newest interpolation read."""

    def __init__(self, names: list[str], written: list[Written]):
        self._names, self._written = names, written

    def option(self, node: DictConfig, path: tuple[Any, ...]) -> Any:
        """Returns the value of an option, or of a section; the options of a group can fail one by one."""
        from omegaconf import DictConfig, OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        key = path[-1]
        if OmegaConf.is_missing(node, key):
            return UNSET
        try:
            is_group = len(path) == 1 and key in GROUPS and not OmegaConf.is_interpolation(node, key)
            if is_group and isinstance(section := node[key], DictConfig):
                return {str(name): self.option(section, (*path, name)) for name in section}
            return self._value(node, path)
        except OmegaConfBaseException as error:
            where = "" if error.full_key in (None, "", node._get_full_key(key)) else f" ({error.full_key})"
            return Unresolved(why_unresolved(error, where))

    def _value(self, node: Any, path: tuple[Any, ...]) -> Any:
        from omegaconf import DictConfig, ListConfig, OmegaConf

        key = path[-1]
        if OmegaConf.is_interpolation(node, key):
            self._names.clear()
            value = node[key]
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True)
            if self._names and _stays(path, value):
                self._written.append((path, OmegaConf.to_container(node, resolve=False)[key]))  # type: ignore[index]
            return value
        if OmegaConf.is_missing(node, key):
            return UNSET
        value = node[key]
        if isinstance(value, DictConfig):
            return {each: self._value(value, (*path, each)) for each in value}
        if isinstance(value, ListConfig):
            return [self._value(value, (*path, i)) for i in range(len(value))]
        return value


def _stays(path: tuple[Any, ...], value: Any) -> bool:
    """Whether a snapshot keeps the words of an option with this value. Numbers are saved, and options that are fixed on
    resume, except those that name a place."""
    if value is None or isinstance(value, bool | int | float):
        return False
    group, *option = path
    if group not in GROUPS or not option or option[0] in marked(group, "movable"):
        return True
    return group not in KEPT_GROUPS and option[0] not in ("kind", *marked(group, "kept"))


@contextmanager
def _environment() -> Iterator[list[str]]:
    """Yields a list to which the resolver `oc.env` adds the name of each variable that it reads."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    names: list[str] = []

    def env(key: str, *default: Any) -> Any:
        names.append(key)
        return oc.env(key, *default)

    OmegaConf.register_new_resolver("oc.env", env, replace=True)
    try:
        yield names
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def escaped(value: Any) -> Any:
    """Returns plain data whose texts are such that OmegaConf resolves them to those of `value`."""
    if isinstance(value, dict):
        return {key: escaped(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [escaped(each) for each in value]
    # Backslashes are only special before an interpolation.
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _at(values: Any, path: tuple[Any, ...]) -> Any:
    """Returns the value at a path; None if there is none."""
    for key in path:
        try:
            values = values[key]
        except (LookupError, TypeError):
            return None
    return values
