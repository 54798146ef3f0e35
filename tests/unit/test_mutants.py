"""Which failures count as the end of a mutant (`tests/mutants.py`)."""

from dataclasses import replace

import mutants
import pytest
from mutants import ROOT, Coverage, Mutant, killer_of

FILE = "collectx/batch.py"
MUTANT = Mutant(FILE, 1, 1, True, "", "changed = True", 0, 0)


@pytest.mark.parametrize("killer", ["tests/c.py::test_c[x - y]", "timed out", None])
def test_a_failure_counts_that_there_is_not_without_the_mutant(monkeypatch, tmp_path, killer):
    flaky = ["tests/a.py::test_a", "tests/b.py::test_b"]

    def first_failure(root, tests):
        is_changed = (root / FILE).read_bytes() == MUTANT.applied()
        failing = [test for test in tests if test in flaky]
        return failing[0] if failing else killer if is_changed else None

    (tmp_path / FILE).parent.mkdir()
    monkeypatch.setattr(mutants, "first_failure", first_failure)
    assert killer_of(tmp_path, MUTANT, [*flaky, "tests/c.py::test_c[x - y]"]) == killer
    assert (tmp_path / FILE).read_bytes() == (ROOT / FILE).read_bytes()


def test_the_tests_of_a_mutant_execute_its_statement_or_else_its_file():
    coverage = Coverage(["a", "b", "c"], {(FILE, 1): 0b001, (FILE, 2): 0b110, ("cli/run.py", 1): 0b100}, failed=["c"])
    assert [coverage.of(replace(MUTANT, first=line, last=line)) for line in (1, 2, 9)] == [["a"], ["b"], ["a", "b"]]
    assert coverage.of(replace(MUTANT, is_in_function=False)) == ["a", "b"]


def test_every_module_is_of_one_target():
    files = {str(path.relative_to(ROOT)) for part in ("cli", "collectx") for path in (ROOT / part).rglob("*.py")}
    of_targets = [file for target in mutants.TARGETS for file in mutants.modules(target)]
    assert sorted(of_targets) == sorted(files - mutants.UNCOVERED - mutants.DRAWING)


@pytest.mark.ci
def test_every_target_has_mutants():
    assert len(mutants.chosen(0)) == sum(mutants.TARGETS.values()) >= 150
    for file in mutants.UNCOVERED:
        assert (ROOT / file).is_file(), file
