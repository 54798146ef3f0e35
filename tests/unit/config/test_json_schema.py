"""`collectx schema`: every packaged file is valid, and wrong values are not."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from collectx.cli import schema
from collectx.config.json_schema import run_schema
from collectx.config.registry import GROUPS

CONF = Path(schema.__file__).parents[1] / "conf"


def validator(capsys, *words):
    assert schema.main(words) == 0
    return jsonschema.Draft7Validator(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("group", [*GROUPS, "experiment"])
def test_packaged_files_are_valid(group, capsys):
    checks = validator(capsys, *([] if group == "experiment" else [group]))
    files = {path: yaml.safe_load(path.read_text()) for path in CONF.glob(f"{group}/*.yaml")}
    assert files
    assert [path for path, content in files.items() if not checks.is_valid(content)] == []


def test_a_key_has_the_comment_of_its_section():
    properties = run_schema()["properties"]
    texts = [properties["seed"], *(properties[name]["properties"]["every_batches"] for name in ("checkpoint", "eval"))]
    seed, checkpoint, evaluation = (each["description"] for each in texts)
    assert "all random numbers" in seed
    assert "checkpoint" in checkpoint
    assert "evaluat" in evaluation
    assert "checkpoint" not in evaluation
    # What a resume refuses to change.
    assert [each.endswith("Fixed on resume.") for each in (seed, checkpoint)] == [True, False]


def test_wrong_values_and_keys_are_invalid_and_interpolations_are_not(capsys):
    checks = validator(capsys)
    wrong = ({"num_slots": 0}, {"num_slot": 1}, {"refresh": "never"}, {"zero_copy": 1}, {"preemptive_threshold": 2})
    assert [section for section in wrong if checks.is_valid({"collector": section})] == []
    right = (
        {"num_slots": "${seed}"},
        {"total_frames": -1},
        {"preemptive_threshold": None},
        {"kind": "ray", "sync": True},
    )
    assert [section for section in right if not checks.is_valid({"collector": section})] == []
    option = next(
        each for each in checks.schema["properties"]["collector"]["anyOf"] if each["title"].endswith("single")
    )
    assert option["properties"]["num_workers"]["default"] == 1
    assert "Maximum seconds" in option["properties"]["worker_timeout_s"]["description"]


def test_an_unknown_group_is_refused(capsys):
    assert schema.main(["colector"]) == 2
    assert "Did you mean collector?" in capsys.readouterr().err
