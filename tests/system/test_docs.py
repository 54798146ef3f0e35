"""Every block of the documentation's pages runs as it is written (`tests/pages.py`)."""

import pages
import pytest

TIMEOUT_S = {"test": 120.0, "ci": 300.0, "nightly": 1800.0}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=getattr(pytest.mark, pages.tier(page)))
        for page in pages.PAGES
        if any(block.is_run for block in pages.blocks(page)) and pages.needs(page) is None
    ],
)
def test_the_blocks_of_a_page(page, tmp_path):
    pages.run(page, tmp_path, TIMEOUT_S[pages.tier(page)])


def test_differences_of_what_is_printed():
    def difference(expected, printed=("status completed 12,345 frames", "", "wall_s 1.5", "folder outputs/2026-01-31")):
        return pages.compare(expected, list(printed))[0]

    assert difference([]) is None
    assert difference(["status completed 1 frames", "...", "folder outputs/2025-01-01"]) is None
    assert difference(["status failed 1 frames", "..."]) == "status failed 1 frames"
    assert difference(["status completed 1 frames"]) is not None
    assert difference(["wall_s 1"]) == "wall_s 1"
    assert difference(["...", "a 1", "b 2"], ["a 1", "c", "a 3", "b 4"]) is None
    assert difference(["...", "a 1"], ["a 1", "c", "a 3"]) is None
    assert difference(["2 runs, 1.4 GB, 3 s"], ["4 runs, 1.4 GB, 7 s"]) is None
    assert difference(["2 runs, 1.4 GB, 3 s"], ["2 runs, 1.5 GB, 3 s"]) is not None
    assert difference(["...", "a 1", "c"], ["a 1", "b", "c"]) == "a 1"


def test_a_page_gets_the_numbers_that_are_printed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("1 2\n\n```console\n$ echo 1 2\n8 9\n$ seq 3; echo b   4\n1\n...\nb 7\n```\n")
    lines = pages.run(page, tmp_path, 10.0)
    assert "\n".join(lines) == "1 2\n\n```console\n$ echo 1 2\n1 2\n$ seq 3; echo b   4\n1\n...\nb 4\n```"
