"""Every option's values and every choice as a user types them; see `tests/matrix.py`, which a subset of them can be
given to."""

import subprocess
import sys
from pathlib import Path

import pytest
from scripts.keywords import CLASSES

pytestmark = pytest.mark.timeout(0)  # `run` has a limit for each
TESTS = Path(__file__).parents[1]


def run(*arguments: str, minutes: float, script: str = "matrix.py") -> None:
    done = subprocess.run(
        [sys.executable, str(TESTS / script), *arguments], capture_output=True, text=True, timeout=60 * minutes
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_single_value_completes_or_is_refused_with_its_name():
    run(minutes=30)


@pytest.mark.nightly
def test_what_the_tables_of_the_pages_say_works_or_is_refused():
    run("--no-singles", "--documents", minutes=30)


@pytest.mark.nightly
def test_sweeps_over_two_values_and_searches():
    run("--no-singles", "--sweeps", "40", minutes=60)


@pytest.mark.nightly
def test_every_single_value_as_typed():
    run("--alone", "--typed", minutes=300)


@pytest.mark.nightly
@pytest.mark.parametrize("arguments", [("--pairs", "2000"), ("--triples", "500")], ids=" ".join)
def test_random_values_together_as_typed(arguments):
    run("--no-singles", "--typed", *arguments, minutes=600)


@pytest.mark.nightly
@pytest.mark.parametrize("name", CLASSES)
def test_every_value_of_every_keyword_of_a_collector(name):
    run(name, script="scripts/keywords.py", minutes=60)
