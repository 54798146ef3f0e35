"""`collectx resume RUN option=value` for every option of the schema that a resume accepts: those without an effect on
batches leave the next batches as they are, all others change them, or what the trainer makes of them.

A new option is tested without a change here, unless its first other value shows nothing in a small run.
"""

import json
import subprocess
import sys
from dataclasses import fields

import pytest
import yaml
from commands import COUNTING, collectx, environment

from collectx.config.registry import schemas
from collectx.run import RunFolder

INLINE = ["env=counting", "launcher=inline", "collector.frames_per_batch=256", "collector.total_frames=51200"]
ASYNC = [*INLINE, "collector=multi_async"]
SYNC = [*INLINE, "collector=single"]
# Runs with small batches, and the groups whose options are changed.
RUNS = {
    "ppo": ([*SYNC, "trainer.minibatch_size=64", "trainer.num_epochs=2"], ["trainer"]),
    "impala": ([*ASYNC, "trainer=impala"], ["trainer", "collector"]),
    "dqn": (
        [*SYNC, "policy=q_mlp", "trainer=dqn", "trainer.warmup_frames=300", "trainer.epsilon_frames=100000"],
        ["trainer"],
    ),
    "record": ([*SYNC, "trainer=record", "trainer.digest=true"], ["trainer"]),
}
BATCHES, MORE = 5, 10
# Where the first other value in the option's range shows nothing within a few batches.
VALUES = {
    "trainer.buffer_frames": 100,
    "trainer.clip_epsilon": 0.001,
    "trainer.flush_every_frames": 100,
    "trainer.max_grad_norm": 0.001,
    "trainer.target_return": -1000,
    "trainer.warmup_frames": 100_000,
}
# Options that change no batch of a run without failures.
SILENT = {
    "trainer.check_finite": "ends a run with NaN",
    "collector.check_finite": "ends a run with NaN",
    "collector.zero_copy": "copies the same batch, or does not",
    "collector.refresh": "an inline worker does not act while the trainer publishes",
}
# Runs the command for one case after another, as a new process for each would spend most of its time on imports.
COMMANDS = """
import json, shutil, sys
from collectx.cli.main import main
statuses = {}
for name, words in json.load(open("cases.json")).items():
    shutil.copytree("base", name)
    try:
        main(["resume", name, *words])
    except SystemExit as end:
        statuses[name] = end.code
json.dump(statuses, open("statuses.json", "w"))
"""


def other_value(field, value):
    """Another value of an option."""
    if field.metadata.get("choices"):
        return next(each for each in field.metadata["choices"] if each != value)
    if isinstance(value, bool) or "bool" in str(field.type):
        return not value
    if "str" in str(field.type):
        return "other"
    number = value or 0
    low, high = field.metadata.get("minimum", field.metadata.get("above", 0)), field.metadata.get("maximum", 1e9)
    candidates = (number / 2, number * 2, number + 1) if "float" in str(field.type) else (number * 2, number + 1)
    return next(each for each in candidates if each != value and low <= each <= high)


def cases(groups, content):
    """The options of these groups that a resume may change, each with `option=value`, and those without an effect."""
    changes, silent = {}, {*SILENT}
    for group in groups:
        for field in fields(schemas(group)[content[group]["kind"]]):
            option = f"{group}.{field.name}"
            if not field.metadata.get("is_kept") and option != "collector.order_of":  # tested below
                value = VALUES.get(option) if option in VALUES else other_value(field, content[group].get(field.name))
                changes[option] = f"{option}={json.dumps(value)}"
            if field.metadata.get("is_without_effect"):
                silent.add(option)
    if content["trainer"]["kind"] == "dqn":
        silent.add("trainer.digest")  # the worker writes its batches to the replay buffer, without a digest
    return changes, silent & {*changes}


def outcome(folder):
    """The batches after the resume, and what the trainer has made of them."""
    files = RunFolder(folder)
    keys = ("frames", "version", "digest", "scalars")
    lines = [{key: line.get(key) for key in keys} for line in files.read_metrics()][BATCHES:]
    written = [path for path in (files.policy, *sorted((folder / "data").rglob("*"))) if path.is_file()]
    return lines, [hash(path.read_bytes().replace(str(folder).encode(), b"")) for path in written]


@pytest.mark.parametrize("name", RUNS)
def test_every_option_that_a_resume_accepts_acts(tmp_path, name):
    words, groups = RUNS[name]
    collectx("run", *words, f"run.max_batches={BATCHES}", "hydra.run.dir=base", cwd=tmp_path)
    changes, silent = cases(groups, yaml.safe_load((tmp_path / "base" / "snapshot" / "config.yaml").read_text()))
    lines = {"same": "seed=0", "again": "seed=0", **changes}
    (tmp_path / "cases.json").write_text(
        json.dumps({key: [line, f"run.max_batches={MORE}"] for key, line in lines.items()})
    )
    said = subprocess.run(
        [sys.executable, "-c", COMMANDS], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    assert set(json.loads((tmp_path / "statuses.json").read_text()).values()) == {0}, said.stderr
    outcomes = {option: outcome(tmp_path / option) for option in lines}
    same = outcomes.pop("same")
    assert outcomes.pop("again") == same
    assert {option for option, each in outcomes.items() if each == same} == silent


def test_a_run_that_repeats_the_order_of_another_one_is_resumed_in_this_order(tmp_path):
    words = [*COUNTING, "env.step_s=0.0005", "collector=multi_async", "collector.num_workers=3", "trainer.digest=true"]
    collectx("run", *words, "run.max_batches=40", "hydra.run.dir=first", cwd=tmp_path)
    order = ["collector.order_of=first", "run.max_batches=16", "hydra.run.dir=second"]
    collectx("run", *words, *order, cwd=tmp_path)
    collectx("resume", "second", "run.max_batches=40", cwd=tmp_path)
    first, second = (
        [line["digest"] for line in RunFolder(tmp_path / name).read_metrics()] for name in ("first", "second")
    )
    assert first == second
