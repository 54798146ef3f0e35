"""Faults in real runs; see `tests/chaos/__main__.py`."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("seed", "faults"),
    [
        pytest.param(0, 5, marks=[pytest.mark.ci, pytest.mark.timeout(1800)]),
        pytest.param(1, 1000, marks=[pytest.mark.nightly, pytest.mark.timeout(14 * 3600)]),
    ],
)
def test_every_fault_is_survived_and_no_frame_is_wrong(seed, faults, tmp_path):
    command = [sys.executable, "-m", "tests.chaos", f"--seed={seed}", f"--faults={faults}", "--jobs=2"]
    done = subprocess.run(
        [*command, "--json", str(tmp_path / "outcomes.json")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
