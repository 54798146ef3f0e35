"""The format of the library minari, with a folder of Arrow files for each episode.

    data/metadata.json    spaces, number of episodes and of steps
    data/<episode>/       observations (one more than actions), actions, rewards, terminations, truncations; as infos
                          the version of the policy, and the kept entries of the env's infos

The library writes new episodes to a folder beside the data set; this module moves them, and updates the metadata last,
so that readers see only complete flushes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from tensordict import TensorDictBase

from collectx.batch import POLICY_VERSION, TRAJ_IDS, Key, Leaf, as_array, nest
from collectx.data.folder import RecordedRun, SequentialWriter, empty_problems

_STORED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_METADATA = "metadata.json"
# Number of episodes per call of the library.
_GROUP = 32


class MinariWriter(SequentialWriter):
    """Writes minari's format; see the module's docstring. The id of the data set is its folder as the library finds it,
    such as `pendulum/swing-v0` below MINARI_DATASETS_PATH; elsewhere the name of the folder. `-v0` follows unless the
    folder ends in a version."""

    def __init__(self, path: Path, run: RecordedRun):
        super().__init__(path, run)
        self._data = self.path / "data"

    def open(self) -> None:
        super().open()
        if not self._data.exists():
            self.publish(self._data, self._create)
        self.position = self._metadata()["total_episodes"]

    @classmethod
    def refusals(cls, run: RecordedRun) -> list[str]:
        option = run.format_option
        problems = [] if run.has_usual_reward else [f"it needs one float32 reward for each step. Use {option}=memmap."]
        for name, space in (("observation", run.observation_space), ("action", run.action_space)):
            if (part := _unstored(space)) is not None:
                rule = f"it cannot store {part} of the {name}. Leave it out with env.exclude_keys"
                problems.append(f"{rule}, or use {option}=memmap or {option}=parquet.")
        return problems + empty_problems(run)

    def write(self, episodes: Sequence[TensorDictBase]) -> None:
        from minari.data_collector.episode_buffer import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage

        if not episodes:
            return
        staged = self.path / "_new" / f"{self.run.name}-episodes"
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        shutil.copyfile(self._data / _METADATA, staged / _METADATA)
        storage, size = MinariStorage.read(staged), self._metadata().get("dataset_size", 0)
        numbers = range(self.position, self.position + len(episodes))
        # In groups, because the library lists the folder for every episode.
        for begin in range(0, len(episodes), _GROUP):
            group, part = episodes[begin : begin + _GROUP], numbers[begin : begin + _GROUP]
            storage.update_episodes(
                EpisodeBuffer(id=number, **self._content(episode)) for number, episode in zip(part, group, strict=True)
            )
            ids = (int(episode[TRAJ_IDS][0]) for episode in group)
            facts = {"run": self.run.name, "run_seed": self.run.seed}
            storage.update_episode_metadata([facts | {"traj_id": each} for each in ids], part)
            size += storage.get_size()
            for number in part:
                target = self._data / str(number)
                shutil.rmtree(target, ignore_errors=True)  # of a flush that a killed process did not complete
                (staged / str(number)).rename(target)
        self._write_metadata(json.loads((staged / _METADATA).read_bytes()) | {"dataset_size": size})
        self.position = numbers.stop
        shutil.rmtree(staged)

    def rewind(self, position: int) -> None:
        if position == self.position:
            return
        metadata, removed = self._metadata(), [self._data / str(each) for each in range(position, self.position)]
        steps = sum(json.loads((each / _METADATA).read_bytes())["total_steps"] for each in removed)
        self._write_metadata(metadata | {"total_episodes": position, "total_steps": metadata["total_steps"] - steps})
        for each in removed:
            self.discard(each)
        self.position = position

    def _create(self, path: Path) -> None:
        from minari import __version__
        from minari.dataset.minari_storage import MinariStorage

        path.mkdir()
        storage = MinariStorage.new(
            path, self.run.observation_space, self.run.action_space, data_format="arrow", jpeg_encoding=False
        )
        folder, root = self.path.resolve(), Path(os.environ.get("MINARI_DATASETS_PATH", "~/.minari/datasets"))
        root = root.expanduser().resolve()
        inside = folder.relative_to(root) if folder.is_relative_to(root) else Path(folder.name)
        name = re.sub(r"[^\w/-]", "_", inside.as_posix())
        name = name if re.search(r"-v\d+$", name) else f"{name}-v0"
        storage.update_metadata({"dataset_id": name, "minari_version": __version__})

    def _metadata(self) -> dict[str, Any]:
        return json.loads((self._data / _METADATA).read_bytes())

    def _write_metadata(self, metadata: dict[str, Any]) -> None:
        self.write_json(self._data / _METADATA, metadata)

    def _content(self, episode: TensorDictBase) -> dict[str, Any]:
        run, last = self.run, ("next",)
        observation = {leaf.key: _with_last(episode, leaf.key, (*last, *leaf.key)) for leaf in run.inputs}
        infos = {leaf.key: _with_last(episode, leaf.key, (*last, *leaf.key)) for leaf in _infos(run)}
        infos[("policy_version",)] = _with_last(episode, POLICY_VERSION, POLICY_VERSION)
        action = {leaf.key: as_array(episode[leaf.key]) for leaf in run.action}
        of_step = {"rewards": "reward", "terminations": "terminated", "truncations": "truncated"}
        return {
            "observations": _nested(run.observation_space, observation),
            "actions": _nested(run.action_space, action, "action"),
            "infos": nest({key[-1:] if key[0] == "info" else key: _listed(each) for key, each in infos.items()}),
            **{name: as_array(episode["next", key]).reshape(-1) for name, key in of_step.items()},
        }


def _unstored(space: Space) -> Space | None:
    """Returns the first part of a space that the format cannot store; None if there is none."""
    if isinstance(space, spaces.Dict):
        return next(filter(None, map(_unstored, space.spaces.values())), None)
    return None if isinstance(space, _STORED) else space


def _infos(run: RecordedRun) -> list[Leaf]:
    return [leaf for leaf in run.observation if leaf not in run.inputs]


def _with_last(episode: TensorDictBase, key: Key, last: Key) -> np.ndarray:
    """Returns the values `key` of all frames, followed by the value `last` of the last frame."""
    return np.concatenate([as_array(episode[key]), as_array(episode[last][-1:])])


def _listed(values: np.ndarray) -> Any:
    """Returns numbers as a list, because the library cannot read an array of numbers from `infos`."""
    return values.tolist() if values.ndim == 1 else values


def _nested(space: Space, values: dict[Key, np.ndarray], root: str | None = None) -> Any:
    if not isinstance(space, spaces.Dict):
        (value,) = values.values()
        return value
    return nest(values) if root is None else nest(values)[root]
