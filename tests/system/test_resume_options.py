"""`collectx resume RUN option=value` for every option of the schema that a resume accepts: those without an effect on
batches leave the next batches as they are, all others change them, or what the trainer makes of them.

A new option of the trainer or the collector is tested without a change here, unless its first other value shows nothing
in a small run. The other groups and sections have an effect of their own each: a new option needs a row of `EFFECTS`.
"""

import json
import shlex
import shutil
import socket
import subprocess
import sys
import typing
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import yaml
from commands import COUNTING, collectx, environment, forked

from collectx.config.registry import schemas
from collectx.config.schema.fields import section_of
from collectx.config.schema.run import SECTIONS
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
    "sac": (
        [
            *SYNC,
            "env=pendulum",
            "policy=squashed_mlp",
            "trainer=sac",
            "trainer.warmup_frames=300",
            "trainer.batch_size=16",
            "trainer.updates_per_frame=0.05",
            "policy.hidden_sizes=[16]",
        ],
        ["trainer"],
    ),
    "record": ([*SYNC, "trainer=record", "trainer.digest=true"], ["trainer"]),
}
BATCHES, MORE = 5, 10
# Where the first other value in the option's range shows nothing within a few batches.
VALUES = {
    "trainer.buffer_frames": 100,
    "trainer.clip_epsilon": 0.001,
    "trainer.entropy_coeff": 0.5,
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
# Runs the command for one case after another, as a new process for each would spend most of its time on imports, and a
# new composition for each most of the rest.
COMMANDS = """
import json, os, shutil, sys
import pytest
from composed_overrides import remember_compositions
from collectx.cli.main import main
remember_compositions(pytest.MonkeyPatch())
statuses = {}
for name, words in json.load(open("cases.json")).items():
    shutil.copytree("base", name)
    try:
        main(["resume", name, *words])
    except SystemExit as end:
        statuses[name] = end.code
    if os.path.exists("seen"):
        os.rename("seen", f"seen-{name}")
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
            elsewhere = ("collector.order_of", "trainer.num_learners")  # tested below, and in test_learners.py
            if not field.metadata.get("kept") and option not in elsewhere:
                value = VALUES.get(option) if option in VALUES else other_value(field, content[group].get(field.name))
                changes[option] = f"{option}={json.dumps(value)}"
            if field.metadata.get("without_effect"):
                silent.add(option)
    if content["trainer"]["kind"] in ("dqn", "sac"):
        silent.add("trainer.digest")  # the worker writes its batches to the replay buffer, without a digest
    if content["trainer"]["kind"] == "sac":
        silent.add("trainer.target_return")  # of 100 episodes, which a few batches of Pendulum do not contain
    return changes, silent & {*changes}


def resume(folder, lines):
    """Resumes copies of the run in `folder / "base"`, with the words of each line."""
    (folder / "cases.json").write_text(json.dumps(lines))
    said = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        cwd=folder,
        env=environment(PYTHONPATH=str(Path(__file__).parents[1])),
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    assert set(json.loads((folder / "statuses.json").read_text()).values()) == {0}, said.stderr


def outcome(folder):
    """The batches after the resume, and what the trainer has made of them."""
    files = RunFolder(folder)
    lines = [(line.frames, line.version, line.digest, line.scalars) for line in files.read_metrics()][BATCHES:]
    written = [path for path in (files.policy, *sorted((folder / "data").rglob("*"))) if path.is_file()]
    return lines, [hash(path.read_bytes().replace(str(folder).encode(), b"")) for path in written]


@pytest.mark.parametrize(
    "name", ["impala", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("ppo", "dqn", "sac", "record"))]
)
def test_every_option_that_a_resume_accepts_acts(tmp_path, name):
    words, groups = RUNS[name]
    forked("run", *words, f"run.max_batches={BATCHES}", "hydra.run.dir=base", cwd=tmp_path)
    changes, silent = cases(groups, yaml.safe_load((tmp_path / "base" / "snapshot" / "config.yaml").read_text()))
    lines = {"same": "seed=0", "again": "seed=0", **changes}
    resume(tmp_path, {key: [line, f"run.max_batches={MORE}"] for key, line in lines.items()})
    outcomes = {option: outcome(tmp_path / option) for option in lines}
    same = outcomes.pop("same")
    assert outcomes.pop("again") == same
    assert {option for option, each in outcomes.items() if each == same} == silent


@pytest.mark.nightly
def test_a_run_that_repeats_the_order_of_another_one_is_resumed_in_this_order(tmp_path):
    words = [*COUNTING, "env.step_s=0.0005", "collector=multi_async", "collector.num_workers=3", "trainer.digest=true"]
    collectx("run", *words, "run.max_batches=40", "hydra.run.dir=first", cwd=tmp_path)
    order = ["collector.order_of=first", "run.max_batches=16", "hydra.run.dir=second"]
    forked("run", *words, *order, cwd=tmp_path)
    forked("resume", "second", "run.max_batches=40", cwd=tmp_path)
    first, second = (
        [line.digest for line in RunFolder(tmp_path / name).read_metrics()] for name in ("first", "second")
    )
    assert first == second


# A module of the user's: its env and its policy write what they see to the folder `seen`, once per process.
PROBE = """
import json, multiprocessing, os
from pathlib import Path
import gymnasium, psutil, torch

def write(kind, content):
    Path("seen").mkdir(exist_ok=True)
    with open(f"seen/{kind}-{os.getpid()}", "a") as file:
        file.write(json.dumps(content) + "\\n")

class Env(gymnasium.Wrapper):
    pid = None

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def step(self, action):
        if self.pid != os.getpid():
            self.pid = os.getpid()
            write("env", {
                "is_inline": multiprocessing.parent_process() is None,
                "num_threads": torch.get_num_threads(),
                "num_cores": len(os.sched_getaffinity(0)),
                "port": [each.raddr.port for each in psutil.Process().net_connections() if each.raddr],
            })
        return super().step(action)

class Policy(torch.nn.Module):
    def forward(self, observation):
        write("calls", len(observation))
        return (observation[..., 0] > 0).long()

class Logger:
    def __init__(self, name):
        self.file = open(name, "w")

    def log(self, scalars, step):
        self.file.write(f"{type(self).__name__} {step}")

    def close(self):
        self.file.close()

class Other(Logger):
    pass
"""
with socket.socket() as _free:
    _free.bind(("", 0))
    PORT = _free.getsockname()[1]
PROBING = ["env=gym", "env.id=null", "env.entry_point=probe:Env", "collector.frames_per_batch=64"]
PROBING = [*PROBING, "collector.total_frames=100000", "trainer=meter"]
SERVED = [*PROBING, "collector=multi_async", "inference=server", "policy=custom", "policy.target=probe:Policy"]
SERVED = [*SERVED, "inference.min_batch=2", "inference.timeout_s=1", "inference.order=ready"]
SERVED = [*SERVED, "env.num_envs=1", "collector.num_workers=2", "collector.frames_per_batch=16"]
EVALUATED = [*PROBING, "trainer=ppo", "collector=single", "launcher=inline", "eval.every_batches=2", "eval.episodes=3"]
ALL_LOGGERS = ["logger=[csv,tensorboard,wandb,mlflow,custom]", "logger.wandb.mode=offline"]
ALL_LOGGERS += ["logger.custom.target=probe:Logger", "logger.custom.kwargs={name: first}"]
ALL_LOGGERS += ["logger.mlflow.tracking_uri=sqlite:///first.db"]
# Runs, and what resumes of each are given.
STARTS = {
    "local": [*PROBING, "collector.num_workers=2"],
    "served": SERVED,
    "evaluated": EVALUATED,
    "logged": [*PROBING, "collector=single", "launcher=inline", *ALL_LOGGERS],
}


@dataclass
class Seen:
    """What a resumed run shows: its folder, and what the parts of `PROBE` have written."""

    folder: Path
    files: dict[str, list]

    def envs(self, key):
        lines = [line for name, lines in self.files.items() if name.startswith("env-") for line in lines]
        return {value for line in lines for value in (line[key] if key == "port" else [line[key]])}

    @property
    def alone(self):
        """The share of the server's calls that act for one worker: with `min_batch=2`, those that are made while the
        batch of the other one is complete."""
        # The first calls are those that read the outputs of the policy.
        sizes = [size for name, lines in self.files.items() if name.startswith("calls-") for size in lines[2:]]
        return sizes.count(1) / len(sizes)

    @property
    def evaluations(self):
        return [each for each in RunFolder(self.folder).read_events() if each["event"] == "evaluated"]

    @property
    def due(self):
        """The batches before which an evaluation was due, in the resumed run."""
        return {each["batches"] for each in self.evaluations if each["batches"] > BATCHES}

    @property
    def returns(self):
        return {each["batches"]: each["mean_return"] for each in self.evaluations}

    def has(self, pattern, text=""):
        """Whether a file of this name below the folder of the commands has this text."""
        files = [*self.folder.rglob(pattern), *self.folder.parent.glob(pattern)]
        return any(text.encode() in file.read_bytes() for file in files)


@dataclass
class Effect:
    """`words` change the option in the resume `by` of the run `of`; `shows(seen, same)` tells whether the resumed run
    differs as the option says from one that was resumed without a change."""

    of: str
    words: str
    shows: object
    by: str = "together"


def _logged(words, pattern, text=""):
    return Effect("logged", words, lambda seen, same: seen.has(pattern, text))


# Every option of these groups, or why a resume cannot show it here.
EFFECTS = {
    "launcher.kind": Effect("local", "launcher=inline", lambda seen, same: seen.envs("is_inline") == {True}, "inline"),
    "launcher.num_threads": Effect(
        "local",
        "launcher.num_threads=2",
        lambda seen, same: (same.envs("num_threads"), seen.envs("num_threads")) == ({1}, {2}),
    ),
    "launcher.pin_cores": Effect("local", "launcher.pin_cores=true", lambda seen, same: seen.envs("num_cores") == {1}),
    "backend.kind": Effect("local", "backend=gloo", lambda seen, same: seen.envs("port") and not same.envs("port")),
    "backend.port": Effect("local", f"backend.port={PORT}", lambda seen, same: PORT in seen.envs("port")),
    "backend.interface": "workers of this machine connect over loopback, whatever it says; tests/slurm has others",
    "inference.max_batch": Effect(
        "served",
        "inference.max_batch=1 inference.min_batch=1",
        lambda seen, same: seen.alone == 1 > same.alone,
        "max",
    ),
    "inference.min_batch": Effect("served", "inference.min_batch=1", lambda seen, same: seen.alone > same.alone, "min"),
    "inference.timeout_s": Effect(
        "served", "inference.timeout_s=0", lambda seen, same: seen.alone > same.alone, "time"
    ),
    "devices.device": "there is one device",
    "devices.storing_device": "there is one device",
    "devices.policy_device": "there is one device",
    "devices.env_device": "there is one device",
    "run.max_minutes": "tests/system/test_resume.py has it",
    "checkpoint.replay_buffer": "tests/system/test_resume.py has it",
    "eval.every_batches": Effect("evaluated", "eval.every_batches=3", lambda seen, same: seen.due == {6, 9}, "every"),
    "eval.episodes": Effect(
        "evaluated", "eval.episodes=2", lambda seen, same: seen.returns != same.returns, "episodes"
    ),
    "eval.exploration_type": Effect(
        "evaluated", "eval.exploration_type=random", lambda seen, same: seen.returns != same.returns, "exploration"
    ),
    "eval.env": Effect(
        "evaluated",
        "eval.env.wrappers=[{TimeLimit:{max_episode_steps:2}}]",
        lambda seen, same: seen.returns != same.returns,
        "env",
    ),
    "eval.seed": Effect("evaluated", "eval.seed=5", lambda seen, same: seen.returns != same.returns, "seed"),
    "eval.max_frames_per_episode": Effect(
        "evaluated",
        "eval.max_frames_per_episode=2",
        lambda seen, same: seen.has("events.jsonl", "evaluation_failed"),
        "frames",
    ),
    "run.max_log_bytes": "limits a log; test_log_limit.py",
    "run.moved": "allows changes; test_interpolations.py",
    "run.trust": "allows a resume; test_folders.py",
    "eval.video": "is of `collectx eval`",
    "eval.weights": "is of `collectx eval`",
    "eval.close_timeout_s": "limits a wait at the end; test_evaluation.py",
    "checkpoint.every_batches": Effect(
        "local", "checkpoint.every_batches=1", lambda seen, same: {6, 7, 8} <= {*_checkpoints(seen)}
    ),
    "checkpoint.keep": Effect("local", "checkpoint.keep=3", lambda seen, same: len(_checkpoints(seen)) == 3),
    "checkpoint.keep_best": Effect(
        "local",
        "checkpoint.keep_best=mean_return",
        lambda seen, same: _score(seen) is not None and _score(same) is None,
    ),
    "checkpoint.every_min": "at most one percent of the time is spent on checkpoints, so a short run has few",
    "checkpoint.grace_s": "limits a wait after a signal; test_interruptions.py",
    "run.max_batches": Effect("local", "run.max_batches=8", lambda seen, same: _frames(seen) == 8 * 64),
    "run.overwrite": "is of the start of a run",
    "run.resume": "is of `collectx run`",
    "logger.close_timeout_s": "limits a wait at the end; test_loggers.py",
    "logger.csv.file": _logged("logger.csv.file=other.csv", "other.csv"),
    "logger.tensorboard.dir": _logged("logger.tensorboard.dir=others", "others/events*"),
    "logger.wandb.project": _logged("logger.wandb.project=OtherProject", "*.wandb", "OtherProject"),
    "logger.wandb.entity": _logged("logger.wandb.entity=OtherEntity", "*.wandb", "OtherEntity"),
    "logger.wandb.name": _logged("logger.wandb.name=OtherName", "*.wandb", "OtherName"),
    "logger.wandb.group": _logged("logger.wandb.group=OtherGroup", "*.wandb", "OtherGroup"),
    "logger.wandb.tags": _logged("logger.wandb.tags=[OtherTag]", "*.wandb", "OtherTag"),
    "logger.wandb.mode": "is tested by the matrix: online would reach beyond this machine",
    "logger.mlflow.tracking_uri": _logged("logger.mlflow.tracking_uri=sqlite:///other.db", "other.db"),
    "logger.mlflow.experiment": _logged("logger.mlflow.experiment=OtherExperiment", "other.db", "OtherExperiment"),
    "logger.mlflow.name": _logged("logger.mlflow.name=OtherRun", "other.db", "OtherRun"),
    "logger.custom.target": _logged("logger.custom.target=probe:Other", "third", "Other"),
    "logger.custom.kwargs": _logged("'logger.custom.kwargs={name: third}'", "third"),
}


def _checkpoints(seen):
    return [int(path.name) for path in (seen.folder / "checkpoints").iterdir() if path.name.isdigit()]


def _score(seen):
    manifests = [json.loads(path.read_bytes()) for path in (seen.folder / "checkpoints").glob("*/manifest.json")]
    return max(manifests, key=lambda manifest: manifest["batches"])["score"]


def _frames(seen):
    return json.loads((seen.folder / "result.json").read_text())["frames"]


def resumed(folder, cases):
    shutil.rmtree(folder / "seen", ignore_errors=True)
    resume(folder, cases)
    return {
        name: Seen(
            folder / name,
            {
                path.name: [*map(json.loads, path.read_text().splitlines())]
                for path in (folder / f"seen-{name}").glob("*")
            },
        )
        for name in cases
    }


def _options(prefix, cls):
    for name, hint in typing.get_type_hints(cls).items():
        if (section := section_of(hint)) is not None:
            yield from _options(f"{prefix}.{name}", section)
        else:
            yield f"{prefix}.{name}"


def test_every_option_of_the_other_groups_has_an_effect_or_a_reason():
    kinds = {"backend": "gloo", "launcher": "local", "devices": "cpu", "inference": "server"}
    options = [option for group, kind in kinds.items() for option in _options(group, schemas(group)[kind])]
    options += [option for name, section in SECTIONS.items() for option in _options(name, section)]
    # Kept options are refused, see tests/unit/cli/test_resume.py.
    kept = {"inference.kind", "inference.order"}
    assert {*options} - kept - {"devices.kind"} == {*EFFECTS}


# What the inference server does is seen in how many calls of the policy it combines, which depends on time. In ci,
# `test_loggers.py` resumes a run with loggers.
LATE = ("served", "logged")


@pytest.mark.parametrize("of", [pytest.param(of, marks=[pytest.mark.nightly] * (of in LATE)) for of in STARTS])
def test_every_option_of_the_other_groups_acts_in_a_resumed_run(tmp_path, of):
    (tmp_path / "probe.py").write_text(PROBE)
    forked("run", *STARTS[of], f"run.max_batches={BATCHES}", "hydra.run.dir=base", cwd=tmp_path)
    mine = {option: each for option, each in EFFECTS.items() if isinstance(each, Effect) and each.of == of}
    cases = {"same": [f"run.max_batches={MORE}"]}
    for each in mine.values():
        cases.setdefault(each.by, [f"run.max_batches={MORE}"]).extend(shlex.split(each.words))
    seen = resumed(tmp_path, cases)
    assert [option for option, each in mine.items() if not each.shows(seen[each.by], seen["same"])] == []
