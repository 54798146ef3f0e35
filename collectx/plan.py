"""Tells what runs would need (`collectx plan`): processes, memory, messages, files and requested resources. Starts no
run.

Makes one env in this process to read its spaces, as `collectx run` does before it starts workers, steps it for a
moment, and lets the policy act and a built-in trainer learn. A plan is plain data, by sections. Keys that end in
`_bytes` mean bytes, keys that end in `_s` seconds.

Not counted: the memory of the envs, and what a learning trainer needs besides its copy of the weights (gradients,
optimizer state, activations).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from collectx import collector, env, policy, trainer
from collectx.batch import REWARD, as_array, to_tensordict
from collectx.config.derived import expected_batches, num_processes_of, resolve_devices, share_of
from collectx.config.problem import counted
from collectx.config.schema.launcher import SlurmLauncherConfig
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import LearningTrainerConfig, OffPolicyTrainerConfig, PpoTrainerConfig
from collectx.env.base import Env, EnvSpec, StepArrays, first_observations
from collectx.jobs.status import NamedRun
from collectx.jobs.submit import headers
from collectx.place import place_of
from collectx.policy.random import random_actor
from collectx.rollout.inference import make_inference
from collectx.rollout.wrappers import RolloutOptions
from collectx.run import RunFolder, cores
from collectx.run.after.evaluation import in_envs
from collectx.run.preflight import env_limit
from collectx.trainer.learners import ALONE
from collectx.transport.base import SlotSpec
from collectx.transport.slab import SlabLayout

Section = dict[str, Any]
_CPU = torch.device("cpu")
# The memory of Python and torch, as measured: of the trainer, of a fork server, which its processes share, of each of
# these, and of a worker that imports everything itself: a task of SLURM or a Ray actor.
_TRAINER_NBYTES, _SHARED_NBYTES, _FORKED_NBYTES, _WORKER_NBYTES = 300 * 10**6, 100 * 10**6, 20 * 10**6, 200 * 10**6
# How many seconds an env is stepped after its first step, and the maximum number of steps.
_STEPPING_S, _MAX_STEPS = 0.2, 200
_NUM_SPANS = 5
# How many seconds a trainer learns after its first batch.
_LEARNING_S = 0.5
# From how many frames at most a trainer learns here; off-policy, with how many gradient steps.
_MOST_FRAMES, _MOST_UPDATES = 1024, 32
# Entries of the memory that are not part of its total, and the share of the total from which a part is named.
_NO_PARTS = ("frame_bytes", "weights_of_the_policy_bytes", "shared_memory_bytes", "total_bytes")
_WORTH_SAYING = 0.02


def plan(runs: Sequence[NamedRun], num_parallel: int | None = 1) -> dict[str, Any]:
    """Returns the plans of one run, or of the points of a sweep. Blocks while envs are made, and for SLURM's answers.
    `num_parallel` is how many runs, if they are not jobs, run at the same time; None: unknown. Returns `runs`, one
    mapping per run; `slurm`, the `#SBATCH` lines of each script; and `totals`.

    Raises:
        ConfigError, SpaceError, DataError: as `collectx run` would raise with these configurations.
        TimeoutError: making an env took more than `collector.start_timeout_s`.
    """
    specs: dict[str, tuple[EnvSpec, float | None]] = {}
    plans: list[dict[str, Any]] = [{"name": run.name, **_plan(run, specs)} for run in runs]
    scripts = headers(runs)
    launcher = runs[0].cfg.launcher
    if isinstance(launcher, SlurmLauncherConfig):
        num_parallel = min(launcher.max_parallel or len(runs), len(runs))
    frames = [each["traffic"]["frames"] for each in plans]
    totals: Section = {"runs": len(runs), "runs_at_a_time": num_parallel}
    totals["frames"] = None if None in frames else sum(frames)
    for name, section, key in (("processes", "processes", "total"), ("memory_bytes", "memory", "total_bytes")):
        largest = sorted((each[section][key] for each in plans), reverse=True)
        totals[f"at_a_time_{name}"] = None if num_parallel is None else sum(largest[:num_parallel])
    seconds = [each["time"].get("all_batches_s") for each in plans]
    is_known = num_parallel is not None and None not in seconds
    totals["at_least_s"] = sum(seconds) / (num_parallel or 1) if is_known else None
    totals["scripts_for_slurm"] = len(scripts)
    return {"runs": plans, "slurm": scripts, "totals": totals}


def batch_s(cfg: RunConfig) -> float | None:
    """Returns how many seconds a worker needs at least for its part of a batch, from some steps of an env, which this
    process makes; None if unknown. Raises what `collectx run` would raise with this configuration."""
    seconds: float | None = _plan(NamedRun("", Path(), cfg), {})["time"].get("envs_in_a_batch_s")
    return seconds


def _plan(run: NamedRun, specs: dict[str, tuple[EnvSpec, float | None]]) -> dict[str, Section]:
    cfg = run.cfg
    is_users = policy.is_user_policy(cfg.policy)
    key = f"{asdict(cfg.env)} {cfg.eval.env} {is_users}"
    if key not in specs:
        seconds: list[float | None] = []
        with env_limit(cfg):
            spec = env.read_spec(cfg.env, is_users, lambda group: seconds.append(step_s(group)))
        in_envs(cfg, spec, env_limit(cfg))  # raises for other spaces
        specs[key] = spec, seconds[0]
    spec, one_step_s = specs[key]
    module = policy.build(cfg.policy, spec, cfg.seed)
    share = share_of(cfg)
    slots = collector.slot_spec_of(share, module, spec)
    act_s = _acting_s(share, module, spec)
    learner, frame_s = _rehearsed(share, module, spec, slots)
    replay_nbytes = sum(each.nbytes for each in getattr(learner, "replay_buffers", {}).values())
    processes: Section = {**place_of(cfg).processes()}
    processes["total"] = sum(processes.values())
    memory = _memory(cfg, slots, processes, replay_nbytes)
    traffic, used = _traffic(cfg, slots), _cores(cfg)
    learn_s = None if frame_s is None else frame_s * cfg.collector.frames_per_batch / cfg.trainer.num_learners
    time = _time(cfg, slots, traffic, one_step_s, act_s, learn_s)
    return {
        "cost": _cost(cfg, processes, memory, used, time),
        "processes": processes,
        "cores": used,
        "memory": memory,
        "traffic": traffic,
        "time": time,
        "files": _files(
            cfg,
            run.folder,
            traffic,
            cfg.trainer.num_learners * slots.weights_nbytes,
            cfg.trainer.num_learners * replay_nbytes * cfg.checkpoint.replay_buffer,
        ),
    }


def _cores(cfg: RunConfig) -> Section:
    launcher, place = cfg.launcher, place_of(cfg)
    has_threads = cfg.collector.has_workers and not place.is_inline
    threads = {"torch_threads_of_each_worker": launcher.num_threads} if has_threads else {}
    if job := place.job_needs():
        return {**job, **threads}
    if not place.is_local:
        return {"cores_of_each_worker": "launcher.remote_configs", **threads}
    usable = cores.num_cores()
    busy = 1 if place.is_inline else num_processes_of(cfg.collector) * launcher.num_threads
    trainers = cores.trainer_threads(cfg)
    together = cfg.trainer.num_learners * trainers + busy * bool(threads) + place.processes()["evaluator"]
    used = {"torch_threads_of_the_trainer": trainers, "threads_together": together}
    return {"usable_here": usable, **threads, **used}


def _memory(cfg: RunConfig, slots: SlotSpec, processes: Section, replay_nbytes: int) -> Section:
    place, part, num_slots = place_of(cfg), slots.layout().nbytes, slots.num_slots * slots.num_workers
    num_learners = cfg.trainer.num_learners
    sizes = {"slots_bytes": num_slots * part}
    if place.network is None:
        slab = SlabLayout(slots)
        # Two versions; separate weights of single workers exist only with Python's `update_policy_weights_`.
        leased = slots.num_spare * slab.region_nbytes
        sizes = {
            "slots_bytes": slab.nbytes - slab.regions_start - leased,
            "weights_bytes": 2 * slab.weights_nbytes,
            "batches_kept_by_the_trainer_bytes": leased,
        }
    else:
        sizes["slots_of_workers_bytes"] = sizes["slots_bytes"]
    acting = processes["inference_server"] or processes["processes_in_workers"] or processes["workers"]
    acting = acting // num_learners or slots.num_workers
    sizes["weights_of_trainer_and_workers_bytes"] = (1 + acting) * slots.weights_nbytes
    is_copied = not cfg.collector.zero_copy and not slots.num_spare
    sizes["batch_of_the_trainer_bytes"] = is_copied * part * (slots.num_workers if slots.stacked else 1)
    sizes["replay_buffer_bytes"] = replay_nbytes
    sizes = {name: num_learners * nbytes for name, nbytes in sizes.items()}
    # Its own, and two copies that wait in the trainer's process.
    sizes["weights_of_the_evaluator_bytes"] = 3 * processes["evaluator"] * slots.weights_nbytes
    known: Section = {
        "frame_bytes": part // (slots.rows * slots.steps),
        "weights_of_the_policy_bytes": slots.weights_nbytes,
    }
    if place.shares_memory:
        known["shared_memory_bytes"] = num_learners * SlabLayout(slots).nbytes
    started = 0 if place.is_local and not place.has_ranks else processes["workers"]
    forked = processes["total"] - num_learners - started
    # Each worker that imports everything itself has a fork server for the processes in it.
    servers = started if started and processes["processes_in_workers"] else 1
    sizes["python_and_torch_bytes"] = (
        num_learners * _TRAINER_NBYTES
        + started * _WORKER_NBYTES
        + (servers * _SHARED_NBYTES + forked * _FORKED_NBYTES) * bool(forked)
    )
    return known | sizes | {"total_bytes": sum(sizes.values())}


def _traffic(cfg: RunConfig, slots: SlotSpec) -> Section:
    options, place = cfg.collector, place_of(cfg)
    num_learners = cfg.trainer.num_learners
    parts = num_learners * (slots.num_workers if slots.stacked else 1)
    num_batches = expected_batches(cfg)
    is_network, weights_nbytes = place.network is not None, num_learners * slots.num_workers * slots.weights_nbytes
    return {
        "frames": None if num_batches is None else num_batches * options.frames_per_batch,
        "batches": num_batches,
        "frames_of_a_batch": options.frames_per_batch,
        "worker_frames_per_batch": f"{counted(slots.rows, 'env')} x {counted(slots.steps, 'step')}",
        "backend": place.backend,
        "batch_bytes": parts * slots.layout().nbytes,
        "network_to_the_trainer_per_batch_bytes": parts * slots.layout().nbytes * is_network,
        # Async workers skip versions that are published faster than they are sent.
        "network_to_the_workers_per_version_bytes": weights_nbytes * is_network,
        "schedule": options.schedule,
    }


def step_s(group: Env) -> float | None:
    """Returns seconds per step and env, with random actions, without the first step, in which much is loaded. Blocks
    for at least three steps. None for envs whose tensors are on a device: timing them would require waiting for the
    device."""
    spec, size = group.spec, group.spec.num_envs
    if spec.device is not None:
        return None
    first = first_observations(group, [1] * size)
    carry = [as_array(tensor) for tensor in first.values()]
    rewards = () if spec.next_only_leaves == (REWARD,) else spec.next_only_leaves
    action, others = (
        [as_array(torch.zeros((size, *leaf.shape), dtype=leaf.dtype)) for leaf in leaves]
        for leaves in (spec.action, rewards)
    )
    infer = make_inference(random_actor(spec), spec)

    def step() -> float:
        infer([*first.values()], action)
        terminated, truncated = np.zeros((2, size), np.bool_)
        out = StepArrays(carry, np.zeros(size, np.float32), terminated, truncated, np.ones(size, np.bool_), others)
        began_s = perf_counter()
        if group.step(action, out) and not spec.ragged:
            group.reset_some(terminated | truncated, carry)
        return perf_counter() - began_s

    return _mean_s(step) / size


def _acting_s(cfg: RunConfig, module: Any, spec: EnvSpec) -> float | None:
    """Returns the policy's seconds per step and env, on observations of zeros; None on other devices than the _CPU."""
    if spec.device is not None or resolve_devices(cfg.devices).policy_device not in (None, "cpu"):
        return None
    actor, spec = policy.configured_actor(cfg, module, RolloutOptions.of(cfg.collector).env_spec(spec), _CPU)
    # A mask of ones: without a legal action there is nothing to choose.
    observation = [torch.ones((*spec.policy_shape, *each.shape)).to(each.dtype) for each in spec.observation]

    def act() -> float:
        began_s = perf_counter()
        actor.act(observation)
        return perf_counter() - began_s

    with _threads(cfg.launcher.num_threads), torch.inference_mode():
        return _mean_s(act) / spec.num_envs


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Lets torch compute with this number of threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _mean_s(timed: Callable[[], float]) -> float:
    """Returns the mean of the seconds that some calls return, without the first, in which much is loaded: of several
    spans of calls the fastest, as other programs only make a span slower."""
    took_s = list[float]()
    while len(took_s) <= _MAX_STEPS and (len(took_s) < 3 or sum(took_s[1:]) < _STEPPING_S):
        took_s.append(timed())
    spans = np.array_split(took_s[1:], min(_NUM_SPANS, len(took_s) - 1))
    return min(float(span.mean()) for span in spans)


class _Rehearsal:
    """A collection that delivers one batch several times, as `frames` new frames each. `learned_s` is the shortest time
    that a trainer had it for, without the first."""

    total_frames, num_episodes, mean_return, learners = -1, 0, math.nan, ALONE

    def __init__(self, batch: TensorDict, frames: int):
        self._batch, self._new_frames = batch, frames
        self.frames = 0
        self.learned_s = math.nan

    def __iter__(self) -> Iterator[TensorDict]:
        threads, took_s = torch.get_num_threads(), list[float]()
        while len(took_s) <= _MAX_STEPS and (len(took_s) < 3 or sum(took_s[1:]) < _LEARNING_S):
            # Beside other programs, several threads may wait for each other longer than one needs.
            torch.set_num_threads(threads if len(took_s) % 2 else 1)
            self.frames += self._new_frames
            began_s = perf_counter()
            yield self._batch
            took_s.append(perf_counter() - began_s)
        self.learned_s = min(took_s[1:])

    def publish(self, module: Any) -> int:
        return 0

    def log(self, **scalars: float) -> None:
        pass


def _rehearsed(cfg: RunConfig, module: Any, spec: EnvSpec, slots: SlotSpec) -> tuple[Any, float | None]:
    """Returns a built-in trainer that has learned from a batch of ones, whose replay buffers have their final size, and
    its seconds per frame; None for other trainers, and seconds on other devices than the _CPU. Trains `module`."""
    options: Any = cfg.trainer
    if not isinstance(options, LearningTrainerConfig):
        return None, None
    rows, repeats = slots.rows * (slots.num_workers if slots.stacked else 1), 1
    rows = min(rows, _MOST_FRAMES)
    steps = min(slots.steps, max(1, _MOST_FRAMES // rows))
    if isinstance(options, OffPolicyTrainerConfig):
        frames = min(cfg.collector.frames_per_batch, math.ceil(_MOST_UPDATES / options.updates_per_frame))
        options = replace(options, warmup_frames=0)
    else:
        frames = rows * steps
        if isinstance(options, PpoTrainerConfig):
            repeats = options.num_epochs
            options = replace(options, num_epochs=1, minibatch_size=min(options.minibatch_size, frames))
    size = (rows, steps)
    layout = replace(slots, rows=rows, steps=steps).layout()
    batch = to_tensordict(layout.tensors(torch.zeros(layout.nbytes, dtype=torch.uint8), size), size)
    for leaf in spec.observation:
        for part in (batch, batch["next"]):
            part[leaf.key].fill_(1)
    with _threads(cores.trainer_threads(cfg)):
        learner: Any = trainer.build(replace(options, check_finite=False), module, spec, cfg.seed, _CPU)
        rehearsal = _Rehearsal(batch, frames)
        learner.train(rehearsal)
    is_here = resolve_devices(cfg.devices).storing_device in (None, "cpu")
    return learner, repeats * rehearsal.learned_s / frames if is_here else None


def _time(
    cfg: RunConfig,
    slots: SlotSpec,
    traffic: Section,
    one_step_s: float | None,
    act_s: float | None,
    learn_s: float | None,
) -> Section:
    """Returns times without network and waiting; None where they are unknown. Workers of this machine share its cores.
    With a sync schedule without overlap, the trainer and the workers wait for each other."""
    inner = cfg.collector.num_workers_per_collector
    envs = max(1, slots.rows // inner)
    place, num_processes = place_of(cfg), num_processes_of(cfg.collector)
    crowd = num_processes / min(num_processes, 1 if place.is_inline else cores.num_cores()) if place.is_here else 1
    step_s, part_act_s = (None if each is None else envs * each * crowd for each in (one_step_s, act_s))
    workers = 1 if slots.stacked else slots.num_workers
    parts: Section = {
        "envs_in_a_batch_s": None if step_s is None else slots.steps * step_s,
        "policy_in_a_batch_s": None if part_act_s is None else slots.steps * part_act_s,
        "learning_from_a_batch_s": learn_s,
    }
    acting_s = ((parts["envs_in_a_batch_s"] or 0.0) + (parts["policy_in_a_batch_s"] or 0.0)) / workers
    in_turn = cfg.collector.schedule == "sync" and not cfg.collector.overlap
    batch_s = sum((acting_s, learn_s or 0.0)) if in_turn else max(acting_s, learn_s or 0.0)
    num_batches = traffic["batches"]
    all_s = None if num_batches is None or one_step_s is None else num_batches * batch_s
    # Async workers fill a batch each at the same time.
    at_once = {"batches_at_the_same_time": workers} if workers > 1 else {}
    return {"each_step_of_a_worker_s": step_s, **parts, **at_once, "all_batches_s": all_s}


def _cost(cfg: RunConfig, processes: Section, memory: Section, used: Section, time: Section) -> Section:
    """Returns what a run costs, and what most of it is for, as text."""
    total = memory["total_bytes"]
    others = {name: each for name, each in memory.items() if name.endswith("_bytes") and name not in _NO_PARTS}
    titles = {"python_and_torch_bytes": f"Python and torch in {counted(processes['total'], 'process', 'processes')}"}
    largest = sorted(others, key=lambda name: others[name], reverse=True)
    shares = [
        f"{titles.get(name) or _label(name)} {_size(others[name])}"
        for name in largest
        if others[name] >= _WORTH_SAYING * total
    ]
    cost: Section = {"memory": f"{_size(total)} without the envs: {', '.join(shares)}"}
    if "usable_here" in used:
        threads, usable = used["threads_together"], used["usable_here"]
        verb = "share" if threads > usable else "on"
        cost["cores"] = f"{counted(threads, 'thread')} {verb} {counted(usable, 'core')}"
    names = {"envs": "envs_in_a_batch_s", "policy": "policy_in_a_batch_s", "learning": "learning_from_a_batch_s"}
    at_once = time.get("batches_at_the_same_time", 1)
    known = {name: time[key] / (1 if name == "learning" else at_once) for name, key in names.items() if time[key]}
    if known and time["all_batches_s"]:
        least_s = _WORTH_SAYING * sum(known.values())
        parts = sorted((name for name in known if known[name] >= least_s), key=lambda name: known[name], reverse=True)
        of_a_batch = [f"{name} {_shown('_s', known[name])}" for name in parts]
        lacking = [name for name in names if time[names[name]] is None]
        lacking += ["evaluations"] * (cfg.eval.every_batches is not None)
        without = f" without {' and '.join(lacking)}" if lacking else ""
        target = getattr(cfg.trainer, "target_return", None)
        unless = f", unless it reaches trainer.target_return={target:g}" if target is not None else ""
        least = f"{_shown('_s', time['all_batches_s'])}{without}{unless}"
        cost["time"] = f"at least {least}; each batch: {', '.join(of_a_batch)}"
    return cost


def _files(cfg: RunConfig, folder: Path, traffic: Section, weights_nbytes: int, replay_nbytes: int) -> Section:
    files, options = RunFolder(folder), cfg.checkpoint
    num_batches = traffic["batches"]
    times = [
        *([f"every {options.every_min:g} min"] if options.every_min is not None else []),
        *([f"every {options.every_batches} batches"] if options.every_batches is not None else []),
        "at the end",
    ]
    kept = "newest is" if options.keep == 1 else f"{options.keep} newest are"
    written: Section = {
        "folder": str(files.path),
        ".hydra, snapshot": "configuration, versions, uncommitted changes",
        "metrics.jsonl": "one line per batch" if num_batches is None else counted(num_batches, "line"),
        "policy.pt": "the last published weights, at the end",
        "events.jsonl, result.json": "starts, failures and checkpoints; how the run ended",
        "logs": "one file for the trainer and each worker that prints or fails",
        "checkpoints": f"{', '.join(times)}; the {kept} kept",
        "each_checkpoint_at_least_bytes": weights_nbytes,
        "replay_buffer_in_a_checkpoint_at_most_bytes": replay_nbytes,
    }
    loggers = {name: getattr(cfg.logger, name) for name in ("tensorboard", "wandb", "mlflow", "csv", "custom")}
    if used := [name for name, each in loggers.items() if each is not None]:
        written["loggers"] = ", ".join(used)
    if place_of(cfg).job_needs():
        written["jobs"] = "job scripts, and the task that they run"
    return written


def lines(planned: dict[str, Any], columns: int | None = None) -> Iterator[str]:
    """Yields a plan as text, without sizes and counts of 0: all sections of a single run, or one line per run of a
    sweep; then SLURM's part and the totals. Values that are too long for a terminal of so many `columns` are broken."""
    runs = planned["runs"]
    if len(runs) == 1:
        for title, section in runs[0].items():
            if isinstance(section, dict):
                yield from _section(title, section, columns)
    else:
        for each in runs:
            processes, nbytes = each["processes"]["total"], _size(each["memory"]["total_bytes"])
            count = each["traffic"]["batches"]
            batches = counted(count, "batch", "batches") if count else "no limit on batches"
            least_s = each["time"].get("all_batches_s")
            takes = "" if least_s is None else f", at least {_shown('_s', least_s)}"
            yield f"{each['name']}: {processes} processes, {nbytes}, {batches}{takes}"
    for script in planned["slurm"]:
        yield from ("slurm", *(f"  {line}" for line in script))
    if len(runs) > 1:
        yield from _section("totals", planned["totals"], columns)


def _section(title: str, values: Section, columns: int | None) -> Iterator[str]:
    yield title
    shown = {_label(key): _shown(key, value) for key, value in values.items() if value != 0}
    width = max(map(len, shown))
    margin = " " * (width + 4)
    for name, value in shown.items():
        room = 0 if columns is None else max(20, columns - len(margin))
        parts = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False) if room else [value]
        yield f"  {name:{width}}  " + f"\n{margin}".join(parts)


def _label(key: str) -> str:
    label = key.removesuffix("_bytes").removesuffix("_s").replace("_", " ")
    return f"{label.removeprefix('at a time ')} at once" if label.startswith("at a time ") else label


def _shown(key: str, value: Any) -> str:
    if value is None:
        return "unknown"
    if key.endswith("_s"):
        return duration(value)
    return _size(value) if key.endswith("_bytes") else f"{value:,}" if isinstance(value, int) else str(value)


def duration(seconds: float) -> str:
    """Returns a time as people read it: `2.5 ms`, `96 s`, `29 min`."""
    units = (3600.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (0.0, 1e-3, "ms")
    unit_s, name = next(each[1:] for each in units if seconds >= each[0])
    return f"{float(f'{seconds / unit_s:.3g}'):,g} {name}"


def _size(nbytes: int) -> str:
    unit, name = next(
        (each for each in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")) if nbytes >= each[0]), (1, "bytes")
    )
    return f"{float(f'{nbytes / unit:.3g}'):g} {name}"
