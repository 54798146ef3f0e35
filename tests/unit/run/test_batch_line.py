"""A line of `metrics.jsonl`, as it is written and read."""

import json
import math
from pathlib import Path

import pytest
from batch_lines import batch_line

from collectx.errors import DamagedFileError
from collectx.run.folder.batch_line import BatchLine, PartTotals, WorkerEntry

TOTALS = PartTotals((1.0, 2.0, 3.0, 0.5), 60, 2, 4, 10.0)
WHOLE = batch_line(
    3,
    frames_per_s=12.5,
    settings=2,
    episodes=2,
    num_episodes=7,
    batch_return=0.0,
    batch_length=11.0,
    mean_return=4.5,
    resumed=True,
    workers=[WorkerEntry(1, 2, 0, TOTALS), WorkerEntry(0, 3)],
    taking_part=[1, 2],
    digest="xxh3-0",
    scalars={"loss": 0.5},
    eval={"return": 3.0},
)


@pytest.mark.parametrize("line", [batch_line(), WHOLE])
def test_a_line_is_read_as_it_was_written(line):
    assert BatchLine.of(json.loads(json.dumps(line.to_json())), Path("metrics.jsonl")) == line


def test_what_a_batch_lacks_is_left_out_and_numbers_are_short():
    assert batch_line().to_json().keys() == {"batch", "time", "frames", "frames_per_s", "waited_s", "version", "lag"}
    line = batch_line(time=1.23456, waited_s=0.12345678, scalars={"loss": 0.123456789, "frames": 123456789.0}).to_json()
    assert (line["time"], line["waited_s"]) == (1.235, 0.123457)
    assert line["scalars"] == {"loss": 0.1234568, "frames": 123456789.0}


def test_a_scalar_that_json_cannot_say_is_nan():
    read = BatchLine.of(batch_line().to_json() | {"scalars": {"loss": None}}, Path("metrics.jsonl"))
    assert math.isnan(read.scalars["loss"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"frames": None}, "does not describe a batch: .*NoneType"),
        ({"time": "now"}, "does not describe a batch: .*'now'"),
        ({"lag": []}, "does not describe a batch: .*list"),
        ({"mean_return": "high"}, "does not describe a batch: .*'high'"),
        ({"digest": 5}, "does not describe a batch: its digest is 5"),
        ({"scalars": []}, "does not describe a batch: .*items"),
        ({"scalars": {"loss": {}}}, "does not describe a batch: .*dict"),
        ({"workers": [[]]}, "does not describe a batch: .*list"),
        ({"workers": 3}, "does not describe a batch: .*int"),
        ({"workers": [{"worker": 0}]}, "has no 'policy_version'"),
        ({"workers": [{"worker": 0, "policy_version": 0, "frames": 10}]}, "has no 'env_s'"),
    ],
    ids=str,
)
def test_a_line_that_is_damaged_is_named(damage, message):
    with pytest.raises(DamagedFileError, match=f"^metrics.jsonl is damaged: line 7 {message}"):
        BatchLine.of(batch_line().to_json() | damage, Path("metrics.jsonl"), "line 7")


@pytest.mark.parametrize("key", ["batch", "time", "frames", "frames_per_s", "waited_s", "version", "lag"])
def test_a_line_without_a_number_is_named(key):
    line = batch_line().to_json()
    del line[key]
    with pytest.raises(DamagedFileError, match=f"^metrics.jsonl is damaged: a line has no '{key}'$"):
        BatchLine.of(line, Path("metrics.jsonl"))
