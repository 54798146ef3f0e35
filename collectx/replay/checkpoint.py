"""A buffer's state in a folder: plain data as JSON, tensors as raw bytes. Nothing is pickled, and nothing unpickled.

    PATH/state.json                counts, generator, and of every tensor: key, dtype, shape, checksum
    PATH/collectx-data-<id>/0.bin  the bytes of a tensor, in the order of state.json, which names the folder

A save writes a data folder of its own and then replaces state.json in one step, so that a crash at any point leaves
either the state that was saved before or the new one. Other data folders that a save has made are removed.

Checksums find files that were cut short or changed by accident; they are no protection against somebody who may write
to the folder.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from collectx.replay.ring import as_array

_TENSORS = ("frames", "sampler")
_DATA = "collectx-data-"


def save(state: dict[str, Any], path: Path) -> None:
    """Writes `state`, of which "frames" and "sampler" are TensorDicts, to the folder `path`; returns when it is on the
    disk.

    Raises:
        OSError: it cannot be written there, or the disk has too little space. What was in `path` is still there.
    """
    path.mkdir(parents=True, exist_ok=True)
    try:
        data = Path(tempfile.mkdtemp(prefix=_DATA, dir=path))
        # As open to others as the folder is, unlike a temporary one.
        data.chmod(stat.S_IMODE(path.stat().st_mode))
        tensors: list[dict[str, Any]] = []
        for key, tensor in _leaves({name: state[name] for name in _TENSORS}):
            array = as_array(tensor)
            content = array.reshape(-1).view("uint8").data
            _write(data / f"{len(tensors)}.bin", content)
            shape, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            tensors.append({"key": key, "dtype": dtype, "shape": shape, "checksum": zlib.crc32(content)})
        plain = {key: value for key, value in state.items() if key not in _TENSORS}
        body = {"state": plain, "data": data.name, "tensors": tensors}
        _write(path / "state.json.new", json.dumps({**body, "checksum": _checksum(body)}).encode())
        _sync(data)
        os.replace(path / "state.json.new", path / "state.json")
        _sync(path)
        _sync(path.parent)
    finally:
        _tidy(path)


def load(path: Path) -> dict[str, Any]:
    """The state in `path`. Its tensors are private mappings of the files: writing to them changes no file.

    Raises:
        FileNotFoundError: no buffer was ever saved there whole.
        ValueError: a file is damaged: its size or its checksum is not that of what was saved.
    """
    file = path / "state.json"
    if not file.exists():
        raise FileNotFoundError(f"{path} has no state.json: no replay buffer was saved there")
    try:
        body = json.loads(file.read_bytes())
        checksum = body.pop("checksum")
        if checksum != _checksum(body):
            raise ValueError(f"its checksum is {_checksum(body)}, saved was {checksum}")
        state, data, tensors = body["state"], body["data"], body["tensors"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}): {_ADVICE}") from error
    for name in _TENSORS:
        state[name] = {}
    for index, one in enumerate(tensors):
        *parents, name = one["key"]
        node = state
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = _read(path / data / f"{index}.bin", one)
    return state


_ADVICE = "restore the folder from a copy, or save the buffer anew."


def _leaves(nested: Mapping[str, Any] | TensorDictBase) -> Iterator[tuple[list[str], torch.Tensor]]:
    for name, value in nested.items():
        if isinstance(value, torch.Tensor):
            yield [name], value
        else:
            yield from (([name, *key], tensor) for key, tensor in _leaves(value))


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body).encode())


def _read(file: Path, saved: Mapping[str, Any]) -> torch.Tensor:
    """The tensor in `file`, which is as `saved` describes it."""
    dtype, shape = getattr(torch, saved["dtype"]), saved["shape"]
    nbytes = math.prod(shape) * dtype.itemsize
    with open(file, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        if size != nbytes:
            raise ValueError(f"{file} is damaged: it has {size} bytes, saved were {nbytes}: {_ADVICE}")
        if not size:
            return torch.empty(shape, dtype=dtype)
        content = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY)
    if (checksum := zlib.crc32(content)) != saved["checksum"]:
        raise ValueError(
            f"{file} is damaged: the checksum of its {size} bytes is {checksum}, saved was {saved['checksum']}: "
            f"{_ADVICE}"
        )
    return torch.frombuffer(content, dtype=dtype).view(shape)


def _write(file: Path, content: Any) -> None:
    with open(file, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def _sync(folder: Path) -> None:
    """Brings the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tidy(path: Path) -> None:
    """Removes what `state.json` does not name; nothing where it cannot be read."""
    (path / "state.json.new").unlink(missing_ok=True)
    current = None
    with contextlib.suppress(FileNotFoundError):
        try:
            current = json.loads((path / "state.json").read_bytes())["data"]
        except (ValueError, KeyError, TypeError):
            return
    for data in path.glob(f"{_DATA}????????"):
        if data.name != current and not data.is_symlink():
            shutil.rmtree(data, ignore_errors=True)
