"""The entries of a collector's state from which its workers continue."""

from collectx.collector.saved_state import next_histories, num_workers_in, of_state_dict, save_workers, to_state_dict
from collectx.collector.worker_record import WorkerRecord
from collectx.transport.base import Request
from collectx.worker.spec import ProcessHistory


def test_each_resume_adds_a_restart():
    state = {"incarnations": {0: 0, 1: 3}, "workers": {0: {}}, "restart_counts": {0: 2, 1: 3, 2: 0}}
    assert next_histories(state) == {0: ProcessHistory(0, 3), 1: ProcessHistory(4, 4), 2: ProcessHistory(0, 1)}


def test_a_state_dict_is_the_state_under_the_keys_of_torchrl():
    entry = {"rollout": {"episodes": {}}}
    saved = {"frames": 8, "batches": 2, "frames_by_worker": {1: 8}, "version": 3, "settings": {}, "undelivered": []}
    saved |= {"workers": {1: entry}, "assembler": None}
    found = to_state_dict(saved, 5)
    assert {name: found[name] for name in ("frames", "iter", "worker1")} == {"frames": 8, "iter": 2, "worker1": entry}
    assert found["policy_version"] == 8
    again, offset = of_state_dict(found)
    del saved["version"]
    assert again.items() >= saved.items()
    assert (offset, num_workers_in(again)) == (5, 2)


def test_what_a_starting_worker_is_told_is_no_state():
    told = WorkerRecord(0, first_requests=[Request("ready"), Request("set_hook", ("post_collect_hook", None))])
    loading = WorkerRecord(1, first_requests=[Request("set_hook", ("post_collect_hook", None))], saved={"rollout": {}})
    assert save_workers([told, loading], {}) == {
        "incarnations": {1: 0},
        "workers": {1: {"rollout": {}}},
        "restart_counts": {0: 0, 1: 0},
    }
