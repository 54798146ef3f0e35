"""A run of the tests by the Makefile's command ends, whatever happens in its processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci
_ROOT = Path(__file__).parents[2]
_TESTS = """
import os, pytest, time

@pytest.mark.parametrize("number", range(20))
def test_scratch(number):
    {body}
"""


def make_test(folder, body, **variables):
    """Runs the command of `make test` on scratch tests; returns its process."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_scratch.py").write_text(_TESTS.format(body=body))
    arguments = f"-c {folder}/pytest.ini --rootdir={folder} -p no:cacheprovider {folder}"
    variables = {"VENV": sys.prefix, "ARGS": arguments, **variables}
    make = ["make", "--dry-run", "test", *(f"{name}={value}" for name, value in variables.items())]
    # Without those of the `make` and the pytest that run this test.
    outer = ("MAKE", "MFLAGS", "PYTEST_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    listed = subprocess.run(make, cwd=_ROOT, env=environment, check=True, capture_output=True, text=True)
    return subprocess.Popen(
        ["bash", "-c", f"exec {listed.stdout.splitlines()[-1]}"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_test_process_that_is_killed_fails_the_run(tmp_path):
    run = make_test(tmp_path, "if number == 7: os.kill(os.getpid(), 9)", LIMIT="90s")
    output, _ = run.communicate(timeout=100)
    # 124 is that of `timeout`.
    assert run.returncode == 1, output
    assert "crashed and worker restarting disabled" in output
    assert "test_scratch[7]" in output


@pytest.mark.parametrize("ci", [pytest.param("", marks=pytest.mark.nightly), "true"])
def test_a_run_that_hangs_ends_with_the_stacks_of_its_processes(tmp_path, wait_until, ci):
    run = make_test(tmp_path, "open('began', 'w').close(); time.sleep(1000)", LIMIT="1h", CI=ci)
    wait_until((tmp_path / "began").exists, 90, "a test began")
    # `timeout` takes this for the end of its time.
    run.send_signal(signal.SIGALRM)
    output, _ = run.communicate(timeout=90)
    assert run.returncode != 0
    assert "Fatal Python error: Aborted" in output
    # Processes write their stacks at the same time, word by word.
    assert ("test_scratch" in output) == bool(ci)
