"""What the comparisons print besides their figures: command, date, machine, versions; and medians with their spread."""

import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median

from benchmarks import fresh


def about(module: str, *packages: str) -> dict[str, str]:
    """Command, date, machine, load and versions of this run of `module`; of `packages` besides torch and NumPy."""
    versions = []
    for package in ("torch", "numpy", *packages):
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    return {
        "command": f"python -m {module} {' '.join(sys.argv[1:])}".rstrip(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{_processor()}, {len(fresh.cores())} of {os.cpu_count()} cores",
        "load": f"load average {os.getloadavg()[0]:.1f} at the start",
        "versions": f"Python {platform.python_version()}, {', '.join(versions)}",
    }


def say_about(module: str, *packages: str) -> None:
    """Prints `about` as a line."""
    print("; ".join(about(module, *packages).values()) + "\n", flush=True)


def spread(values: Sequence[float]) -> str:
    """The median, and the smallest and the largest value."""
    return f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratio of each turn."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"
