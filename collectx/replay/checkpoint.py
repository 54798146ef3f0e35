"""A buffer's state in a folder: tensors memory-mapped, the rest JSON, nothing pickled.

PATH/state.json      capacity, counts, generator; written last
PATH/frames/...      one file for each leaf, as `TensorDict.memmap` writes them
PATH/sampler/...     what the sampler knows of the frames
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

from tensordict import TensorDict

_TENSORS = ("frames", "sampler")


def save(state: dict[str, Any], path: Path) -> None:
    """Writes `state`, of which "frames" and "sampler" are TensorDicts, beside `path`, then puts it in the place of
    what was.

    Raises:
        OSError: it cannot be written there, or the disk has too little space. What was in `path` is still there.
    """
    new = path.with_name(path.name + ".new")
    old = path.with_name(path.name + ".old")
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        needed, free = sum(state[name].bytes() for name in _TENSORS), shutil.disk_usage(new).free
        if needed > free:
            # A write to mapped memory for which the disk has no space would kill this process.
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {needed} bytes, {free} free", str(path))
        for name in _TENSORS:
            state[name].memmap(str(new / name))
        plain = {key: value for key, value in state.items() if key not in _TENSORS}
        (new / "state.json").write_text(json.dumps(plain))
        if path.exists():
            path.rename(old)
        new.rename(path)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        if old.exists() and not path.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def load(path: Path) -> dict[str, Any]:
    """The state in `path`; its tensors are read as they are used.

    Raises:
        FileNotFoundError: no buffer was ever saved there whole.
    """
    file = path / "state.json"
    if not file.exists():
        raise FileNotFoundError(f"{path} has no state.json: no replay buffer was saved there")
    state = json.loads(file.read_text())
    return state | {name: TensorDict.load_memmap(str(path / name)) for name in _TENSORS}
