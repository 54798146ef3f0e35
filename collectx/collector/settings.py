"""Settings: what a trainer changes in the envs while they run, by attributes, calls of methods, and options of resets.

    trainer --set_attr--> Settings: in force, with a version --Request("change")--> worker: before its next part

Workers that start later, such as replacements, get the settings in force. Checkpoints contain them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """A setting for all workers.

    Attributes:
        kind: "call", "set_attr" or "reset_options".
        name: the name of the method, or a path to it such as "task.set_level", or of the attribute; empty for options.
        contents: a list with one content for all workers, or one for each. The content of a call: its positional and
            its keyword arguments. Of an attribute: whether there is a value for each env, and the values or the value.
            Of options: a dict or None.
        version: 1 for the first setting of a run.
    """

    kind: str
    name: str
    contents: Sequence[Any]
    version: int

    def of(self, worker: int) -> tuple[str, str, Any]:
        """Returns the setting as a worker gets it, in plain data: kind, name, content. An added worker gets the content
        of one of the others."""
        return self.kind, self.name, self.contents[worker % len(self.contents)]


class Settings:
    """The settings in force: the last one of each attribute and each method, in the order in which they were made.
    `version` is the number of settings so far."""

    def __init__(self) -> None:
        self.version = 0
        self._in_force: dict[tuple[str, str], Setting] = {}

    def add(self, kind: str, name: str, contents: Sequence[Any]) -> Setting:
        """Returns a new setting, which replaces an earlier one of this kind and name."""
        self.version += 1
        setting = Setting(kind, name, contents, self.version)
        self._in_force.pop((kind, name), None)
        self._in_force[kind, name] = setting
        return setting

    def withdraw(self, setting: Setting, earlier: Setting | None) -> None:
        """Removes a setting that a worker refused, and puts `earlier` in force again, in its old place."""
        del self._in_force[setting.kind, setting.name]
        if earlier is not None:
            in_force = [*self._in_force.values(), earlier]
            self._in_force = {(each.kind, each.name): each for each in sorted(in_force, key=lambda each: each.version)}

    def get(self, kind: str, name: str) -> Setting | None:
        """Returns the setting in force; None without one."""
        return self._in_force.get((kind, name))

    def since(self, version: int, worker: int) -> list[tuple[str, str, Any]]:
        """Returns the settings in force that are newer than `version`, as this worker gets them."""
        return [each.of(worker) for each in self._in_force.values() if each.version > version]

    def state(self) -> dict[str, Any]:
        """Returns the state for `load`, in plain data and tensors."""
        return {"version": self.version, "in_force": [tuple(each) for each in self._in_force.values()]}

    def load(self, state: Mapping[str, Any]) -> None:
        self.version = state["version"]
        self._in_force = {(each[0], each[1]): Setting(*each) for each in state["in_force"]}
