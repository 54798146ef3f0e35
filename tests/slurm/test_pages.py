"""The blocks of the pages that need a SLURM cluster run on one as they are written (`tests/pages.py`)."""

import sys
from pathlib import Path

import pages
import pytest

TESTS = Path(pages.__file__).parent
RUN = "import sys, pathlib, pages; pages.run(pathlib.Path(sys.argv[1]), pathlib.Path.cwd(), 600.0)"


@pytest.mark.nightly
@pytest.mark.parametrize(
    "page", [pytest.param(each, id=each.stem) for each in pages.PAGES if pages.needs(each) == "slurm"]
)
def test_the_blocks_of_a_page(cluster, tmp_path, page):
    command = ["env", f"PYTHONPATH={TESTS}", sys.executable, "-c", RUN, str(page)]
    cluster.login(command, timeout=1000, cwd=tmp_path)
