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

    def __str__(self) -> str:
        """Returns the call that made the setting, without its values."""
        return "set_reset_options(...)" if self.kind == "reset_options" else f"{self.kind}({self.name!r}, ...)"

    def of(self, worker: int) -> tuple[str, str, Any]:
        """Returns the setting as a worker gets it, in plain data: kind, name, content. An added worker gets the content
        of one of the others."""
        return self.kind, self.name, self.contents[worker % len(self.contents)]


class Settings:
    """The settings in force: the last one of each attribute and each method, in the order in which they were made.
    `version` is the number of settings so far."""

    def __init__(self) -> None:
        self.version = 0
        # In order. Contains older settings of the same name too until the newer one is confirmed, because they are in
        # force again if it is withdrawn.
        self._settings: list[Setting] = []

    def add(self, kind: str, name: str, contents: Sequence[Any]) -> Setting:
        """Returns a new setting, which replaces an earlier one of this kind and name, unless workers refuse it."""
        self.version += 1
        setting = Setting(kind, name, contents, self.version)
        self._settings.append(setting)
        return setting

    def confirm(self, setting: Setting) -> None:
        """Forgets the settings that this one replaces: all workers have applied it."""
        self._settings = [
            each
            for each in self._settings
            if (each.kind, each.name) != (setting.kind, setting.name) or each.version >= setting.version
        ]

    def withdraw(self, setting: Setting) -> None:
        """Removes a setting that a worker refused; the one before it is in force again. Idempotent."""
        self._settings = [each for each in self._settings if each.version != setting.version]

    @property
    def in_force(self) -> list[Setting]:
        """The settings in force, in order."""
        last = {(each.kind, each.name): each.version for each in self._settings}
        return [each for each in self._settings if last[each.kind, each.name] == each.version]

    def since(self, version: int, worker: int) -> list[tuple[str, str, Any]]:
        """Returns the settings in force that are newer than `version`, as this worker gets them."""
        return [each.of(worker) for each in self.in_force if each.version > version]

    def state(self) -> dict[str, Any]:
        """Returns the state for `load`, in plain data and tensors."""
        return {"version": self.version, "in_force": [tuple(each) for each in self.in_force]}

    def load(self, state: Mapping[str, Any]) -> None:
        self.version = state["version"]
        self._settings = [Setting(*each) for each in state["in_force"]]
