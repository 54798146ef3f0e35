"""Checkpoints: numbered folders of tensors and plain data, complete or absent after a crash, verified when read.

    <number>/manifest.json   facts for readers that load no tensors; size and digest of each other file
    <number>/<name>.pt       a state, by torch.save; read with weights_only=True, which executes no code

A checkpoint is written to a temporary folder, which is renamed when its files are on the disk. Digests detect files
that were truncated or changed by accident, not on purpose.

Used for runs (collectx/run/checkpointer.py) and replay buffers (`ReplayBuffer.dumps`). Importing this module does not
import torch.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from collectx.errors import DamagedFileError

# The prefix of files and folders that are being written, and that a killed process leaves behind.
INCOMPLETE = ".new-"
STATE = "state.pt"
FORMAT = 3
"""The format of run folders and checkpoints: file names and fields. A new optional field does not change it."""
_MANIFEST = "manifest.json"
_Loaded = TypeVar("_Loaded")


class Checkpoints:
    """The checkpoints below one folder. `keep` is the number of newest checkpoints that `write` keeps, at least 1.
    `prefix` is the beginning of checkpoint folder names; nine digits follow."""

    def __init__(self, path: Path, keep: int = 1, prefix: str = ""):
        self.path = path
        self._keep = keep
        self._prefix = prefix

    def write(
        self,
        number: int,
        facts: Mapping[str, Any],
        states: Mapping[str, Mapping[str, Any]],
        unranked: Collection[int] | None = (),
    ) -> Path:
        """Writes a checkpoint, and then removes old ones, see `remove_old`; blocks until it is on the disk. Does
        nothing if there is a checkpoint of this number. Only the owner may write to the files, whatever the umask.
        Returns the checkpoint's folder. Raises `OSError` if the checkpoint could not be written. Earlier checkpoints
        are left as they are.

        Args:
            facts: plain data for the manifest. If they contain a `score`, the checkpoint with the greatest one is kept,
                too.
            states: tensors and plain data, by file name. Tensors are not copied: do not change them meanwhile.
            unranked: see `remove_old`; None: remove none.
        """
        target = self.folder(number)
        if target.exists():
            return target
        if not self.path.exists():
            self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
            sync(self.path.parent)
        temporary = Path(tempfile.mkdtemp(prefix=INCOMPLETE + self._prefix, dir=self.path))
        try:
            files = {name: _save(temporary / name, state) for name, state in states.items()}
            manifest = {"format": FORMAT, "time": time.time(), **facts, "files": files}
            (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=2))
            sync(temporary / _MANIFEST)
            with suppress(PermissionError):  # the file system has no permissions
                temporary.chmod(self.path.stat().st_mode & 0o7755)
                for path in temporary.iterdir():
                    path.chmod(path.stat().st_mode & ~0o022)
            sync(temporary)
            os.rename(temporary, target)
            sync(self.path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if unranked is not None:
            self.remove_old(unranked)
        return target

    def remove_old(self, unranked: Collection[int] = ()) -> None:
        """Removes the oldest checkpoints, and those that killed processes left incomplete. `unranked` are the numbers
        of checkpoints to keep although they have no score yet, see `rank`."""
        kept, incomplete = {self.best(), *map(self.folder, unranked)}, self.path.glob(f"{INCOMPLETE}{self._prefix}*")
        for old in (*(path for path in self.all()[: -self._keep] if path not in kept), *incomplete):
            shutil.rmtree(old, ignore_errors=True)

    def rank(self, number: int, score: float) -> None:
        """Writes the score of a checkpoint to its manifest; blocks until it is on the disk. Does nothing without such a
        checkpoint. Raises `OSError` if it could not be written."""
        with suppress(DamagedFileError):
            file = self.folder(number) / _MANIFEST
            content = json.dumps(read_manifest(file.parent) | {"score": score}, indent=2)
            new = file.with_name(INCOMPLETE + file.name)
            new.write_text(content)
            with suppress(PermissionError):
                new.chmod(file.stat().st_mode)
            sync(new)
            os.replace(new, file)
            sync(file.parent)

    def folder(self, number: int) -> Path:
        """Returns the folder of the checkpoint with this number, whether it exists or not."""
        return self.path / f"{self._prefix}{number:09d}"

    def number(self, folder: Path) -> int:
        """Returns the number of the checkpoint in a folder."""
        return int(folder.name.removeprefix(self._prefix))

    def all(self) -> list[Path]:
        """Returns the folders of all checkpoints, the oldest first."""
        return sorted(path for path in self.path.glob(self._prefix + "[0-9]" * 9) if path.is_dir())

    def newest(
        self, load: Callable[[Checkpoint], _Loaded], names: Collection[str] | None = None
    ) -> tuple[_Loaded | None, list[str]]:
        """Returns `load(checkpoint)` for the newest intact checkpoint, or None, and the problems of newer ones, which
        are damaged. `load` may raise `DamagedFileError` to refuse a checkpoint. `names` as for `Checkpoint`."""
        problems: list[str] = []
        for path in reversed(self.all()):
            try:
                return load(Checkpoint(path, names)), problems
            except DamagedFileError as error:
                problems += [text for text in error.problems if text not in problems]
        return None, problems

    def no_intact(self, problems: Sequence[str]) -> str:
        """Returns a message for the case that every checkpoint has one of the `problems`."""
        advice = "Restore the damaged files from a copy, or repeat the command of the run with run.overwrite=true."
        return "\n".join([f"no checkpoint in {self.path} can be used. {advice}", *problems])

    def best(self) -> Path | None:
        """Returns the folder of the checkpoint with the greatest `score`, the newest of equal ones; None if no manifest
        contains a score. Reads manifests only."""
        scores: dict[Path, float] = {}
        for path in reversed(self.all()):
            with suppress(DamagedFileError):
                if isinstance(score := read_manifest(path).get("score"), float):
                    scores[path] = score
        return max(scores, key=scores.__getitem__, default=None)

    def remove_after(self, number: int) -> None:
        """Removes the checkpoints with greater numbers."""
        for path in self.all():
            if self.number(path) > number:
                shutil.rmtree(path)


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest of a checkpoint. Does not read the other files. Raises `DamagedFileError` if the manifest
    cannot be read, or has another format."""
    file = path / _MANIFEST
    try:
        manifest = json.loads(file.read_bytes())
    except OSError as error:
        raise DamagedFileError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DamagedFileError(f"{file} is damaged: it is not JSON ({error})") from error
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or "format" not in manifest or STATE not in files:
        raise DamagedFileError(f"{file} is damaged: it is not a checkpoint manifest")
    if manifest["format"] != FORMAT:
        rule = f"uses format {manifest['format']}, but this version of collectx reads format {FORMAT}"
        version = "packages.collectx in the newest snapshot/meta*.json"
        advice = f"Use the version that wrote it ({version}), or start a new run"
        raise DamagedFileError(f"{file}: {rule}. {advice}.")
    return manifest


class Checkpoint:
    """One checkpoint. Making the object reads and verifies the files `names`, by default all: replay buffers may have
    gigabytes. Raises `DamagedFileError` if one of them is missing, or changed since it was written; the message names
    it. Load only files that were verified."""

    def __init__(self, path: Path, names: Collection[str] | None = None):
        self.path, self.manifest = path, read_manifest(path)
        for name, written in self.manifest["files"].items():
            if names is not None and name not in names:
                continue
            try:
                now = _describe(path / name)
            except OSError as error:
                raise DamagedFileError(f"{path / name} cannot be read: {error.strerror}") from error
            if now != written:
                change = f"({_text(now)} now, {_text(written)} then)"
                raise DamagedFileError(f"{path / name} is damaged: it has changed since it was written {change}")

    def __contains__(self, name: str) -> bool:
        """Whether the checkpoint contains a file of this name."""
        return name in self.manifest["files"]

    def load(self, name: str = STATE, mmap: bool = False) -> dict[str, Any]:
        """Returns a state; tensors are on the CPU, and belong to the caller. `mmap` says whether tensors are private
        mappings of the file: reading them reads the file, but writing to them does not change it. False: they are in
        memory. Raises `DamagedFileError` if the file cannot be loaded."""
        import torch

        path = self.path / name
        try:
            return torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            raise DamagedFileError(f"{path} cannot be loaded: {type(error).__name__}: {text}") from error


def sync(path: Path) -> None:
    """Syncs a file, or the entries of a folder, to the disk; blocks until that is done."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Hasher:
    """Computes size and digest of the written bytes, and passes the bytes on to `file`, if any."""

    def __init__(self, file: Any = None):
        self._file = file
        self._digest = xxhash.xxh3_128()
        self._size = 0

    def write(self, content: bytes | memoryview) -> None:
        self._digest.update(content)
        self._size += len(content)
        if self._file is not None:
            self._file.write(content)

    def flush(self) -> None:
        self._file.flush()

    def description(self) -> dict[str, Any]:
        return {"size": self._size, "xxh3": self._digest.hexdigest()}


def _save(path: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a state to a new file and syncs it; returns the file's description, without reading the file."""
    from torch import save, serialization

    computes_crc32 = serialization.get_crc32_options()
    with open(path, "wb") as file:
        hasher: Any = _Hasher(file)
        try:
            # Not needed, as the digest covers all bytes.
            serialization.set_crc32_options(False)
            save(dict(state), hasher)
        except RuntimeError as error:
            # torch.save raises this instead of the file's OSError.
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None
        finally:
            serialization.set_crc32_options(computes_crc32)
        file.flush()
        os.fsync(file.fileno())
    return hasher.description()


def _text(description: Mapping[str, Any]) -> str:
    return f"{description.get('size')} bytes with digest {description.get('xxh3')}"


def _describe(path: Path) -> dict[str, Any]:
    hasher = _Hasher()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hasher.write(block)
    return hasher.description()
