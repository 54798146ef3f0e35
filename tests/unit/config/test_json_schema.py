"""`collectx schema`: every packaged file is valid, and wrong values are not."""

# ruff: noqa: RUF009, the calls in defaults make a `field`
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from collectx.cli import schema
from collectx.config import json_schema
from collectx.config.json_schema import run_schema
from collectx.config.registry import GROUPS
from collectx.config.schema.fields import Section, option, required, section

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


@dataclass(kw_only=True)
class Part(Section):
    depth: int = option(1, "How deep.", minimum=1, maximum=9)


@dataclass(kw_only=True)
class Everything(Section):
    """An option of every form."""

    kind: str = required("The kind.", kept=True)
    count: int = option(2, "How many.", minimum=1, kept=True)
    port: int | None = option(None, "`null`: any port.", minimum=1, bits=16)
    total: int = option(-1, "-1: no limit.", minimum=1, also=(-1,))
    rate: float = option(0.5, "`true`: a rate.", above=0, maximum=1)
    word: str = option("a", "A word.", choices=("a", "b"))
    text: str | None = option(None, "A text.")
    flag: bool = option(False, "A flag.")
    sizes: list[int] = option([64], "Sizes.", minimum=1)
    keys: list[str | dict[str, Any]] = option([], "Keys.")
    items: list[Any] = option([], "Items.")
    kwargs: dict[str, Any] = option({}, "Arguments.")
    anything: Any = option(None, "Anything.")
    part: Part = section(Part, "A part.")
    other: Part | None = option(None, "Another part.")


def test_a_whole_section(expected):
    expected("schema of a section", json_schema._section(Everything))


def test_the_options_of_each_group(expected):
    """The schema also accepts what stands for a value in a file that others complete."""
    groups = {group: [each["title"] for each in json_schema.group_schema(group)["anyOf"]] for group in GROUPS}
    loggers = {name: [*each] for name, each in json_schema.loggers().items()}
    whole = {name: each for name, each in run_schema().items() if name != "properties"}
    properties = {name: [*each] for name, each in run_schema()["properties"].items()}
    expected("schemas", {"groups": groups, "loggers": loggers, "run": whole, "properties": properties})


def test_an_unknown_group_is_refused(capsys):
    assert schema.main(["colector"]) == 2
    assert "Did you mean collector?" in capsys.readouterr().err
