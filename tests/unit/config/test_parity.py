"""YAML and Python refuse the same values of an option by the same rule, and have the same defaults."""

import dataclasses

import pytest

from collectx.config.check import check_config, check_group
from collectx.config.registry import schemas
from collectx.config.schema.fields import default_of
from collectx.library.keywords import MultiKeywords, RayKeywords, RpcKeywords
from collectx.library.parse import option_value, parse

# The field of each keyword, and a constructor that takes it.
FIELDS = {
    field.name: (field, cls) for cls in (RayKeywords, RpcKeywords, MultiKeywords) for field in dataclasses.fields(cls)
}
# Another keyword is the same option, and two choose a group.
OTHERS = {"exploration_mode", "backend", "launcher"}
KEYWORDS = {name: field for name, (field, _) in FIELDS.items() if "path" in field.metadata and name not in OTHERS}
OPTIONS = {field.metadata["path"]: name for name, field in KEYWORDS.items()}
CHOICES = {"backend": "rpc", "launcher": "ray", "collector": "rpc", "devices": "cpu", "env": "gym"}
# Python takes None and negative numbers for no limit here, as TorchRL does, and has objects and lists in other places.
LENIENT = {"max_frames_per_traj", "init_random_frames"}
DEVICES = {"device", "storing_device", "policy_device", "env_device"}
OBJECTS = DEVICES | {"remote_configs", "visible_devices", "collector_class"}
# Defaults of TorchRL's, and null for "not given".
DEFAULTS = {"frames_per_batch", "total_frames", "num_workers", "remote_configs", "collector_class"}
VALUES = (-2, -1, 0, 1, 2, 0.5, 1.5, 1e30, float("nan"), float("inf"), "wild", [], {}, ["a"], True)


def in_python(keyword, value):
    return parse("Collector", FIELDS[keyword][1], (None,), {"sync": False, keyword: value})[1]


def in_yaml(path, value):
    group, _, name = path.rpartition(".")
    problems = []
    if group:
        check_group(group, ({"kind": CHOICES[group]} if group != "devices" else {}) | {name: value}, problems)
    else:
        problems = check_config({path: value})[1]
    return [problem.text() for problem in problems if problem.path == path]


def rule(problem):
    return problem.rpartition("must be ")[2].partition("; did you")[0]


@pytest.mark.parametrize("path", [path for path, keyword in OPTIONS.items() if keyword not in LENIENT | OBJECTS])
def test_the_same_values_are_refused_by_the_same_rule(path):
    default = FIELDS[OPTIONS[path]][0].default
    for value in VALUES:
        # In Python 0 and 1 are bools, and frames_per_batch may be a list.
        if (isinstance(default, bool) and value in (0, 1)) or (path.endswith("frames_per_batch") and value == []):
            continue
        python, yaml = in_python(OPTIONS[path], value), in_yaml(path, value)
        assert len(python) == len(yaml), (value, python, yaml)
        rules = {rule(problem) for problem in (*python, *yaml)}
        if all(words.startswith(("at least", "greater", "one of")) for words in rules):
            assert len(rules) <= 1


def test_many_options_are_shared_and_defaults_are_equal():
    assert len(OPTIONS) > 30
    for path, keyword in OPTIONS.items():
        field, (group, _, name) = FIELDS[keyword][0], path.rpartition(".")
        if keyword not in DEFAULTS and group not in ("", "env", "devices"):
            assert option_value(field, field.default) == default_of(
                schemas(group)[CHOICES[group]].__dataclass_fields__[name]
            ), path
