"""The forms in which a keyword's value may be passed."""

from functools import partial

import pytest
import torch

from collectx.config.schema.fields import Unset
from collectx.library import values
from collectx.policy.exploration import ExplorationType

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("convert", "cases"),
    [
        (
            partial(values.for_each, num_workers=2),
            [(3, [3, 3]), ([1, 2], [1, 2]), ((1, 2), [1, 2]), (None, [None] * 2)],
        ),
        (values.entries, [(3, [3]), ([1, 2], [1, 2]), ((), []), ("ab", ["ab"])]),
        (values.kwargs_of, [(True, {}), (False, None), (None, None), ({}, {}), ({"a": 1}, {"a": 1})]),
        (values.positive, [(None, None), (-1, None), (0, None), (1, 1), (7, 7)]),
        (values.port_number, [(None, None), (5000, 5000), ("5000", 5000)]),
        (
            values.exploration_name,
            [(None, "random"), ("MODE", "mode"), (ExplorationType.DETERMINISTIC, "deterministic")],
        ),
        (values.device_name, [(None, None), (CPU, "cpu"), ("cuda:1", "cuda:1")]),
        (values.first_device, [(None, None), ("cpu", "cpu"), (["cuda:1", CPU], "cuda:1"), ([], None)]),
        (
            values.only_device,
            [(None, None), (CPU, "cpu"), (["cpu", CPU], "cpu"), (["cpu", "cuda:0"], None), ([], None)],
        ),
        (
            values.visible_names,
            [(None, None), (0, ["cuda:0"]), ([1, "cuda", CPU, None], ["cuda:1", "cuda:0", "cpu", "cpu"])],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_values_in_every_form(convert, cases):
    assert [convert(value) for value, _ in cases] == [expected for _, expected in cases]


@pytest.mark.parametrize(
    ("convert", "value", "error", "message"),
    [
        (partial(values.for_each, num_workers=2), [1], Unset, "1 entry for 2 workers"),
        (values.port_number, "any", ValueError, "must be a port number"),
        (values.device_name, "gpu", ValueError, "is not a device"),
        (values.device_name, [], ValueError, "is not a device"),
        (values.first_device, ["cpu", "gpu"], ValueError, "is not a device"),
        (values.visible_names, ["gpu"], ValueError, "is not a device"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_values_that_mean_nothing(convert, value, error, message):
    with pytest.raises(error, match=message):
        convert(value)
