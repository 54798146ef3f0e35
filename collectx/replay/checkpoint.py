"""Saves the state of a buffer to a folder: plain data as JSON, tensors as raw bytes. Never pickles or unpickles.

    PATH/state.json                counts, generator, data folder; key, dtype, shape and checksum of every tensor
    PATH/collectx-data-<id>/0.bin  the bytes of a tensor; files are numbered in the order of state.json

A save writes a new data folder and then replaces state.json atomically, so that after a crash at any point the folder
has either the previous state or the new one. Then it removes the data folders of earlier saves.

Checksums detect files that were truncated or changed by accident, not on purpose.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from collectx.batch import as_array, nest
from collectx.disk import sync, write_synced
from collectx.replay.ring import iter_leaves

_TENSORS = ("frames", "sampler")
_DATA = "collectx-data-"


def save(state: dict[str, Any], path: Path) -> None:
    """Writes `state`, whose items "frames" and "sampler" are TensorDicts, to the folder `path`; returns after the data
    is synced to the disk. Raises OSError if writing failed; the previous state is then still there."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        data = Path(tempfile.mkdtemp(prefix=_DATA, dir=path))
        # mkdtemp makes a private folder: use the permissions of `path`.
        data.chmod(stat.S_IMODE(path.stat().st_mode))
        tensors: list[dict[str, Any]] = []
        for key, tensor in iter_leaves({name: state[name] for name in _TENSORS}):
            array = as_array(tensor)
            content = array.reshape(-1).view("uint8").data
            write_synced(data / f"{len(tensors)}.bin", content)
            shape, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            tensors.append({"key": key, "dtype": dtype, "shape": shape, "checksum": zlib.crc32(content)})
        plain = {key: value for key, value in state.items() if key not in _TENSORS}
        body = {"state": plain, "data": data.name, "tensors": tensors}
        write_synced(path / "state.json.new", json.dumps({**body, "checksum": _checksum(body)}).encode())
        sync(data)
        os.replace(path / "state.json.new", path / "state.json")
        sync(path)
        sync(path.parent)
    finally:
        _remove_unused(path)


def load(path: Path) -> dict[str, Any]:
    """Returns the state saved in `path`, or raises as `ReplayBuffer.loads`. Tensors are private mappings of the files:
    writing to them changes no file."""
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
    arrays = {tuple(entry["key"]): _read(path / data / f"{index}.bin", entry) for index, entry in enumerate(tensors)}
    return {**state, **{name: {} for name in _TENSORS}, **nest(arrays)}


_ADVICE = "restore the folder from a copy, or save the buffer."


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body).encode())


def _read(file: Path, saved: Mapping[str, Any]) -> torch.Tensor:
    """Maps the tensor in `file`; `saved` is its entry in state.json."""
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


def _remove_unused(path: Path) -> None:
    """Removes files that state.json does not refer to; nothing if state.json cannot be read."""
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
