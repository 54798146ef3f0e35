"""A cluster for all tests of this folder, brought up with the first and taken down with the last; see `cluster.py`.

Puts this folder on the import path. All tests run in the same process of xdist, and are skipped without SLURM.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
if str(_HERE) not in sys.path:
    sys.path.insert(0, str(_HERE))

from cluster import Cluster  # noqa: E402
from machines import Unsupported  # noqa: E402
from running import SMALL, Run  # noqa: E402

from collectx.cli.main import main  # noqa: E402


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("slurm"))
            # The first one may have to wait for packages, and all of them for a busy machine.
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def shared_cluster():
    """The cluster, as the test before has left it: for `cluster`."""
    try:
        cluster = Cluster.up()
    except Unsupported as reason:
        pytest.skip(str(reason))
    with cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster):
    """Four idle nodes. After the test all jobs are cancelled and all nodes healed."""
    yield shared_cluster
    shared_cluster.reset()


@pytest.fixture
def tmp_path(cluster, request):
    """A new folder that all nodes see: their /tmp is their own."""
    name = f"{request.path.stem}-{request.node.name}"
    folder = cluster.shared / name.translate(str.maketrans("[]/ ", "____"))
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def run(cluster, tmp_path):
    """`run(*overrides)` starts the command `collectx run`; it is killed at the end if it is still running."""
    started: list[Run] = []

    def start(*overrides: str, **options) -> Run:
        started.append(Run(cluster, tmp_path, overrides, **options))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture(scope="session")
def digest(tmp_path_factory):
    """Of the batches of `SMALL`, recorded once by workers in this process."""
    folder = tmp_path_factory.mktemp("local")
    with pytest.raises(SystemExit) as end:
        main(["run", *SMALL, "launcher=inline", f"hydra.run.dir={folder}"])
    assert end.value.code == 0
    return json.loads((folder / "result.json").read_text())["digest"]
