"""How a worker's process is set up, within this process, and limits of open files."""

import os
import resource
import signal
import warnings
from types import SimpleNamespace

import pytest
import torch

from collectx.env import mujoco_warnings
from collectx.errors import LauncherError
from collectx.place import local_launcher
from collectx.place.local_launcher import (
    LocalLauncher,
    allow_descriptors,
    check_descriptors,
    leave_signals_to_trainer,
    set_up_process,
)


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


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_signals_are_ignored_in_the_worker_and_end_what_it_forks(monkeypatch):
    kept = []
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(local_launcher, "keep_handlers", lambda handlers, say: kept.append(handlers))
    try:
        leave_signals_to_trainer(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert kept[0][signal.SIGTERM] is signal.getsignal(signal.SIGTERM)
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


# --- descriptors ---


@pytest.fixture(autouse=True)
def open_files(within):
    """This process has 200 open files."""
    within(local_launcher, "psutil", Process=lambda: SimpleNamespace(num_fds=lambda: 200))


@pytest.mark.parametrize(
    ("options", "each", "advice"),
    [
        ({}, 4, "num_workers_per_collector"),
        ({"is_served": True}, 8, "env.num_envs"),
        ({"is_local": False}, 2, "num_workers_per_collector"),
    ],
    ids=str,
)
def test_too_many_workers_for_the_limit_are_refused_with_a_number_that_fits(monkeypatch, options, each, advice):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    check_descriptors(100, **options)
    with pytest.raises(
        LauncherError, match=rf"needs {200 + 32 + each * 10_000} open files \({each} per worker\), but"
    ) as error:
        check_descriptors(10_000, **options)
    assert advice in str(error.value)
    fitting = int(str(error.value).partition("or use at most ")[2].split()[0].replace(",", ""))
    check_descriptors(fitting, **options)
    with pytest.raises(LauncherError):
        check_descriptors(fitting + 1, **options)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (100, 100))
    with pytest.raises(LauncherError, match="or use at most 1 worker, with"):
        check_descriptors(3, **options)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((10, 4096), [(200 + 296, 4096)]),
        ((10, resource.RLIM_INFINITY), [(200 + 296, resource.RLIM_INFINITY)]),
        ((10, 300), [(300, 300)]),
        ((4096, 4096), []),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), []),
    ],
)
def test_the_limit_is_raised_to_what_the_workers_need(monkeypatch, limits, expected):
    raised = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, values: raised.append(values))
    monkeypatch.setattr(local_launcher.forkserver._forkserver, "_forkserver_pid", None)
    allow_descriptors(10)
    assert raised == expected
