"""YAML and Python refuse the same values of an option by the same rule, and have the same defaults."""

import dataclasses

import pytest

from collectx.config.check import check, check_group
from collectx.config.registry import packaged_values
from collectx.library.keywords.coerce import exploration_problems
from collectx.library.keywords.parse import parse
from collectx.library.request import MultiRequest, RayRequest, RpcRequest

# Options whose keyword has another name, or that are checked by a rule.
NAMES = {"num_threads": "num_sub_threads", "port": "tcp_port", "tensorpipe": "tensorpipe_options"}
REQUEST_OF = {field.name: cls for cls in (RayRequest, RpcRequest, MultiRequest) for field in dataclasses.fields(cls)}
CHOICES = {"backend": "rpc", "launcher": "ray", "collector": "multi_sync", "devices": "cpu", "env": "gym"}
# Python takes None and negative numbers for no limit here, as TorchRL does, and has objects and lists in other places.
LENIENT = {"max_frames_per_traj", "init_random_frames"}
OBJECTS = {"device", "storing_device", "policy_device", "env_device", "remote_configs", "visible_devices"}
# Defaults of TorchRL's, and null for "not given".
DEFAULTS = {"frames_per_batch", "total_frames", "num_workers", "num_envs", "traj_format", "remote_configs"}
VALUES = (-2, -1, 0, 1, 2, 0.5, 1.5, 1e30, float("nan"), float("inf"), "wild", [], {}, ["a"], True)


def shared_options():
    for group, choice in CHOICES.items():
        for name in packaged_values(group, choice):
            keyword = NAMES.get(name, name)
            if keyword in REQUEST_OF and name != "kind":
                yield f"{group}.{name}", keyword
    yield "seed", "seed"


OPTIONS = dict(shared_options())


def in_python(keyword, value):
    request, problems = parse("Collector", REQUEST_OF[keyword], (None,), {"sync": False, keyword: value})
    return problems + (exploration_problems("", request.exploration) if keyword == "exploration_type" else [])


def in_yaml(path, value):
    group, _, name = path.rpartition(".")
    problems = []
    if group:
        check_group(group, packaged_values(group, CHOICES[group]) | {name: value}, problems)
    else:
        problems = check({path: value})[1]
    return [problem.text() for problem in problems if problem.path == path]


def rule(problem):
    return problem.rpartition("must be ")[2].partition("; did you")[0]


@pytest.mark.parametrize("path", [path for path, keyword in OPTIONS.items() if keyword not in LENIENT | OBJECTS])
def test_the_same_values_are_refused_by_the_same_rule(path):
    field = next(field for field in dataclasses.fields(REQUEST_OF[OPTIONS[path]]) if field.name == OPTIONS[path])
    for value in VALUES:
        # In Python 0 and 1 are bools, and frames_per_batch may be a list.
        if (isinstance(field.default, bool) and value in (0, 1)) or (path.endswith("frames_per_batch") and value == []):
            continue
        python, yaml = in_python(OPTIONS[path], value), in_yaml(path, value)
        assert len(python) == len(yaml), (value, python, yaml)
        rules = {rule(problem) for problem in (*python, *yaml)}
        if all(words.startswith(("at least", "greater", "one of")) for words in rules):
            assert len(rules) <= 1


def test_many_options_are_shared_and_defaults_are_equal():
    assert len(OPTIONS) > 30
    for path, keyword in OPTIONS.items():
        field = next(field for field in dataclasses.fields(REQUEST_OF[keyword]) if field.name == keyword)
        group, _, name = path.rpartition(".")
        packaged = packaged_values(group, CHOICES[group])[name] if group else 0
        default = getattr(field.default, "value", field.default)
        if keyword not in DEFAULTS and group not in ("env", "devices"):
            assert (default or None) == (packaged or None), path
