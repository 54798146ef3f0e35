"""The options and fixtures of all tests (`tests/conftest.py`)."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from expected import Expected


@pytest.fixture
def conftest(request):
    return request.config.pluginmanager.get_plugin(str(Path(__file__).parents[1] / "conftest.py"))


@pytest.mark.parametrize(("tier", "lines"), [("test", []), ("ci", ["add --tier=test or --tier=all"])])
def test_where_all_tests_are_of_other_tiers_these_are_named(conftest, request, tier, lines):
    config = SimpleNamespace(getoption=lambda name: tier, stash=pytest.Stash(), hook=Mock())
    reporter, items = Mock(), [request.node]
    conftest.pytest_collection_modifyitems(config, items)
    conftest.pytest_terminal_summary(reporter, config)
    assert len(items) == 1 - len(lines)
    assert [call.args[0].partition(": ")[2] for call in reporter.write_line.call_args_list] == lines


def test_an_expected_result_is_written_and_compared(tmp_path):
    rows = {"rows": [[number, "é", 0.5] for number in range(12)], "of": Path("x"), "none": []}
    Expected(tmp_path / "expected", is_update=True)("rows", rows)
    expected = Expected(tmp_path / "expected")
    expected("rows", rows)
    assert (tmp_path / "expected" / "rows.json").read_text().startswith('{\n "rows": [\n  [0, "é", 0.5],\n  [1')
    with pytest.raises(AssertionError, match="differs"):
        expected("rows", rows | {"none": [1]})
    with pytest.raises(AssertionError, match="missing: pytest --update-expected"):
        expected("rows", "text")
