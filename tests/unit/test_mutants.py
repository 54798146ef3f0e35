"""Which failures count as the end of a mutant (`tests/mutants.py`)."""

import mutants
import pytest
from mutants import ROOT, Mutant, killer_of

FILE = "collectx/batch.py"
MUTANT = Mutant(FILE, 1, "", "changed = True", 0, 0)


@pytest.mark.parametrize("killer", ["tests/c.py::test_c[x - y]", "timed out", None])
def test_a_failure_counts_that_there_is_not_without_the_mutant(monkeypatch, tmp_path, killer):
    flaky = ["tests/a.py::test_a", "tests/b.py::test_b"]

    def first_failure(root, tests, left_out):
        is_changed = (root / FILE).read_bytes() == MUTANT.applied()
        left = [test for test in flaky if test in tests or (is_changed and test not in left_out)]
        return left[0] if left else killer if is_changed else None

    (tmp_path / FILE).parent.mkdir()
    monkeypatch.setattr(mutants, "first_failure", first_failure)
    assert killer_of(tmp_path, MUTANT, ["tests"]) == killer
    assert (tmp_path / FILE).read_bytes() == (ROOT / FILE).read_bytes()


def test_every_target_has_files_and_tests():
    for target, (share, tests) in mutants.TARGETS.items():
        assert share <= sum(len(mutants.mutants(file)) for file in mutants.modules(target)), target
        assert mutants.covering(tests)
    for file in mutants.UNCOVERED:
        assert (ROOT / file).is_file(), file
