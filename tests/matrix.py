"""The matrix as typed: every option's values, and every choice of every group, by `collectx run` on a run of two
batches, from the schema alone; a new option is in it without further work.

    python tests/matrix.py                          all single values; those that fit share runs
    python tests/matrix.py --alone                  all single values, each as it is typed, in a process of its own
    python tests/matrix.py --only env --pairs 50    single values of `env`, then 50 random pairs with one of them
    python tests/matrix.py --pairs 2000 --typed     a new process for each: nothing is shared
    python tests/matrix.py --no-singles --documents         the tables "works with" of the pages
    python tests/matrix.py --no-singles --sweeps 40         sweeps over two values of an option, and `tune`

A case passes if the run delivers the requested frames, or is refused before anything starts, with exit status 2 and a
message that names an option of the command line. A refusal of a value that the schema allows must also be in the
documents: one paragraph, row or comment with this option and one of those that the message names.

A single value is first composed and checked in this process, as the command does. Values that are refused there need no
process. The others run: values of different options share a run, as far as the check accepts them together. If a shared
run goes wrong, its halves run, and so on.

Without `--typed`, the process of a command is forked from this one (`forked_commands.py`). Values of SLURM's launchers
are checked, but not run, as are numbers that no small run can have.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import pickle
import random
import re
import resource
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from commands import COMMAND, environment
from forked_commands import become, import_what_a_run_imports

ROOT = Path(__file__).parents[1]
HANG_S = 240.0
# An address space and a number of processes that no small run needs: a value that asks for more must be refused.
MOST_BYTES, MOST_PROCESSES = 16 << 30, 60
BASE = ("debug=tiny",)

# What a choice cannot run without.
NEEDS = {
    "env=gym": "env.id=CartPole-v1",
    "env=gym_vector": "env.id=CartPole-v1",
    "env=envpool": "env.id=CartPole-v1",
    "env=torchrl": "env.target=parts:make_env",
    "env=dataset": "env.dir=recorded/data trainer=meter policy=random",
    "policy=random": "trainer=meter",
    # Each env of Pong loads its game, and lets it run for a while, with each reset.
    "env=pong": "env.num_envs=1",
    "env=pong_raw": "env.num_envs=1",
    "policy=cnn": "env=pong env.num_envs=1",
    "policy=q_mlp": "trainer=dqn",
    "policy=q_cnn": "env=pong env.num_envs=1 trainer=dqn",
    "policy=squashed_mlp": "env=pendulum trainer=sac",
    "policy=multi": "env=pong env.num_envs=1",
    "policy=q_multi": "env=pong env.num_envs=1 trainer=dqn",
    "policy=squashed_multi": "env=pendulum trainer=sac",
    "policy=custom": "env=cartpole policy.target=parts:Policy trainer=meter",
    "trainer=dqn": "policy=q_mlp",
    "trainer=sac": "env=pendulum policy=squashed_mlp",
    "trainer=impala": "collector=multi_async",
    "trainer=custom": "trainer.target=parts:Trainer",
    "collector=multi_async": "trainer=impala",
    "collector=distributed": "trainer=impala",
    "collector=rpc": "trainer=impala",
    "collector=ray": "trainer=impala launcher=ray launcher.ray_init_config={num_cpus:2,address:local}",
    "launcher=ray": "collector=ray trainer=impala launcher.ray_init_config={num_cpus:2,address:local}",
    "backend=inline": "launcher=inline",
    "backend=gloo": "collector=distributed_sync",
    "backend=nccl": "collector=distributed_sync",
    "backend=mpi": "collector=distributed_sync",
    "backend=ucc": "collector=distributed_sync",
    "backend=rpc": "collector=rpc trainer=impala",
    "logger=custom": "logger.custom.target=parts:Logger",
    "logger=wandb": "logger.wandb.mode=offline",
    "logger=mlflow": "logger.mlflow.tracking_uri=sqlite:///mlflow.db",
}
# Values of texts, lists and mappings that mean something, beside the general ones.
MEANINGFUL = {
    "env.id": ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "nosuch:Env-v0"],
    "env.entry_point": ["gymnasium.envs.classic_control:CartPoleEnv", "nosuch:Env"],
    "env.kwargs": ["{sutton_barto_reward:true}"],
    "env.wrappers": [
        "[gymnasium.wrappers.RecordEpisodeStatistics]",
        "[{_target_:gymnasium.wrappers.TimeLimit,max_episode_steps:5}]",
    ],
    "env.target": ["parts:make_env", "nosuch:env"],
    "env.dir": ["recorded/data", "nosuch"],
    "policy.target": ["parts:Policy", "parts:nosuch"],
    "policy.kernel_sizes": ["[3,3,3]"],
    "policy.images": ["[observation]", "[nosuch]"],
    "trainer.target": ["parts:Trainer", "nosuch:Trainer"],
    "logger.custom.target": ["parts:Logger", "nosuch:Logger"],
    "logger.wandb.mode": ["offline", "disabled"],
    "logger.mlflow.tracking_uri": ["sqlite:///other.db"],
    "backend.interface": ["lo", "nosuch0"],
    "backend.port": ["0", "43117", "70000"],
    "backend.visible_devices": ["[cpu]", "[cpu,cpu]", "[cuda:0]"],
    "backend.tensorpipe": ["{rpc_timeout:30}", "{num_worker_threads:2}"],
    "devices.device": ["cpu", "cuda", "cuda:1", "meta"],
    "devices.storing_device": ["cpu", "cuda"],
    "devices.policy_device": ["cpu", "cuda"],
    "devices.env_device": ["cpu", "cuda"],
    "launcher.remote_configs": ["{num_cpus:0.5}"],
    "launcher.time": ["10", "'1-00:00:00'"],
    "launcher.mem": ["1G"],
}
# Choices whose values are checked but not run: they need a SLURM cluster, which `tests/slurm` has.
NOT_RUN = ("launcher=slurm", "launcher=submitit", "launcher=submitit_delayed")
# Options whose values share no run: what they name may be missing, which is noticed once the run has begun; a timeout
# that nothing can keep ends the run.
NAMING = ("id", "entry_point", "target", "dir", "wrappers", "kwargs", "info_keys", "exclude_keys", "tracking_uri")
NAMING = (*NAMING, "metrics", "ray_init_config", "interface")
ENDING = ("collector.start_timeout_s", "collector.worker_timeout_s")
# How many values share a run.
MOST_SHARED = 48
# With these, runs are given two batches.
_ENDLESS = ("collector.total_frames=-1", f"collector.total_frames={2**63 - 1}")
# A choice without the sizes of `debug=tiny`.
_BOUNDED = (*_ENDLESS, "debug=inline")
# Values that are checked but not run: they would reach beyond this machine, or never end.
_NOT_RUN_VALUES = [
    *(f"env.step_s={value}" for value in ("inf", "0.5", "1")),
    *("logger.wandb.mode=null", "logger.wandb.mode=online", "logger.mlflow.tracking_uri=null"),
]


@dataclass(frozen=True)
class Value:
    """One value of one option, or one choice of a group.

    Attributes:
        word: as typed.
        needs: the words without which the option is not there.
        is_right: whether the schema allows it.
        is_alone: whether it shares no run.
        is_run: whether a small run can have it; if not, it is only checked.
        elsewhere: other words with which the option is there too.
    """

    word: str
    needs: tuple[str, ...] = ()
    is_right: bool = True
    is_alone: bool = False
    is_run: bool = True
    elsewhere: tuple[tuple[str, ...], ...] = ()

    @property
    def option(self) -> str:
        return self.word.partition("=")[0]

    @property
    def words(self) -> tuple[str, ...]:
        return (*BASE, *self.needs, self.word)


def values() -> list[Value]:
    """Every choice and every value, in the order of the schema."""
    from collectx.config.registry import GROUPS, KINDS, schemas
    from collectx.config.schema.run import COMMAND_SECTIONS, SECTIONS, RunConfig

    found: list[Value] = []
    for group, choices in _composer().groups.items():
        for choice in choices:
            word = f"{group}={choice}"
            # An experiment or `debug` would replace what the others of a run say.
            found.append(Value(word, _needs(word), is_alone=group in ("experiment", "debug")))
    usual = pickle.loads(_of_choices(BASE)[0])
    for group in GROUPS:
        # The usual kind first: an option of several kinds is tried with the first one that accepts it.
        kinds = sorted(schemas(group), key=lambda kind: kind != usual[group].get("kind"))
        by_path: dict[str, list[Any]] = {}
        for kind in kinds:
            choice = (f"{group}={kind}",) if KINDS[group] else ()
            for path, *rest in _options(group, schemas(group)[kind]):
                by_path.setdefault(path, []).append((rest, (*_needs(*choice), *choice)))
        for path, places in by_path.items():
            (hint, limits, default), needs = places[0]
            others = tuple(place for _, place in places[1:])
            if path != f"{group}.kind":
                found += [replace(value, elsewhere=others) for value in _values(path, hint, limits, default, needs)]
    (seed,) = (each for each in fields(RunConfig) if each.name == "seed")
    found += _values("seed", int, seed.metadata, 0, ())
    for name, section in {**SECTIONS, **COMMAND_SECTIONS}.items():
        for path, hint, limits, default in _options(name, section):
            logger = f"logger={path.split('.')[1]}" if name == "logger" and path.count(".") == 2 else ""
            needs = (*_needs(logger), logger) if logger else ()
            found += _values(path, hint, limits, default, needs)
    return found


def _needs(*choices: str) -> tuple[str, ...]:
    return tuple(word for choice in choices for word in NEEDS.get(choice, "").split())


def _options(prefix: str, cls: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """Path, type, limits and default of every option of a section, and of those within it."""
    from collectx.config.schema.fields import default_of, section_of

    hints = typing.get_type_hints(cls)
    for each in fields(cls):
        path, hint = f"{prefix}.{each.name}", hints[each.name]
        if (section := section_of(hint)) is not None:
            yield from _options(path, section)
        else:
            yield path, hint, each.metadata, default_of(each)


def _values(path: str, hint: Any, limits: Any, default: Any, needs: tuple[str, ...]) -> Iterator[Value]:
    right, wrong = _of(hint, limits, default)
    kinds = [each for each in _members(hint) if each not in (bool, int, float, types.NoneType)]
    names_something = bool(kinds) and "choices" not in limits and path.rpartition(".")[2] in NAMING
    if names_something:
        right = [text for text in right if text not in ("3", "[a,a]")]  # as `nosuch` and `[a]`
    for text in dict.fromkeys([*MEANINGFUL.get(path, []), *right]):
        is_alone = names_something and text not in ("null", "{}", "[]")
        is_alone = is_alone or (path in ENDING and text in ("1e-09", "0", "0.5", "1"))
        word = f"{path}={text}"
        # Observations of 10^11: with another learning rate and no clipping, learning diverges.
        is_alone = is_alone or word == "policy.scale=1e-09"
        is_vast = text.isdigit() and int(text) > 100_000 and not (path.endswith("seed") or word in _ENDLESS)
        yield Value(word, needs, is_alone=is_alone, is_run=not is_vast and word not in _NOT_RUN_VALUES)
    for text in wrong:
        yield Value(f"{path}={text}", needs, is_right=False)


def _members(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _of(hint: Any, limits: Any, default: Any) -> tuple[list[str], list[str]]:
    """Texts of right values of a type within its limits, and of wrong ones."""
    members = _members(hint)
    right, wrong = ["null"], []
    if type(None) not in members:
        right, wrong = [], ["null"]
    kind, *others = [each for each in members if each is not type(None)]
    if others:
        parts = [_of(each, limits, default) for each in (kind, *others)]
        accepted = {text for texts, _ in parts for text in texts}
        return [*accepted, *right], [*{text for _, texts in parts for text in texts} - accepted]
    if hint is Any:
        return ["{}", "[]"], []
    if "choices" in limits:
        return [*limits["choices"], *right], [*wrong, "nosuch", "3"]
    if kind is bool:
        return ["true", "false", *right], [*wrong, "2", "nosuch"]
    if kind in (int, float):
        numbers, others = _numbers(kind, limits, default)
        return [*numbers, *right], [*wrong, *others]
    if kind is str:
        return ["nosuch", "3", *right], [*wrong, "[1]", "{nosuch:1}"]
    if typing.get_origin(kind) is list:
        (item,) = typing.get_args(kind)
        texts, others = (["a", "b"], []) if item in (str, Any) else _of(item, limits, None)
        small = [text for text in texts if len(text) < 4][:1]
        lists = [f"[{','.join([text] * count)}]" for text in small for count in (1, 2)]
        return ["[]", *lists, *right], [*wrong, "3", "{a:1}", *(f"[{text}]" for text in others[:4])]
    return ["{}", "{nosuch:1}", *right], [*wrong, "3", "[1]"]


def _numbers(kind: type, limits: Any, default: Any) -> tuple[list[str], list[str]]:
    least = limits.get("minimum", limits.get("above", 0 if kind is int else -1.0))
    most = limits.get("maximum", 2 ** limits.get("bits", 63) - 1 if kind is int else math.inf)
    if kind is int:
        right: list[Any] = [*limits.get("also", ()), least, least + 1, 4, most]
        wrong: list[Any] = ["1.5", "nosuch", "[1]", "nan", most + 1]
        right = [number for number in right if least <= number <= most or number in limits.get("also", ())]
    else:
        right = [least + 1e-9 if "above" in limits else least, least + 0.5, min(least + 1, most), most]
        if "finite" in limits:
            right.pop()
            wrong = [math.inf]
        else:
            wrong = [most + 1] if most < math.inf else []
        wrong += ["nan", "nosuch", "[1]"]
    if {"minimum", "above"} & limits.keys():
        wrong.append(least - 1)
    if isinstance(default, (int, float)) and not isinstance(default, bool):
        right.append(default)
    return [str(each) for each in dict.fromkeys(right)], [str(each) for each in wrong]


# Checks without a process


@dataclass
class Checked:
    """What the check of the command says: its problems, and the frames that a run would deliver."""

    problems: list[str] = field(default_factory=list)
    frames: Frames | None = None


@dataclass(frozen=True)
class Frames:
    """The least and the greatest number of frames that a right run delivers."""

    least: float
    most: float


def check(words: Sequence[str]) -> Checked:
    """Composes and checks as `collectx run` does, and starts nothing."""
    from collectx.cli import run
    from collectx.cli.compose import typed
    from collectx.run import preflight

    node, hydra, problems = _composed(words)
    if node is None:
        return Checked(problems)
    cfg, problems, _ = typed(node, hydra)
    problems = [*map(str, problems), *preflight.rule_problems(cfg)]
    problems += preflight.argument_problems(cfg)
    problems = problems or run.machine_problems(cfg, False)
    return Checked(problems, None if problems else asked(cfg))


def _composed(words: Sequence[str]) -> tuple[Any, Any, list[str]]:
    """The composition, from a copy of that of its choices: Hydra takes a tenth of a second for each."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from collectx.cli.compose import parsed
    from collectx.errors import ConfigError

    in_choices = tuple(word for word in words if "." not in word.partition("=")[0] and not word.startswith("seed="))
    try:
        bare, hydra = _of_choices(in_choices)
        composer, node = _composer(), pickle.loads(bare)
        others = composer.check([word for word in words if word not in in_choices])
        if others.problems:
            return None, None, list(others.problems)
        try:
            for override in parsed(others.overrides):
                OmegaConf.update(node, override.key_or_group, override.value(), force_add=True)
        except OmegaConfBaseException:
            composer.load(composer.check(words).overrides)  # raises, with Hydra's message
            raise
    except ConfigError as error:
        return None, None, list(error.problems)
    return node, hydra, []


@functools.cache
def _of_choices(words: tuple[str, ...]) -> tuple[bytes, Any]:
    """The composition of choices: without Hydra's part, pickled, and Hydra's part."""
    from composed_overrides import with_choices
    from omegaconf import OmegaConf

    from collectx.errors import ConfigError

    checked = _composer().check(words)
    if checked.problems:
        raise ConfigError(*checked.problems)
    node = with_choices(checked.overrides)
    return pickle.dumps(OmegaConf.masked_copy(node, [key for key in node if key != "hydra"])), node.hydra


@functools.cache
def _composer() -> Any:
    from collectx.cli.compose import Composer

    return Composer()


def asked(cfg: Any) -> Frames:
    """How many frames a run of this configuration delivers."""
    options = cfg.collector
    batches = math.inf if options.total_frames < 0 else -(-options.total_frames // options.frames_per_batch)
    if cfg.run.max_batches is not None:
        batches = min(batches, cfg.run.max_batches)
    frames = batches * options.frames_per_batch
    if options.trajs_per_batch is not None:
        return Frames(0, math.inf)  # frames of complete trajectories
    if options.preemptive_threshold is not None:
        return Frames(0, frames + options.frames_per_batch - 1)  # batches have missing frames
    ends_early = getattr(cfg.trainer, "target_return", None) is not None
    return Frames(0 if ends_early else frames, frames)


# Runs


@dataclass
class Outcome:
    """The end of a command."""

    status: int | None
    said: str
    result: dict[str, Any] | None
    results: list[dict[str, Any]]
    left: list[int]
    has_folder: bool
    wall_s: float
    cpu_s: float


@dataclass
class Job:
    """A command that runs."""

    words: tuple[str, ...]
    folder: Path
    pid: int
    began: float
    then: Callable[[Outcome], None]
    pidfd: int = -1


class Runner:
    """Runs commands, some at a time.

    Args:
        is_typed: whether each is a new process, and not a fork of this one.
    """

    def __init__(self, num_jobs: int, is_typed: bool, root: Path):
        self._num_jobs, self._is_typed, self._root = num_jobs, is_typed, root
        self._jobs: list[Job] = []
        self._waiting: list[tuple[tuple[str, ...], Callable[[Outcome], None]]] = []
        self.count = 0

    def add(self, words: Iterable[str], then: Callable[[Outcome], None]) -> None:
        self._waiting.append((tuple(words), then))

    def run(self, until: float = math.inf) -> None:
        """Runs what was added, and what `then` adds, until a moment after which no other one is started."""
        while self._jobs or (self._waiting and time.monotonic() < until):
            while self._waiting and len(self._jobs) < self._num_jobs and time.monotonic() < until:
                self._jobs.append(self._start(*self._waiting.pop(0)))
            self._wait()

    def _start(self, words: tuple[str, ...], then: Callable[[Outcome], None]) -> Job:
        folder = self._root / f"{self.count:05}"
        self.count += 1
        folder.mkdir(exist_ok=True)
        (folder / "parts.py").symlink_to(ROOT / "tests/user_code/parts.py")
        if any("recorded/" in word for word in words):
            (folder / "recorded").symlink_to(self._root / "recorded")
        argv = [*words] if words[0] == "tune" else ["run", *words, "hydra.run.dir=run"]
        argv += ["hydra.sweep.dir=run"] if "-m" in words else []
        sys.stdout.flush()
        if self._is_typed:
            with open(folder / "said.txt", "w") as said:
                pid = subprocess.Popen(
                    [COMMAND, *argv],
                    cwd=folder,
                    env=environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                    preexec_fn=functools.partial(_limit, words),
                ).pid
        else:
            if (pid := os.fork()) == 0:
                _limit(argv)
                become(argv, folder, environment(), (folder / "said.txt", folder / "said.txt"))
        return Job(words, folder, pid, time.monotonic(), then, os.pidfd_open(pid))

    def _wait(self) -> None:
        poll = select.poll()
        for job in self._jobs:
            poll.register(job.pidfd, select.POLLIN)
        ended = {fd for fd, _ in poll.poll(1000)}
        for job in list(self._jobs):
            is_late = time.monotonic() - job.began > HANG_S or len(_session(job.pid)) > MOST_PROCESSES
            if job.pidfd in ended or is_late:
                self._jobs.remove(job)
                job.then(self._end(job, job.pidfd in ended))

    def _end(self, job: Job, has_ended: bool) -> Outcome:
        wall_s = time.monotonic() - job.began
        status, cpu_s = None, math.nan
        if has_ended:
            _, ended, usage = os.wait4(job.pid, 0)
            status, cpu_s = os.waitstatus_to_exitcode(ended), usage.ru_utime + usage.ru_stime
        else:
            _show_stacks(job)
        deadline = time.monotonic() + 10
        while has_ended and _session(job.pid) and time.monotonic() < deadline:
            select.select([], [], [], 0.1)
        left = _session(job.pid)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not has_ended:
            os.waitpid(job.pid, 0)
        os.close(job.pidfd)
        files = sorted((job.folder / "run").rglob("result.json"), key=lambda file: len(file.parts))
        results = [json.loads(file.read_text()) for file in files]
        result = next(iter(results), None)
        said = (job.folder / "said.txt").read_text(errors="replace")
        outcome = Outcome(
            status, said, result, results, left if has_ended else [], (job.folder / "run").exists(), wall_s, cpu_s
        )
        if outcome.status == 0 and not left:
            shutil.rmtree(job.folder)
        return outcome


def _limit(words: Sequence[str]) -> None:
    if not {"collector=ray", "launcher=ray"} & {*words}:  # Ray maps more than it uses
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


def _session(leader: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(path.name))
    return found


def _show_stacks(job: Job) -> None:
    """Adds the stacks of a hung command to what it said."""
    spy = shutil.which("py-spy")
    for pid in _session(job.pid) if spy else ():
        done = subprocess.run([spy, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=30)
        with open(job.folder / "said.txt", "a") as said:
            said.write(f"\nstack of {pid}:\n{done.stdout}")


# Judgement


def fault(words: Sequence[str], outcome: Outcome, frames: Frames | None) -> str | None:
    """Returns what is wrong with the end of a command; None if nothing is."""
    said = outcome.said
    if outcome.status is None:
        return f"hangs for {outcome.wall_s:.0f} s, or starts more than {MOST_PROCESSES} processes"
    if outcome.left:
        return f"leaves {len(outcome.left)} processes"
    if "Traceback (most recent call last)" in said or "Exception ignored" in said or "Fatal Python error" in said:
        return "prints a traceback"
    if re.search(r"\w+Warning: ", said):
        return "prints a warning of Python"
    if outcome.status == 2:
        if outcome.has_folder:
            return "is refused, but leaves a run folder"
        return None if names(words, said) else "is refused without the name of one of its options"
    if outcome.status == 1 and any("_timeout_s=" in word and word.partition("=")[0] in said for word in words):
        return None  # it ended as the timeout says
    if outcome.status != 0 or outcome.result is None or outcome.result["status"] != "completed":
        return f"ends with status {outcome.status}"
    if frames is not None and not frames.least <= outcome.result["frames"] <= frames.most:
        return f"delivers {outcome.result['frames']} frames, not {frames.least:g} to {frames.most:g}"
    return None


def names(words: Sequence[str], message: str) -> bool:
    """Whether a message names an option or a choice of the command line; an option of a group is its choice, too, and
    any group that of an experiment."""
    typed = [word.lstrip("+") for word in words if word not in BASE]
    options = [word.partition("=")[0] for word in typed if "." in word.partition("=")[0] or word.startswith("seed=")]
    choices = [word for word in typed if word.partition("=")[0] not in options]
    groups = [f"{each.partition('=')[0]}." for each in choices]
    if any(each.startswith("experiment=") for each in choices):
        groups += ["policy=", "trainer=", "env=", "collector="]
    return any(each in message for each in [*options, *choices, *groups])


def undocumented(value: Value, problems: Sequence[str]) -> bool:
    """Whether no document has the rule by which a value is refused that the schema allows."""
    message = " ".join(problems)
    others = set(re.findall(r"\b[a-z]+(?:\.[a-z_]+)+|\b[a-z]+=[a-z_0-9]+", message)) - {value.option, value.word}
    others = {each for each in others if not each.startswith(value.option)}
    if not others:
        return False  # it is about the value itself
    key = value.option.rpartition(".")[2] if "." in value.option else value.word.partition("=")[2]
    keys = [re.split(r"[.=]", each)[-1] for each in others]
    keys += [word for word in ("sync", "async", "GPU") if re.search(rf"\b{word}\b", message)]
    return not any(
        re.search(rf"\b{re.escape(key)}\b", text) and any(re.search(rf"\b{re.escape(each)}\b", text) for each in keys)
        for text in _paragraphs()
    )


@functools.cache
def _paragraphs() -> tuple[str, ...]:
    pages = "\n\n".join(page.read_text() for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    parts = [part for text in pages.split("\n\n") for part in (text.splitlines() if "\n|" in text else [text])]
    for file in (ROOT / "conf").rglob("*.yaml"):
        parts += file.read_text().split("\n\n")
    return tuple(parts)


# Documents


@dataclass(frozen=True)
class Cell:
    """A cell of a table "works with": yes, no effect or note (but accepted), no, or the words with which it works."""

    is_yes: bool
    words: tuple[str, ...] = ()


# Options that rows name without a value: the value, and the choices that it needs where the column makes none.
ROWS = {
    "env.num_envs": ("2",),
    "collector.init_random_frames": ("64",),
    "collector.max_frames_per_traj": ("5",),
    "collector.max_policy_lag": ("1", "trainer=meter"),
    "collector.num_workers_per_collector": ("2",),
    "collector.preemptive_threshold": ("0.5", "trainer=meter"),
    "collector.trajs_per_batch": ("2", "trainer=meter"),
}


def cells() -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...], Cell]]:
    """Page, words of the row, words of the column, and the cell, for every table whose first cell is "works with"."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for table in re.findall(r"^\| works with \|.*\n(?:\|.*\n)+", page.read_text(), re.MULTILINE):
            head, _, *lines = ([text.strip() for text in line.split("|")[1:-1]] for line in table.splitlines())
            for first, *others in lines:
                for title, text in zip(head[1:], others, strict=True):
                    cell = Cell(text != "no", tuple(" ".join(re.findall("`([^`]+)`", text)).split()))
                    assert cell.words or text in ("yes", "no", "no effect", "note"), f"{page}: {text}"
                    for row in re.findall("`([^`]+)`", first):
                        for column in re.findall("`([^`]+)`", title):
                            yield page.name, _with_value(row, column), _with_needs(row, column), cell


def _with_value(row: str, column: str) -> tuple[str, ...]:
    """The words of a row, whose last option has a value."""
    *choices, last = row.split()
    if "=" in last:
        return (*choices, last)
    value, *needs = ROWS[last]
    made = {word.partition("=")[0] for word in (*choices, *column.split())}
    return (*(need for need in needs if need.partition("=")[0] not in made), *choices, f"{last}={value}")


def _with_needs(row: str, column: str) -> tuple[str, ...]:
    """The words of a column, with the options that its choices need, and env and policy that trainers and policies of
    the column and of the row need."""
    words = tuple(column.split())
    made = {word.partition("=")[0] for word in (*row.split(), *words)}
    learning = [word for word in (*words, *row.split()) if word.startswith(("trainer=", "policy="))]
    groups = [word for word in _needs(*learning) if word.partition("=")[0] in {"env", "policy"} - made]
    return (*dict.fromkeys(groups), *(word for word in _needs(*words) if "." in word.partition("=")[0]), *words)


def _is_of_machine(problems: Sequence[str]) -> bool:
    """Whether a configuration is refused for what this machine lacks."""
    return any(
        re.search(r"cannot be used: (torch|mpi4py|MPI|Open MPI|its library|ray|envpool)|\bGPU\b", each)
        for each in problems
    )


# The matrix

# The words of a run, its frames (where the check shows a fault already: the fault), and its values.
Pack = tuple[Sequence[str], Any, list[Value]]


class Matrix:
    """Runs values and reports faults."""

    def __init__(self, options: argparse.Namespace, root: Path):
        self.options, self.root = options, root
        self.runner = Runner(options.jobs, options.typed, root)
        self.faults: list[str] = []
        self.counts = {"refused": 0, "values": 0}
        # While the tables of the pages run: a run with frames must complete, one without must be refused.
        self.is_by_documents = False

    def report(self, words: Sequence[str], what: str, said: str = "") -> None:
        command = shlex.join(["collectx", *(() if words[0] == "tune" else ("run",)), *words])
        text = f"{command}\n    {what}"
        if self.options.ignore and re.search(self.options.ignore, text):
            return
        self.faults.append(text)
        print(f"FAULT {text}\n" + "".join(f"      | {line}\n" for line in said.strip().splitlines()[-25:]), flush=True)

    def run(
        self,
        words: Sequence[str],
        frames: Frames | None,
        members: Sequence[Value] = (),
        then: Callable[[bool], None] = lambda is_right: None,
    ) -> None:
        """Runs a command, and the halves of its values if they share it and it goes wrong."""

        def judge(outcome: Outcome) -> None:
            what = fault(words, outcome, frames)
            if what is None and self.is_by_documents and (outcome.status == 2) != (frames is None):
                what = f"{'completes' if frames is None else 'is refused'}, against a table of the documents"
            if self.options.verbose:
                times = f"{outcome.wall_s:5.1f} s ({outcome.cpu_s:.1f})"
                print(f"{times}  status {outcome.status}  {shlex.join(words)}", flush=True)
            is_right = what is None and outcome.status == 0
            then(is_right)
            if len(members) > 1 and not is_right:
                # A refusal of one value would hide the others.
                self.run_halves(words, members, lambda: what and self.report(words, what, outcome.said))
            elif what is not None:
                self.report(words, what, outcome.said)

        self.runner.add(words, judge)

    def run_halves(self, words: Sequence[str], members: Sequence[Value], if_both_are_right: Callable[[], None]) -> None:
        print(f"in halves: {shlex.join(words)}", flush=True)
        half, ended = len(members) // 2, []

        def then(is_right: bool) -> None:
            ended.append(is_right)
            if ended == [True, True]:
                if_both_are_right()

        for words, frames, part in in_child(lambda: [*map(_shared, (members[:half], members[half:]))]):
            self.run(words, frames, part, then)

    def record(self) -> None:
        """A data set for `env=dataset`."""
        words = ("debug=tiny", "trainer=record", "policy=random", "trainer.partial_episodes=true", "trainer.dir=data")
        folder = self.root / "recorded"

        def then(outcome: Outcome) -> None:
            assert outcome.status == 0, outcome.said

        folder.mkdir(exist_ok=True)
        self.runner.add((*words[:-1], f"trainer.dir={folder}/data"), then)
        self.runner.run()

    def singles(self, chosen: Sequence[Value], until: float) -> None:
        self.counts["values"] += len(chosen)
        if self.options.alone:
            checks = in_child(lambda: [check(_bounded(value)) for value in chosen])
            for value, checked in zip(chosen, checks, strict=True):
                self.run_alone(value, checked)
        else:
            for words, frames, members in in_child(self.packed, chosen):
                if isinstance(frames, str):
                    self.report(words, frames)
                    continue
                self.run(words, frames, members)
        self.runner.run(until)

    def run_alone(self, value: Value, checked: Checked) -> None:
        if not value.is_right and not checked.problems:
            self.report(value.words, "is accepted, although the schema does not allow it")
        elif value.is_run and not (set(NOT_RUN) & set(value.words)):
            self.run(_bounded(value), checked.frames)

    def packed(self, chosen: Sequence[Value]) -> list[Pack]:
        """The runs of these values, each with its frames and values; where the check shows a fault already, with it in
        place of the frames."""
        found: list[Pack] = []
        shared: dict[tuple[str, ...], list[list[Value]]] = {}
        for value in chosen:
            words = _bounded(value)
            checked = check(words)
            if checked.problems:
                self.counts["refused"] += 1
                message = " ".join(checked.problems)
                if not any(value.option in problem or value.word in problem for problem in checked.problems):
                    found.append((words, f"is refused without its name: {message}", [value]))
                elif value.is_right and undocumented(value, checked.problems):
                    found.append((words, f"is refused, which no document has: {message}", [value]))
                elsewhere = (replace(value, needs=needs) for needs in value.elsewhere if value.is_right)
                accepted = next((each for each in elsewhere if not check(_bounded(each)).problems), None)
                if accepted is None:
                    continue
                value, words = accepted, _bounded(accepted)
                checked = check(words)
            if not value.is_right:
                found.append((words, "is accepted, although the schema does not allow it", [value]))
                continue
            if not value.is_run or set(NOT_RUN) & set(words):
                continue
            if value.is_alone:
                found.append((words, checked.frames, [value]))
                continue
            # A run has the first value of each option, the next run the second values, and so on.
            same = shared.setdefault(value.needs, [])
            nth = sum(value.option in (each.option for each in members) for members in same)
            same[nth:] = [[*members, value] for members in same[nth : nth + 1] or [[]]] + same[nth + 1 :]
        packs = [pack for same in shared.values() for members in same for pack in _accepted_together(members)]
        return [*found, *_merged(packs)]

    def documents(self, until: float) -> None:
        """The cells of the tables "works with" of all pages."""
        self.is_by_documents = True
        for words, frames, members in in_child(self.documented):
            if isinstance(frames, str):
                self.report(words, frames)
            else:
                self.run(words, frames, members)
        self.runner.run(until)
        self.is_by_documents = False

    def documented(self) -> list[Pack]:
        found: list[Pack] = []
        shared: dict[tuple[str, ...], list[Value]] = {}
        for page, row, column, cell in cells():
            self.counts["values"] += 1
            value = Value(row[-1], (*column, *row[:-1], *cell.words))
            words = _together([value])
            assert words is not None
            checked = check(words)
            place = f"{page}: {' '.join(row)} with {' '.join(column)}"
            if cell.is_yes and not checked.problems:
                if not {*NOT_RUN} & {*words}:
                    shared.setdefault(value.needs, []).append(value)
            elif cell.is_yes and not _is_of_machine(checked.problems):
                found.append((words, f"is refused, but works in {place}: {checked.problems[0]}", [value]))
            if not cell.is_yes or cell.words:
                words = _together([replace(value, needs=(*column, *row[:-1]))])
                assert words is not None
                problems = check(words).problems
                if not problems and {*NOT_RUN} & {*words}:
                    found.append((words, f"is accepted, but not in {place}", [value]))
                elif not problems:
                    found.append((words, None, [value]))  # may be refused once the env is made
                elif not names(words, " ".join(problems)):
                    found.append((words, f"is refused without its name: {problems[0]}", [value]))
        return [*found, *(pack for members in shared.values() for pack in _accepted_together(members))]

    def sweeps(self, chosen: Sequence[Value], count: int, seed: int, until: float) -> None:
        """Sweeps over two values of random options, and searches for the fastest values."""
        by_option: dict[tuple[str, tuple[str, ...]], list[Value]] = {}
        for value in chosen:
            is_shared = value.is_right and value.is_run and not value.is_alone and "." in value.option
            if is_shared and not {*NOT_RUN} & {*value.words} and value.word not in _ENDLESS:
                by_option.setdefault((value.option, value.needs), []).append(value)
        both = [pair[:2] for pair in by_option.values() if len(pair) > 1]
        both = [pair for pair in both if not any(check(value.words).problems for value in pair)]
        for pair in random.Random(seed).sample(both, min(count, len(both))):
            texts = ",".join(value.word.partition("=")[2] for value in pair)
            self.run_sweep((*pair[0].words[:-1], f"{pair[0].option}={texts}", "-m"), 2)
        for launcher in ("basic", "collectx"):
            self.run_sweep((*BASE, f"hydra/launcher={launcher}", "seed=0,1", "-m"), 2)
        fast = ("tune.minutes=0.05", "tune.seconds=0.2", "tune.warmup_s=0.1")
        for words in ((), ("trainer=meter", "tune.exact=false"), ("collector=multi_async", "trainer=impala")):
            self.run_sweep(("tune", *BASE, *fast, *words), 0)
        self.runner.run(until)

    def run_sweep(self, words: Sequence[str], num_points: int) -> None:
        def judge(outcome: Outcome) -> None:
            what = fault(words, replace(outcome, result={"status": "completed"}), None)
            completed = [each for each in outcome.results if each["status"] == "completed"]
            if self.options.verbose:
                print(f"{outcome.wall_s:5.1f} s  status {outcome.status}  {shlex.join(words)}", flush=True)
            if what is None and outcome.status == 0 and len(completed) != num_points:
                what = f"completes {len(completed)} points of {num_points}"
            if what is not None:
                self.report(words, what, outcome.said)

        self.runner.add(words, judge)

    def combinations(self, chosen: Sequence[Value], count: int, size: int, seed: int, until: float) -> None:
        """Random pairs or triples, each of which includes one of the chosen values."""
        rng = random.Random(f"{seed} {size}")
        every = [value for value in in_child(values) if value.is_right and value.is_run]
        without = {*NOT_RUN, "debug=inline"}  # it would replace `debug=tiny`
        every = [value for value in every if not without & {value.word, *value.needs}]
        chosen = [value for value in every if value in set(chosen)]
        commands: list[tuple[str, ...]] = []
        while len(commands) < count:
            picked = [rng.choice(chosen), *rng.choices(every, k=size - 1)]
            words = _together(picked)
            if words is not None:
                commands.append(words)
        for words, checked in zip(commands, in_child(lambda: [check(each) for each in commands]), strict=True):
            if checked.problems and not self.options.typed:
                self.counts["refused"] += 1
                if not names(words, " ".join(checked.problems)):
                    self.report(words, f"is refused without the name of one of its options: {checked.problems}")
            else:
                self.run(words, checked.frames)
        self.runner.run(until)


def _accepted_together(members: list[Value]) -> Iterator[Pack]:
    """Runs with these values of different options, as few as the check accepts."""
    words = _together(members)
    checked = check(words) if words else None
    if len(members) == 1 or (len(members) <= MOST_SHARED and checked and not checked.problems):
        yield words, checked.frames, members
    else:
        half = len(members) // 2
        yield from _accepted_together(members[:half])
        yield from _accepted_together(members[half:])


def _shared(members: Sequence[Value]) -> Pack:
    """A run of values that the check accepts together."""
    words = _bounded(members[0]) if len(members) == 1 else _together(members)
    assert words is not None
    return words, check(words).frames, [*members]


def _merged(packs: list[Pack]) -> list[Pack]:
    """Returns as few runs as possible, each with the values of several of these runs."""
    merged: list[Pack] = []
    for pack in sorted(packs, key=lambda pack: -len(pack[2])):
        for nth, (_, frames, members) in enumerate(merged):
            words = _together([*members, *pack[2]]) if len(members) + len(pack[2]) <= MOST_SHARED else None
            needed = {word for value in [*members, *pack[2]] for word in value.needs}
            checked = check(words) if words and needed <= {*words} else None
            # Where a run may end early, what it delivers is not counted.
            if checked and not checked.problems and (checked.frames.least > 0) == (frames.least > 0):
                merged[nth] = words, checked.frames, [*members, *pack[2]]
                break
        else:
            merged.append(pack)
    return merged


def _bounded(value: Value) -> tuple[str, ...]:
    """Returns the words of a run, with two batches if it has more frames than a test can wait for."""
    return (*value.words, "run.max_batches=2") if value.word in _BOUNDED else value.words


def _together(picked: Sequence[Value]) -> tuple[str, ...] | None:
    """The words of several values; None if they contradict each other."""
    words: dict[str, str] = {}
    for value in picked:
        if words.setdefault(value.option, value.word) != value.word:
            return None
    # What a value needs is only given where no other value says something else.
    needed: dict[str, str] = {}
    for value in picked:
        for word in value.needs:
            option = word.partition("=")[0]
            if option not in words:
                needed.setdefault(option, word)
    everything = {**needed, **words}
    # The options of a choice that another one has replaced are not there.
    for value in picked:
        group = value.option.partition(".")[0]
        own = next((word for word in reversed(value.needs) if word.startswith(f"{group}=")), None)
        if "." in value.option and own is not None and everything.get(group, own) != own and group != "logger":
            return None
    if len({word for word in everything.values() if word.startswith(("logger=",))}) > 1:
        return None
    if everything.get("collector.total_frames") in _ENDLESS:
        if everything.get("run.max_batches") == "run.max_batches=null":
            return None
        everything.setdefault("run.max_batches", "run.max_batches=2")
    choices = [word for option, word in everything.items() if "." not in option]
    return (*BASE, *choices, *(word for option, word in everything.items() if "." in option))


def in_child(function: Callable[..., Any], *args: Any) -> Any:
    """Returns what a function returns in a forked process, so that this process imports and keeps nothing."""
    sys.stdout.flush()
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.close(read)
            with open(write, "wb") as pipe:
                pickle.dump(function(*args), pipe)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write)
    with open(read, "rb") as pipe:
        content = pipe.read()
    if os.waitpid(pid, 0)[1] != 0:
        raise RuntimeError("the child failed, see above")
    return pickle.loads(content)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", default="", help="options that begin so, such as env or collector.num_slots")
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--triples", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="commands at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no command after them")
    parser.add_argument("--alone", action="store_true", help="each single value in a run of its own")
    parser.add_argument("--typed", action="store_true", help="a new process for each command")
    parser.add_argument("--no-singles", action="store_true")
    parser.add_argument("--documents", action="store_true", help='the tables "works with" of the pages')
    parser.add_argument("--sweeps", type=int, default=0, help="sweeps over two values of an option, and `tune`")
    parser.add_argument("--list", action="store_true", help="print the values, run nothing")
    parser.add_argument("--keep", help="the folder of the runs that go wrong")
    parser.add_argument("--ignore", help="faults that are known: a regular expression")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    until = began + 60 * options.minutes
    import_what_a_run_imports()
    chosen = [value for value in in_child(values) if re.match(options.only, value.word)]
    if options.list:
        print(*(shlex.join(value.words) + ("" if value.is_right else "   # wrong") for value in chosen), sep="\n")
        return 0
    with contextlib.ExitStack() as stack:
        root = Path(options.keep or tempfile.mkdtemp(prefix="matrix-"))
        if not options.keep:
            # Not a TemporaryDirectory: the exit of each forked command would remove it.
            stack.callback(shutil.rmtree, root, ignore_errors=True)
        root.mkdir(exist_ok=True)
        matrix = Matrix(options, root.resolve())
        matrix.record()
        if not options.no_singles:
            matrix.singles(chosen, until)
        if options.documents:
            matrix.documents(until)
        if options.sweeps:
            matrix.sweeps(chosen, options.sweeps, options.seed, until)
        matrix.combinations(chosen, options.pairs, 2, options.seed, until)
        matrix.combinations(chosen, options.triples, 3, options.seed, until)
    took_s = time.monotonic() - began
    used_s = sum(os.times()[:4])
    print(f"{len(chosen)} values, {matrix.runner.count} runs, {len(matrix.faults)} faults in {took_s:.0f} s", end=", ")
    print(f"{used_s:.0f} s of processors")
    return bool(matrix.faults)


if __name__ == "__main__":
    sys.exit(main())
