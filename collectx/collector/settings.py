"""What the trainer changes in the envs while they run: attributes, calls of methods, and the options of resets.

    trainer --set_attr--> Settings: in force, with a version --Request("change")--> worker: before its next part

Workers that start later, replacements included, get what is in force. Checkpoints contain it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """A setting for all workers.

    Attributes:
        kind: "call", "set_attr" or "reset_options".
        name: of the method, which may be a path such as "task.set_level", or of the attribute; empty for options.
        contents: the content for each worker, or one for all. Of a call: its positional and keyword arguments. Of an
            attribute: whether there is a value for each env, and the values or the value. Of options: a dict or None.
        version: 1 for the first setting of a run.
    """

    kind: str
    name: str
    contents: Sequence[Any]
    version: int

    def of(self, worker: int) -> tuple[str, str, Any]:
        """The setting as a worker gets it, plain data: kind, name, content. An added worker gets that of the one whose
        envs it repeats."""
        return self.kind, self.name, self.contents[worker % len(self.contents)]


class Settings:
    """The settings in force: of each attribute and each method the last one, in the order in which they were made.

    Attributes:
        version: the number of settings so far.
    """

    def __init__(self) -> None:
        self.version = 0
        self._in_force: dict[tuple[str, str], Setting] = {}

    def add(self, kind: str, name: str, contents: Sequence[Any]) -> Setting:
        """Makes a setting; the earlier one of this kind and name is no longer in force."""
        self.version += 1
        setting = Setting(kind, name, contents, self.version)
        self._in_force.pop((kind, name), None)
        self._in_force[kind, name] = setting
        return setting

    def withdraw(self, setting: Setting, earlier: Setting | None) -> None:
        """Takes a setting back that a worker has refused; `earlier` is in force again."""
        del self._in_force[setting.kind, setting.name]
        if earlier is not None:
            self._in_force[setting.kind, setting.name] = earlier

    def get(self, kind: str, name: str) -> Setting | None:
        """The setting in force."""
        return self._in_force.get((kind, name))

    def since(self, version: int, worker: int) -> list[tuple[str, str, Any]]:
        """What a worker lacks that has all settings up to a version."""
        return [each.of(worker) for each in self._in_force.values() if each.version > version]

    def state(self) -> dict[str, Any]:
        """Returns plain data and tensors for `load`."""
        return {"version": self.version, "in_force": [tuple(each) for each in self._in_force.values()]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `state`."""
        self.version = state["version"]
        self._in_force = {(each[0], each[1]): Setting(*each) for each in state["in_force"]}
