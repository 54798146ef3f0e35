"""The entries of a collector's state from which its workers continue."""

from collectx.collector.saved_state import first_restart_counts


def test_each_resume_adds_a_restart_also_to_the_incarnations_of_older_states():
    older = {"incarnations": {0: 0, 1: 3}, "workers": {0: {}}}
    assert first_restart_counts(older) == {0: 1, 1: 4}
    assert first_restart_counts({**older, "restart_counts": {0: 2, 1: 3, 2: 0}}) == {0: 3, 1: 4, 2: 1}
