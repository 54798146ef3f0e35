"""The checkpoints of a run: written atomically, verified when they are read, the newest ones kept.

    checkpoints/<batches>/manifest.json   what the checkpoint is of; size and digest of every other file
    checkpoints/<batches>/state.pt        tensors and plain data, by torch.save
    checkpoints/<batches>/<name>/         a replay buffer of the trainer's, by `ReplayBuffer.dumps`

`<batches>` is the number of batches that the trainer had received, nine digits. A checkpoint is a folder that is
renamed when it is complete, so that a crash leaves the previous ones. Nothing is unpickled here but what
`torch.load(weights_only=True)` allows; workers unpickle the states of their envs (`collectx.state`), which are bytes
here. So nobody but the owner may write to a checkpoint, whatever the umask.

Used in the trainer's process, and by the command line.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from collectx.disk import sync
from collectx.errors import DamagedFile
from collectx.run.files import INCOMPLETE, decode, write_json

_FORMAT = 2
_MANIFEST = "manifest.json"
_STATE = "state.pt"
_Loaded = TypeVar("_Loaded")


class Checkpoints:
    """The checkpoints below one folder.

    Args:
        path: `RunFolder.checkpoints`.
        keep: the number of newest checkpoints that `write` leaves, at least 1.
    """

    def __init__(self, path: Path, keep: int = 1):
        self.path = path
        self._keep = keep

    def write(
        self,
        batches: int,
        facts: Mapping[str, Any],
        state: Mapping[str, Any],
        folders: Mapping[str, Callable[[Path], None]],
    ) -> Path:
        """Writes a checkpoint, syncs it to the disk, and removes the oldest ones. Does nothing if there is one of as
        many batches. Blocks for the disk.

        Args:
            facts: plain data for the manifest, for readers who do not load the state.
            state: tensors and plain data.
            folders: for each further folder by its name, a function that writes it.

        Raises:
            OSError: it could not be written. The earlier checkpoints are left as they are.
        """
        import torch

        target = self.folder(batches)
        if target.exists():
            return target
        self.path.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=INCOMPLETE, dir=self.path))
        try:
            with open(temporary / _STATE, "wb") as file:
                try:
                    torch.save(dict(state), file)
                except RuntimeError as error:
                    # torch.save raises it in place of the OSError of the file.
                    raise error.__context__ if isinstance(error.__context__, OSError) else error from None
            for name, write in folders.items():
                write(temporary / name)
            files = {str(path.relative_to(temporary)): _describe(path) for path in _files(temporary)}
            for name in files:
                sync(temporary / name)
            write_json(
                temporary / _MANIFEST,
                {"format": _FORMAT, "batches": batches, "time": time.time(), **facts, "files": files},
            )
            temporary.chmod(self.path.stat().st_mode & 0o7777)
            for path in (self.path, temporary, *temporary.rglob("*")):
                path.chmod(path.stat().st_mode & ~0o022)
            sync(temporary)
            os.rename(temporary, target)
            sync(self.path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        for old in self.all()[: -self._keep]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def folder(self, batches: int) -> Path:
        """The folder of the checkpoint after so many batches, whether it exists or not."""
        return self.path / f"{batches:09d}"

    def all(self) -> list[Path]:
        """The folders of all checkpoints, the oldest first."""
        return sorted(path for path in self.path.glob("[0-9]" * 9) if path.is_dir())

    def newest(self, load: Callable[[Checkpoint], _Loaded]) -> tuple[_Loaded | None, list[str]]:
        """Returns what `load` returns for the newest checkpoint whose files are as they were written, None if there is
        none, and what is wrong with each newer one; `load` raises `DamagedFile` for one that cannot be used. Reads all
        of its files."""
        problems: list[str] = []
        for path in reversed(self.all()):
            try:
                return load(Checkpoint(path)), problems
            except DamagedFile as error:
                problems += error.problems
        return None, problems

    def remove_after(self, batches: int) -> None:
        """Removes the checkpoints of more than `batches` batches."""
        for path in self.all():
            if int(path.name) > batches:
                shutil.rmtree(path)


class Checkpoint:
    """One checkpoint, verified when this object is made.

    Attributes:
        path: its folder.
        manifest: see the module's docstring.

    Raises:
        DamagedFile: a file is missing or differs from what was written; names the file.
    """

    def __init__(self, path: Path):
        self.path = path
        manifest = path / _MANIFEST
        try:
            self.manifest = decode(manifest, "the file", manifest.read_bytes())
        except OSError as error:
            raise DamagedFile([f"{manifest}: cannot be read: {error.strerror}"]) from error
        files, number = self.manifest.get("files"), self.manifest.get("batches")
        if self.manifest.get("format") != _FORMAT or not isinstance(files, dict) or number != int(path.name):
            raise DamagedFile(
                [f"{manifest}: is not the manifest of a checkpoint of format {_FORMAT} with {int(path.name)} batches"]
            )
        for name, written in files.items():
            file = path / name
            try:
                now = _describe(file)
            except OSError as error:
                raise DamagedFile([f"{file}: cannot be read: {error.strerror}"]) from error
            if now != written:
                raise DamagedFile([f"{file}: has {now}, written was {written}"])
        if _STATE not in files:
            raise DamagedFile([f"{manifest}: does not name {_STATE}"])

    def state(self) -> dict[str, Any]:
        """Loads the state; tensors are on the CPU.

        Raises:
            DamagedFile: it cannot be loaded.
        """
        import torch

        path = self.path / _STATE
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            raise DamagedFile([f"{path}: cannot be loaded: {type(error).__name__}: {text}"]) from error

    def folder(self, name: str) -> Path | None:
        """The further folder of this name; None if the checkpoint has none."""
        path = self.path / name
        return path if path.is_dir() else None


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _describe(path: Path) -> dict[str, Any]:
    digest = xxhash.xxh3_128()
    size = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return {"size": size, "xxh3": digest.hexdigest()}
