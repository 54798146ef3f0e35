"""Every option's values and every choice as a user types them; see `tests/matrix.py`, which a subset of them can be
given to."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(0)  # `run` has a limit for each
MATRIX = Path(__file__).parents[1] / "matrix.py"


def run(*arguments: str, minutes: float) -> None:
    done = subprocess.run(
        [sys.executable, str(MATRIX), *arguments], capture_output=True, text=True, timeout=60 * minutes
    )
    assert done.returncode == 0, done.stdout + done.stderr


# Parts that several processes of pytest run at the same time. The last one takes longer than the others together; Ray
# needs more address space than the matrix allows a run.
@pytest.mark.parametrize(
    "only",
    ["collector(?!=ray)", "trainer", "env", pytest.param("(?!collector|trainer|env)", marks=pytest.mark.nightly)],
)
def test_every_single_value_completes_or_is_refused_with_its_name(only):
    run("--only", only, "--jobs", "1", minutes=20)


@pytest.mark.nightly
def test_every_single_value_as_typed():
    run("--alone", "--typed", minutes=300)


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", [("--pairs", "2000"), ("--triples", "500")], ids=" ".join)
def test_random_values_together_as_typed(arguments):
    run("--no-singles", "--typed", *arguments, minutes=600)
