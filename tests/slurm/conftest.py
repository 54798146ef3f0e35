"""A cluster for all tests of this folder, brought up with the first and taken down with the last; see `cluster.py`.

Puts this folder on the import path. Tests here run in one process of xdist, and are skipped where no SLURM can be had.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
if str(_HERE) not in sys.path:
    sys.path.insert(0, str(_HERE))

from cluster import Cluster  # noqa: E402
from machines import Unsupported  # noqa: E402
from running import Run  # noqa: E402

_brought_up: list[str] = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("slurm"))
            if item.get_closest_marker("timeout") is None:
                # The first one may have to wait for packages.
                item.add_marker(pytest.mark.timeout(420))


def pytest_terminal_summary(terminalreporter):
    for line in _brought_up:
        terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    """A test of a fault that these machines do not have is skipped."""
    try:
        return (yield)
    except Unsupported as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def whole_cluster():
    """The cluster, as the test before has left it: for `cluster`."""
    try:
        cluster = Cluster.up()
    except Unsupported as reason:
        pytest.skip(str(reason))
    _brought_up.append(f"SLURM: {len(cluster.nodes)} nodes, {cluster.kind}")
    with cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster):
    """Three idle nodes. After the test all jobs are cancelled and all nodes healed."""
    yield whole_cluster
    whole_cluster.reset()


@pytest.fixture
def tmp_path(cluster, request):
    """A new folder that all nodes see: their /tmp is their own."""
    name = f"{request.path.stem}-{request.node.name}"
    folder = cluster.shared / name.translate(str.maketrans("[]/ ", "____"))
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def run(cluster, tmp_path):
    """`run(*overrides)` gives the command `collectx run`; what still goes on at the end is killed."""
    started: list[Run] = []

    def start(*overrides: str, **options) -> Run:
        started.append(Run(cluster, tmp_path, overrides, **options))
        return started[-1]

    yield start
    for each in started:
        each.kill()
