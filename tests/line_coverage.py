"""Which lines of the product each test executes, also in the processes that it starts; for `mutants.py`.

A pytest plugin, and `start()` for every other Python process, from a `sitecustomize`. Each process writes JSON lines
`[test, file, lines]` into the folder LINE_COVERAGE when it ends; what it executed outside of a test has the test "".
What a process that is killed executed is lost. PYTEST_DONT_REWRITE: pytest finds it imported.
"""

import atexit
import contextlib
import json
import os
import re
import time
from pathlib import Path

import coverage

FOLDER = Path(os.environ["LINE_COVERAGE"])
ROOT = Path(__file__).resolve().parents[1]
# Its file holds the name of the test that runs. Processes that the test starts inherit the variable.
TEST = "LINE_COVERAGE_TEST"
_exit = os._exit
_measured: coverage.Coverage | None = None
_began = 0.0


def start() -> None:
    """Measures this process from now on; processes that it forks measure themselves."""
    global _measured
    if _measured is None:
        os._exit = _write_and_exit
        os.register_at_fork(after_in_child=start)
    else:
        atexit.unregister(_write)
        _measured.stop()
    include = [f"{ROOT}/{part}/*" for part in ("collectx", "cli")]
    test = Path(os.environ[TEST]).read_text() if TEST in os.environ else ""
    _measured = coverage.Coverage(data_file=None, config_file=False, messages=False, include=include, context=test)
    _measured.set_option("run:disable_warnings", ["no-data-collected"])
    _measured.start()
    atexit.register(_write)  # after coverage's, so called before it closes the data


def _write_and_exit(status: int) -> None:
    with contextlib.suppress(Exception):
        _write()
    _exit(status)


def _write() -> None:
    _measured.stop()
    data = _measured.get_data()
    with open(FOLDER / f"{os.getpid()}.jsonl", "a") as output:
        for file in data.measured_files():
            executed: dict[str, list[int]] = {}
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    executed.setdefault(test, []).append(line)
            path = os.path.relpath(os.path.realpath(file), ROOT)
            output.writelines(json.dumps([test, path, lines]) + "\n" for test, lines in executed.items())


def pytest_configure(config):
    os.environ[TEST] = str(FOLDER / f"test-{os.getpid()}")
    Path(os.environ[TEST]).touch()


def pytest_runtest_logstart(nodeid):
    global _began
    _measured.switch_context(_name(nodeid))
    Path(os.environ[TEST]).write_text(_name(nodeid))
    _began = time.monotonic()


def pytest_runtest_logfinish(nodeid):
    with open(FOLDER / "seconds", "a") as output:
        output.write(json.dumps([_name(nodeid), time.monotonic() - _began]) + "\n")
    _measured.switch_context("")


def _name(nodeid):
    """The name of a test without its group, which xdist appends."""
    return re.sub(r"@\w+$", "", nodeid)
