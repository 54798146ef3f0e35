"""Limits of open files."""

import resource

import pytest

from collectx.errors import LauncherError
from collectx.place.local_launcher import check_descriptors


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
    with pytest.raises(LauncherError, match=rf"\({each} per worker\), but the limit is 4096") as error:
        check_descriptors(10_000, **options)
    assert advice in str(error.value)
    fitting = int(str(error.value).partition("or use ")[2].split()[0])
    check_descriptors(fitting, **options)
    with pytest.raises(LauncherError):
        check_descriptors(fitting + 20, **options)
