"""The entries of a collector's state from which its workers continue."""

from collectx.collector.saved_state import next_histories
from collectx.worker.spec import ProcessHistory


def test_each_resume_adds_a_restart_also_to_the_incarnations_of_older_states():
    older = {"incarnations": {0: 0, 1: 3}, "workers": {0: {}}}
    assert next_histories(older) == {0: ProcessHistory(0, 1), 1: ProcessHistory(4, 4)}
    newer = {**older, "restart_counts": {0: 2, 1: 3, 2: 0}}
    assert next_histories(newer) == {0: ProcessHistory(0, 3), 1: ProcessHistory(4, 4), 2: ProcessHistory(0, 1)}
