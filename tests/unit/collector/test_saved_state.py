"""The entries of a collector's state from which its workers continue."""

from collectx.collector.saved_state import next_histories, save_workers
from collectx.collector.worker_record import WorkerRecord
from collectx.transport.base import Request
from collectx.worker.spec import ProcessHistory


def test_each_resume_adds_a_restart_also_to_the_incarnations_of_older_states():
    older = {"incarnations": {0: 0, 1: 3}, "workers": {0: {}}}
    assert next_histories(older) == {0: ProcessHistory(0, 1), 1: ProcessHistory(4, 4)}
    newer = {**older, "restart_counts": {0: 2, 1: 3, 2: 0}}
    assert next_histories(newer) == {0: ProcessHistory(0, 3), 1: ProcessHistory(4, 4), 2: ProcessHistory(0, 1)}


def test_what_a_starting_worker_is_told_is_no_state():
    told = WorkerRecord(0, first_requests=[Request("ready"), Request("set_hook", ("post_collect_hook", None))])
    loading = WorkerRecord(1, first_requests=[Request("set_hook", ("post_collect_hook", None))], saved={"rollout": {}})
    assert save_workers([told, loading], {}) == {
        "incarnations": {1: 0},
        "workers": {1: {"rollout": {}}},
        "restart_counts": {0: 0, 1: 0},
    }
