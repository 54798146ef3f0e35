"""A cluster for all tests of this folder, brought up with the first and taken down with the last; see `cluster.py`.
Without SLURM they are skipped. Puts this folder on the import path.
"""

import sys
import tempfile
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE))

from cluster import Cluster, obstacle  # noqa: E402
from running import SMALL, Run  # noqa: E402

from collectx.cli.main import main  # noqa: E402
from collectx.run import RunFolder  # noqa: E402


def pytest_collection_modifyitems(items):
    for item in items:
        if _HERE in item.path.parents:
            # The first one may have to wait for packages, and all of them for a busy machine.
            item.add_marker(pytest.mark.timeout(1200))
            # One cluster for all test processes.
            item.add_marker(pytest.mark.xdist_group("slurm"))


@pytest.fixture(scope="session")
def shared_cluster():
    """The cluster, as the test before has left it: for `cluster`."""
    if reason := obstacle():
        pytest.skip(reason)
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster):
    """Four idle nodes. After the test all jobs are cancelled and all nodes healed."""
    yield shared_cluster
    shared_cluster.reset()


@pytest.fixture
def tmp_path(cluster):
    """A new folder that all nodes see: their /tmp is their own."""
    return Path(tempfile.mkdtemp(dir=cluster.shared))


@pytest.fixture
def run(cluster, tmp_path):
    """`run(*overrides)` starts the command `collectx run`; it is killed at the end if it is still running."""
    started = []

    def start(*overrides, inside=()):
        started.append(Run(cluster, tmp_path, overrides, inside))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.fixture(scope="session")
def digest(tmp_path_factory):
    """Returns the digest of the batches of `SMALL`, recorded once by workers in this process."""
    folder = RunFolder(tmp_path_factory.mktemp("local"))
    with pytest.raises(SystemExit) as end:
        main(["run", *SMALL, "launcher=inline", f"hydra.run.dir={folder.path}"])
    assert end.value.code == 0
    return folder.read_result()["digest"]
