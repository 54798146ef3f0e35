"""What the processes of workers are told of the trainer's process."""

import pytest

from collectx.fork_server import script
from collectx.fork_server.script import Inherited

MAIN = {"init_main_from_name", "init_main_from_path"}


@pytest.mark.parametrize(("method", "is_guarded", "left_out"), [
    ("spawn", True, set()),
    ("fork", True, set()),
    (None, True, set()),
    ("loky", True, {"start_method"}),  # joblib's
    ("spawn", False, MAIN),
    ("loky", False, MAIN | {"start_method"}),
])  # fmt: skip
def test_what_a_worker_does_not_import_or_know_is_left_out(within, monkeypatch, method, is_guarded, left_out):
    told = {"name": "worker", "start_method": method, **dict.fromkeys(sorted(MAIN), "script")}
    within(script, "multiprocessing", get_start_method=lambda allow_none: method)
    within(script, "spawn", get_preparation_data=lambda name: told | {"name": name})
    monkeypatch.setattr(script, "is_guarded", lambda: is_guarded)
    inherited = Inherited({})
    with script.usable_preparation(inherited):
        found = script.spawn.get_preparation_data("worker 1")
    assert next(iter(found)) == "inherited"  # adopted first
    assert found.keys() == {"inherited", *told} - left_out
    assert (found["inherited"], found["name"]) == (inherited, "worker 1")
    assert script.spawn.get_preparation_data("worker 2") == told | {"name": "worker 2"}
