"""Which worker gets which values of `set_attr`."""

from types import SimpleNamespace

import pytest

from collectx.collector.env_methods import EnvMethods


class Recorder(EnvMethods):
    """Of workers with two envs each, of which those in `ready` take part; keeps what the envs get."""

    def __init__(self, num_started, ready):
        self.got = None
        self._core = SimpleNamespace(
            num_envs=2 * num_started,
            envs_per_worker=2,
            worker_indices=ready,
            change=lambda *change: setattr(self, "got", change),
        )

    def _with_core(self, use):
        return use(self._core)


@pytest.mark.parametrize(
    ("num_started", "ready", "values", "contents"),
    [
        (2, [0, 1], 7, [(False, 7)]),
        (2, [0, 1], (1, 2, 3, 4), [(True, [1, 2]), (True, [3, 4])]),
        # Worker 0 is lost, or starting.
        (3, [1, 2], [1, 2, 3, 4, 5, 6], [(True, [1, 2]), (True, [3, 4]), (True, [5, 6])]),
        (3, [1, 2], [1, 2, 3, 4], [(True, [1, 2]), (True, [1, 2]), (True, [3, 4])]),
        (3, [0, 1], [1, 2, 3, 4], [(True, [1, 2]), (True, [3, 4]), (True, [1, 2])]),
    ],
)
def test_a_list_has_a_value_for_each_env_of_the_run_or_for_each_that_can_be_read(num_started, ready, values, contents):
    envs = Recorder(num_started, ready)
    envs.set_attr("level", values)
    assert envs.got == ("set_attr", "level", contents)


@pytest.mark.parametrize(("ready", "values"), [([0, 1], [1]), ([0], [1, 2, 3]), ([], [])])
def test_a_list_of_another_length_is_refused(ready, values):
    with pytest.raises(ValueError, match=rf"got {len(values)} values? for 4 envs.*pass \[values\] \* 4"):
        Recorder(2, ready).set_attr("level", values)
