"""Checks a configuration against this machine (packages, devices, networks) and the folders of other runs, before
anything starts. What has to fit together is checked in `collectx/rules/`. Imports torch only if it needs it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from collectx import rules
from collectx.config.derived import env_option, is_device, share_of
from collectx.config.problem import YAML, Conflict, Problem, check_all, did_you_mean, either, nearest
from collectx.config.schema.env import EnvConfig, GymEnvConfig, GymnasiumConfig, GymVectorEnvConfig
from collectx.config.schema.fields import Unset
from collectx.config.schema.run import RunConfig
from collectx.config.schema.trainer import DATA_PACKAGES, RecordTrainerConfig
from collectx.errors import ConfigError, DamagedFileError, summary_of
from collectx.place import place_of
from collectx.process import limited
from collectx.rules.evaluation_env import also_evaluated
from collectx.run import cores
from collectx.run.folder import saved_config
from collectx.run.folder.layout import RunFolder
from collectx.run.folder.snapshot import Target, targets
from collectx.run.resume import recorded_order
from collectx.run.terminal import printing
from collectx.user_objects import HYDRA_KEYS, resolve

# The options that name a file or folder which one run alone can write, and the value of each.
SHARED_PATHS: dict[str, Callable[[RunConfig], str | None]] = {
    "logger.csv.file": lambda cfg: None if cfg.logger.csv is None else cfg.logger.csv.file,
    "logger.tensorboard.dir": lambda cfg: None if cfg.logger.tensorboard is None else cfg.logger.tensorboard.dir,
}
# A target, and the names of arguments that are valid besides its own.
_Call = tuple[Target, tuple[str, ...]]
# Arguments of `gymnasium.make`.
_MAKE = ("max_episode_steps", "disable_env_checker")
# What an argument must be, by its annotation, which is a text in a module with `from __future__ import annotations`.
_NUMBERS: dict[Any, str] = {name: YAML.types[kind] for kind in (int, float, bool) for name in (kind, kind.__name__)}
# The arguments that collectx passes itself, by the option that names what is called; to a wrapper, it passes the env.
_GIVEN = {"policy.target": ("spec",), "trainer.target": ("policy", "spec", "seed", "device")}
# The kinds of arguments that have a name for their caller.
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# Launchers of parallel programs, and the variable in which each passes the number of processes.
_PARALLEL = {"torchrun": "WORLD_SIZE", "mpirun": "OMPI_COMM_WORLD_SIZE", "srun": "SLURM_STEP_NUM_TASKS"}


def copies() -> tuple[str, bool]:
    """Returns a message if a parallel launcher runs several copies of this command, otherwise "", and whether to refuse
    the run. Ranks of torchrun are refused, because all run the same command. Tasks of srun, which may run different
    commands, are only noted."""
    for name, variable in _PARALLEL.items():
        size = os.environ.get(variable, "")
        if not size.isdigit() or (name == "torchrun" and "TORCHELASTIC_RUN_ID" not in os.environ):
            continue
        is_torchrun, count = name == "torchrun", int(size)
        if is_torchrun or count > 1:
            copies = f"{count} cop{'y' if count == 1 else 'ies'}"
            number = (
                "collector.num_workers=N" if name == "mpirun" else "collector.num_workers=N or trainer.num_learners=N"
            )
            advice = f"Start it without {name}, and set the number with {number}."
            text = f"{name} runs {copies} of this command, but collectx starts its own processes. {advice}"
            if is_torchrun:
                text += " If this is the only copy, it inherited the variables: unset WORLD_SIZE TORCHELASTIC_RUN_ID."
            return text, is_torchrun and count > 1
    return "", False


def argument_problems(cfg: RunConfig) -> list[str]:
    """Returns a message for each keyword argument that a class or function, of Gymnasium or of the user, does not take;
    none for a job, whose nodes may use other packages than this machine. Imports the targets, as the run is about to,
    so the run's code must be trusted. The run reports what cannot be imported."""
    try:
        place = place_of(cfg)
        is_job, has_fork_server = place.is_job, place.is_local and not place.is_inline
    except Unset:  # the configuration has other mistakes
        return []
    if is_job:
        return []
    from collectx.fork_server.start import environment

    # A process with threads cannot fork the fork server, which would then import everything again.
    one_thread = {"OPENBLAS_NUM_THREADS": "1"} if has_fork_server else {}
    with environment(**one_thread):
        return also_evaluated(_argument_problems, cfg)


def _argument_problems(cfg: RunConfig, env_path: str = "env") -> list[str]:
    messages: list[str] = []
    calls: list[_Call] = []
    with suppress(Unset):
        calls += [(target, ()) for target in targets(cfg, env_path)]
        calls += _made_by_id(cfg.env, env_path)
    for target, extra in calls:
        if target.key.endswith("._target_"):
            try:
                resolve(target.name, target.key)
            except ConfigError as error:
                messages += error.problems
                continue
        names = parameters(target.name) if target.kwargs else None
        for key in target.kwargs:
            number = None if names is None else _NUMBERS.get(names.get(key))
            if number and isinstance(value := target.kwargs[key], str):
                messages.append(f"{target.kwargs_key}.{key}={value} must be {number}, as {target.name} declares.")
            if names is not None and key not in (*names, *extra, *HYDRA_KEYS):
                given = _GIVEN.get(target.key, [*names][:1] if target.key.endswith("]") else ())
                settable = [each for each in (*names, *extra) if each not in given]
                hint = did_you_mean(str(key), settable, prefix=f"{target.kwargs_key}.")
                if key == "max_episode_steps" and target.key == f"{env_path}.entry_point":
                    limit = f"{env_path}.wrappers=[{{TimeLimit:{{{key}:{target.kwargs[key]}}}}}]"
                    hint = f". To limit its episodes: '{limit}'"
                messages.append(f"{target.kwargs_key}.{key} is not an argument of {target.name}{hint}")
    return messages


def _made_by_id(env: EnvConfig, path: str) -> Iterator[_Call]:
    """Yields the callable that makes the envs of `env.id`, if Gymnasium knows it without an import."""
    if not isinstance(env, GymnasiumConfig) or not env.kwargs or env.id is None or re.match("ALE/|.*:", env.id):
        return
    import gymnasium

    try:
        spec = gymnasium.spec(env.id)
    except gymnasium.error.Error:
        return
    by_vector = getattr(env, "vectorization_mode", None) == "vector_entry_point"
    target: object = (by_vector and spec.vector_entry_point) or spec.entry_point
    if isinstance(target, str):
        yield Target(f"{path}.id", target, f"{path}.kwargs", env.kwargs), () if by_vector else _MAKE


@functools.cache
def parameters(target: str) -> dict[str, Any] | None:
    """Returns the arguments that a class or function takes, with their annotations; None if it takes any, or cannot be
    imported. `target` is "package.module:Name" or "package.module.Name"."""
    try:
        arguments = inspect.signature(resolve(target, "")).parameters.values()
    except Exception:  # any error of the imported module: the run reports it
        return None
    if any(each.kind is each.VAR_KEYWORD for each in arguments):
        return None
    return {each.name: each.annotation for each in arguments if each.kind in _NAMED}


def arguments_of_user(target: str, key: str) -> dict[str, inspect.Parameter]:
    """Returns the arguments that a configuration may pass to the class or function `target`, which the option `key`
    names; none if it cannot be imported."""
    with suppress(Exception):  # any error of the imported module: the run reports it
        arguments = inspect.signature(resolve(target, key)).parameters.values()
        return {each.name: each for each in arguments if each.kind in _NAMED and each.name not in _GIVEN.get(key, ())}
    return {}


def known_env_id(name: str) -> str | None:
    """Returns the newest id of Gymnasium's envs, Atari's included, that is `name` apart from its namespace, its version
    and the spelling: ALE/Breakout-v5 for breakout and for BreakoutNoFrameskip-v4. Without one, `name` if it has a
    version, otherwise None."""
    import gymnasium

    with suppress(ImportError):
        gymnasium.register_envs(importlib.import_module("ale_py"))

    def parts(env_id: str) -> list[str]:
        return re.sub(r"^.*/|NoFrameskip|[_ ]", "", env_id).lower().split("-v")

    known = [each for each in gymnasium.registry if parts(each)[0] == parts(name)[0]]
    newest = max(known, key=lambda each: int(parts(each)[-1]) if "-v" in each else -1, default=None)
    return newest or (name if re.search(r"-v\d+$", name) else None)


def env_problems(cfg: RunConfig, path: str = "env") -> list[str]:
    """Returns a message if Gymnasium does not know the id of `path`. Ids that an import registers are checked when the
    env is made."""
    env_id = cfg.env.id if isinstance(cfg.env, GymEnvConfig | GymVectorEnvConfig) else None
    if re.fullmatch(r"ALE/\w+", env_id or ""):
        return [f"{path}.id={env_id} has no version. Did you mean {path}.id={env_id}-v5?"]
    if not env_id or ":" in env_id or env_id.startswith("ALE/"):
        return []
    import gymnasium

    try:
        gymnasium.spec(env_id)
    except gymnasium.error.Error as error:
        is_unknown = isinstance(error, gymnasium.error.UnregisteredEnv)
        near = nearest(env_id, gymnasium.registry)
        # Gymnasium proposes other names, but not the name with a version.
        if (newest := known_env_id(env_id)) not in (None, env_id):
            return [f"{path}.id={env_id} is unknown. Did you mean {path}.id={newest}?"]
        if game := re.fullmatch(r"(\w+?)(NoFrameskip|Deterministic)-v\d+", env_id):
            use = f"Use env=pong {path}.id=ALE/{game[1]}-v5 (pip install 'collectx[atari]')."
            return [f"{path}.id={env_id} is unknown. {use}"]
        if is_unknown:
            if env_id.startswith(("MiniGrid-", "BabyAI-")):
                return [f"{path}.id={env_id} is unknown. Use env=minigrid {path}.id=minigrid:{env_id}"]
            question = f" Did you mean {path}.id={near}?" if near else ""
            advice = f"If a module registers it, name the module too: {path}.id=MODULE:{env_id}"
            return [f"{path}.id={env_id} is unknown.{question} {advice}"]
        text = str(error)
        return [f"cannot create {path}.id={env_id}: {text}{'' if text.endswith(('.', '?')) else '.'}"]
    return []


def version_note(cfg: RunConfig) -> str:
    """Returns a note if Gymnasium has a newer version of `env.id`; otherwise "". Imports Gymnasium, and with it NumPy,
    whose threads would keep the fork server from being forked from this process."""
    if not isinstance(cfg.env, GymnasiumConfig):
        return ""
    from gymnasium.envs import registration

    env_id = cfg.env.id
    if env_id not in registration.registry:
        return ""
    space, name, version = registration.parse_env_id(env_id)
    newest = registration.find_highest_version(space, name)
    if version is None or newest is None or newest <= version:
        return ""
    return f"env.id={env_id} is an old version. The newest one: env.id={env_id.removesuffix(str(version))}{newest}"


def env_limit(cfg: RunConfig) -> AbstractContextManager[None]:
    """Limits a block that makes an env of `cfg` to `collector.start_timeout_s`; see `limited`. Prints where the block
    is if it takes long. Ends the process, with status 1, if the block cannot be interrupted."""

    def give_up(error: BaseException) -> None:
        printing.error("\n".join([summary_of(error), *error.__notes__]))
        sys.stdout.flush()
        os._exit(1)

    what = f"making an env ({env_option(cfg.env)})"
    return limited(what, "collector.start_timeout_s", cfg.collector.start_timeout_s, printing.note, give_up)


def device_problems(cfg: RunConfig) -> list[str]:
    """Returns a message for each device of the trainer, or of workers on this machine, that does not exist. Imports
    torch unless all are the CPU."""
    chosen = {name: value for name, value in vars(cfg.devices).items() if value not in (None, "cpu")}
    if not place_of(cfg).is_local:
        chosen.pop("policy_device", None)
    if not chosen:
        return []
    missing = {name: missing_device(value) for name, value in chosen.items()}
    return [f"devices.{name}={chosen[name]} cannot be used: {reason}" for name, reason in missing.items() if reason]


def missing_device(device: str) -> str | None:
    """Returns why a CPU or GPU cannot be used here, and what to do; None if the device exists. Imports torch."""
    import torch

    kind, _, index = device.partition(":") if is_device(device) else ("", "", "")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) < {"cpu": 1, "cuda": gpus}.get(kind, 0):
        return None
    if kind == "cuda" and not gpus:
        if torch.version.cuda is None:
            return "the installed torch has no CUDA support. Use cpu, or install a CUDA build of torch."
        return "torch sees no GPU here. Use cpu, or check nvidia-smi and CUDA_VISIBLE_DEVICES."
    return f"there is no such device. Use {either(['cpu', *(f'cuda:{each}' for each in range(gpus))])}."


def foreign_outputs(cfg: RunConfig, run_folder: RunFolder) -> list[str]:
    """Returns a message for each path of `SHARED_PATHS` at which another run, or the user, has written. Call it before
    the run writes to its folder, whose snapshot tells what an earlier attempt of the run wrote. With `run.overwrite`, a
    table is replaced."""
    paths = {name: path for name, path_of in SHARED_PATHS.items() if (path := path_of(cfg)) is not None}
    if not paths or cfg.run.overwrite:
        return []
    own = saved_config.read_config(run_folder.newest_config) if run_folder.config.is_file() else {}
    own = saved_config.flat(own)
    messages = []
    for name, path in paths.items():
        if own.get(name) == path:
            continue
        written = [*Path(path).glob("events.out.tfevents.*")] if Path(path).is_dir() else Path(path).exists()
        if written:
            messages.append(
                f"{name}={path} was written by another run or program. Choose another path, or leave it out to write "
                "to the run folder. To use it all the same, add run.overwrite=true."
            )
    return messages


def problems(
    cfg: RunConfig, checked: Iterable[rules.Rule] = rules.RULES, acting: Callable[[], Sequence[str]] | None = None
) -> list[Problem]:
    """Returns the problems of `cfg` by the rules, see `collectx.rules.problems`, and by what is installed here. A
    choice that breaks a rule is not looked for here."""
    broken = rules.problems(cfg, checked, acting)
    wrong = {problem.path for problem in broken if "." not in problem.path}
    here = check_all((_recorded_order, lambda cfg: place_of(cfg).library_problems(), _loggers, _data_format), cfg)
    return [*broken, *(problem for problem in here if problem.path not in wrong)]


def machine_problems(cfg: RunConfig) -> list[str]:
    """Returns messages about what this machine lacks to start the run of a valid configuration."""
    place = place_of(cfg)
    problems = place.missing()
    if not place.is_job:
        of_last_learner = share_of(cfg, place.gpu_of(cfg.trainer.num_learners - 1))
        problems += [*also_evaluated(env_problems, cfg), *trainer_problems(of_last_learner)]
    text, is_refused = copies()
    return problems + [text] * is_refused


def trainer_problems(cfg: RunConfig) -> list[str]:
    """Returns messages about what this machine lacks to run the trainer's process; `cfg` is the learner's share."""
    return device_problems(cfg) + place_of(cfg).unreachable()


def rule_problems(cfg: RunConfig) -> list[str]:
    """Returns the messages of the `problems`; empty if `cfg` can run. The one about a batch that does not fit the
    workers also says if they are too many for this machine, where fewer of them may be the better remedy."""
    texts = [*map(str, found := problems(cfg))]
    for index, problem in enumerate(found):
        if problem.path == "collector.frames_per_batch" and (note := cores.note(cfg)):
            texts[index] += f" But {note}"
    return texts


def _loggers(cfg: RunConfig) -> Iterator[Problem]:
    """The packages of the loggers are installed and their keys known, if the trainer runs on this machine."""
    if place_of(cfg).is_job:
        return
    for name in ("tensorboard", "wandb", "mlflow"):
        if getattr(cfg.logger, name) is not None and find_spec(name) is None:
            rule = f"the package {name} is not installed"
            yield Conflict("logger", rule, name, f"install it: pip install 'collectx[{name}]'")
        elif name == "wandb" and cfg.logger.wandb is not None:
            mode = cfg.logger.wandb.mode or os.environ.get("WANDB_MODE", "online")
            if mode == "online" and not _has_wandb_key():
                advice = "run `wandb login`, set WANDB_API_KEY, or use logger.wandb.mode=offline."
                yield Conflict("logger", "wandb has no API key", name, advice)


@functools.cache
def _has_wandb_key() -> bool:
    """Whether wandb finds an API key on this machine; true if its version cannot tell. Asks no server."""
    import wandb

    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            return wandb.login(prompt=False, verify=False)
        except TypeError:  # a version that would ask the user
            return True
        except wandb.Error:
            return False


def _data_format(cfg: RunConfig) -> Iterator[Problem]:
    """The packages of the data set's format are installed, if the trainer runs on this machine."""
    if not isinstance(cfg.trainer, RecordTrainerConfig) or place_of(cfg).is_job:
        return
    if missing := [name for name in DATA_PACKAGES[cfg.trainer.format] if find_spec(name) is None]:
        rule = f"the package {missing[0]} is not installed"
        yield Conflict("trainer.format", rule, cfg.trainer.format, "install it: pip install 'collectx[record]'")


def _recorded_order(cfg: RunConfig) -> Iterator[Problem]:
    """`collector.order_of` names an async run that this run has enough workers to repeat."""
    collector, folder, path = cfg.collector, cfg.collector.order_of, "collector.order_of"
    if folder is None or collector.schedule != "async":
        return
    try:
        num_learners = cfg.trainer.num_learners
        highest = max(worker for worker, *_ in recorded_order(folder, num_learners, num_learners - 1))
    except (DamagedFileError, ValueError) as error:
        yield Conflict(path, str(error), folder, "use collector.order_of=null.")
        return
    if highest >= collector.num_workers:
        rule = f"that run had at least {highest + 1} workers, but collector.num_workers={collector.num_workers}"
        yield Conflict(path, rule, folder, f"use as many workers as that run: collector.num_workers={highest + 1}")
