"""Every block of the documentation's pages runs as it is written (`tests/pages.py`)."""

import pages
import pytest

TIMEOUT_S = {"test": 120.0, "ci": 300.0, "nightly": 1800.0}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=getattr(pytest.mark, pages.tier(page)))
        for page in pages.PAGES
        if any(block.is_run for block in pages.blocks(page))
    ],
)
def test_the_blocks_of_a_page(page, tmp_path):
    pages.run(page, tmp_path, TIMEOUT_S[pages.tier(page)])


def test_differences_of_what_is_printed():
    printed = ["status completed 12,345 frames", "", "wall_s 1.5", "folder outputs/2026-01-31/12-00-00"]
    assert pages.first_difference([], printed) is None
    assert (
        pages.first_difference(["status completed 1 frames", "...", "folder outputs/2025-01-01/0-0-0"], printed) is None
    )
    assert pages.first_difference(["status failed 1 frames", "..."], printed) == "status failed 1 frames"
    assert pages.first_difference(["status completed 1 frames"], printed) is not None
    assert pages.first_difference(["wall_s 1"], printed) == "wall_s 1"
    assert pages.first_difference(["...", "a 1", "b 2"], ["a 1", "c", "a 3", "b 4"]) is None
    assert pages.first_difference(["...", "a 1"], ["a 1", "c", "a 3"]) is None
    assert pages.first_difference(["...", "a 1", "c"], ["a 1", "b", "c"]) == "a 1"
