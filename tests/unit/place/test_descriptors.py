"""Limits of open files."""

import resource
from types import SimpleNamespace

import pytest

from collectx.errors import LauncherError
from collectx.place import local_launcher
from collectx.place.local_launcher import allow_descriptors, check_descriptors


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
    fitting = int(str(error.value).partition("or use at most ")[2].split()[0])
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
