"""The packaged YAML values of a choice. A user's file that only says `kind:` has the others from there, so that no
default is written twice."""

from __future__ import annotations

from importlib import resources
from typing import Any


def packaged_values(group: str, name: str) -> dict[str, Any]:
    """The values of `conf/<group>/<name>.yaml` and of the choices that it inherits; empty if there is no such file."""
    from omegaconf import OmegaConf

    file = resources.files("collectx.conf") / group / f"{name}.yaml"
    if not file.is_file():
        return {}
    content = OmegaConf.to_container(OmegaConf.create(file.read_text()))
    assert isinstance(content, dict)
    values: dict[str, Any] = {}
    for entry in content.pop("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            values |= packaged_values(group, entry)
    return values | {str(key): value for key, value in content.items()}
