"""How a worker's process is set up, within this process."""

import os
import signal
import warnings

import pytest
import torch

from collectx.env import mujoco_warnings
from collectx.place import local_launcher
from collectx.place.local_launcher import LocalLauncher, leave_signals_to_trainer, set_up_process


@pytest.fixture
def calls(monkeypatch, within):
    """Records the calls of the operating system."""
    made = []

    def note(name, result=None):
        return lambda *arguments: made.append((name, *arguments)) or result

    names = ("setpgid", "sched_setaffinity", "dup2", "close")
    within(local_launcher, "os", open=note("open", 9), **{name: note(name) for name in names})
    set_handler = lambda signum, handler: made.append((signum, handler))  # noqa: E731
    within(local_launcher, "signal", signal=set_handler, getsignal=lambda signum: signal.SIG_DFL)
    monkeypatch.setattr(local_launcher, "keep_handlers", lambda handlers, say: made.append(("keep", sorted(handlers))))
    monkeypatch.setattr(mujoco_warnings, "shown", set())
    return made


def test_a_worker_is_set_up_as_asked(calls):
    with warnings.catch_warnings():
        warnings.resetwarnings()
        set_up_process(1, 3, "/logs/worker-0.log", True, ["unstable"])
        assert warnings.filters[0][0] == "ignore"
    handled = [call[0] for call in calls if call[0] in set(signal.Signals)]
    assert handled == [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM]
    assert [call[1] for call in calls if call[0] in handled[:4]] == [signal.SIG_IGN] * 4
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    assert [call for call in calls if call[0] not in handled] == [
        ("setpgid", 0, 0),
        ("keep", []),
        ("sched_setaffinity", 0, {3}),
        ("open", "/logs/worker-0.log", flags, 0o644),
        ("dup2", 9, 1),
        ("dup2", 9, 2),
        ("close", 9),
    ]
    assert torch.get_num_threads() == 1
    assert mujoco_warnings.shown == {"unstable"}


def test_a_worker_without_core_log_and_warnings(calls):
    with warnings.catch_warnings():
        warnings.resetwarnings()
        set_up_process(1, None, None, False, [])
        assert warnings.filters == []
    assert [call[0] for call in calls if isinstance(call[0], str)] == ["setpgid", "keep"]


@pytest.mark.parametrize(("is_pinned", "cores"), [(True, [2, 5, 7, 2, 5]), (False, [None] * 5)])
def test_workers_take_the_cores_of_this_process_in_turn(within, is_pinned, cores):
    within(local_launcher, "os", sched_getaffinity=lambda process: {7, 2, 5})
    launcher = LocalLauncher(3, pin_cores=is_pinned)
    setups = [launcher.process_setup(worker) for worker in range(5)]
    assert [each["core"] for each in setups] == cores
    assert {(each["num_threads"], each["log"]) for each in setups} == {(3, None)}


def test_signals_are_ignored_in_the_worker_and_end_what_it_forks(monkeypatch, within):
    process, killed, kept = [10], [], []
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(local_launcher, "keep_handlers", lambda handlers, say: kept.append(handlers))
    within(local_launcher, "os", getpid=lambda: process[0], kill=lambda *arguments: killed.append(arguments))
    try:
        leave_signals_to_trainer(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert killed == []
        assert kept[0][signal.SIGTERM] is signal.getsignal(signal.SIGTERM)
        process[0] = 11  # an env's child
        signal.raise_signal(signal.SIGTERM)
        assert killed == [(11, signal.SIGTERM)]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
