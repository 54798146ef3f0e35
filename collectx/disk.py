"""Writes that are on the disk when they return, so that a crash afterwards loses nothing. Does not import torch."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Writes a file, or the entries of a folder, to the disk; blocks until that is done."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes | memoryview) -> None:
    """Writes `content` to a file, new or replaced, and to the disk; blocks until that is done."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
