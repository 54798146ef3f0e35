"""Lines of `metrics.jsonl` for tests that need a run folder, but no run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from collectx.run.folder.batch_line import BatchLine


def batch_line(batch: int = 0, **values: Any) -> BatchLine:
    """Returns the line of a batch of ten frames, with these values."""
    defaults = {"time": float(batch), "frames": 10 * (batch + 1), "frames_per_s": None, "waited_s": 0.0}
    return BatchLine(**{"batch": batch, **defaults, "version": batch, "lag": 0.0, **values})


def write_lines(path: Path, lines: Iterable[BatchLine], mode: str = "w") -> None:
    """Writes lines to `metrics.jsonl` at `path`."""
    with open(path, mode) as file:
        file.writelines(json.dumps(line.to_json()) + "\n" for line in lines)
