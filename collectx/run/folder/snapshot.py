"""The snapshot of a run: its configuration, and the packages, commits and machine. JSON and YAML only.

Written before workers start or, for a job, when the job is submitted.

The user code that a configuration names, and digests of its source files: the snapshot records them, and `collectx
reproduce` names the ones that changed. Imports none of this code.

Files of installed packages are not read, as the snapshot records the package versions.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from collectx.checkpoints import FORMAT
from collectx.config.interpolation import as_written, written_values
from collectx.config.schema.env import GymnasiumConfig
from collectx.config.schema.fields import Unset
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.imports import is_installed
from collectx.place.slurm import requeue
from collectx.rules.evaluation_env import OF_EVALUATIONS, evaluated
from collectx.run.cores import num_cores
from collectx.run.folder.files import write_atomically, write_json
from collectx.run.folder.layout import RunFolder
from collectx.user_objects import HYDRA_KEYS, named_call, named_objects

if TYPE_CHECKING:
    import torch


_GIT_TIMEOUT_S = 5
# The largest patch that is saved, in bytes.
_MAX_PATCH = 1_000_000


def write(cfg: RunConfig, folder: RunFolder, argv: list[str], elapsed_s: float = 0.0) -> None:
    """Writes `snapshot/config.yaml` and `snapshot/meta.json`, see `write_meta`; takes some ten milliseconds."""
    write_config(cfg, folder.config)
    write_meta(cfg, folder, argv, elapsed_s=elapsed_s)


def write_config(cfg: RunConfig, path: Path) -> None:
    """Writes a configuration: every value of every group, `kind` included, with interpolations resolved except those of
    environment variables, see `collectx.config.interpolation`."""
    from omegaconf import OmegaConf

    text = OmegaConf.to_yaml(OmegaConf.create(as_written(cfg)))
    write_atomically(path, lambda file: file.write(text.encode()))


def write_meta(
    cfg: RunConfig, folder: RunFolder, argv: list[str], batches: int | None = None, elapsed_s: float = 0.0
) -> None:
    """Writes `snapshot/meta.json`, and `snapshot/git.patch`: the uncommitted changes of the current folder's checkout,
    if they are below `_MAX_PATCH`. For a resume after `batches` batches, writes `meta-<batches>.json` and
    `git-<batches>.patch` instead. `elapsed_s` is how long the run has taken so far, without pauses."""
    meta_path, patch_path = folder.meta, folder.patch
    if batches is not None:
        meta_path, patch_path = (folder.resumed(path, batches) for path in (meta_path, patch_path))
    run_id = folder.run_id or secrets.token_hex(8)
    config = {folder.newest_config.name: _digest(folder.newest_config)}
    write_json(meta_path, {"id": run_id, **meta(cfg, argv), "config": config, "elapsed_s": round(elapsed_s, 3)})
    patch = _diff(_typed_in())
    if patch and len(patch) < _MAX_PATCH:
        write_atomically(patch_path, lambda file: file.write(patch))
    else:
        patch_path.unlink(missing_ok=True)


def meta(cfg: RunConfig, argv: list[str]) -> dict[str, Any]:
    """Returns the content of `snapshot/meta.json`, except the run's id."""
    return {
        "format": FORMAT,
        "argv": argv,
        "cwd": str(_typed_in()),
        "chdir": Path.cwd() != _typed_in(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        # With other launchers, a job may contain several runs.
        **({"job": requeue.job_id(os.environ)} if os.environ.get("SUBMITIT_EXECUTOR") == "slurm" else {}),
        "platform": platform.platform(),
        "num_cpus": num_cores(),
        "python": platform.python_version(),
        "packages": packages(),
        "sources": digests(cfg),
        "values": _digests(cfg),
        "git": {"cwd": git_state(_typed_in()), "collectx": git_state(Path(__file__).parent)},
        "seeds": {"seed": cfg.seed},
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "random"),
    }


def _typed_in() -> Path:
    """Returns the folder where the command was typed. It is not the working directory with `hydra.job.chdir`."""
    hydra: Any = getattr(sys.modules.get("hydra.core.hydra_config"), "HydraConfig", None)
    return Path(hydra.get().runtime.cwd) if hydra is not None and hydra.initialized() else Path.cwd()


def write_numerics(folder: RunFolder, device: torch.device) -> None:
    """Adds hardware and threads, on which floating-point results depend, to the newest `meta.json`. `device` is
    the trainer's."""
    import torch

    numerics = {
        "torch threads of the trainer": torch.get_num_threads(),
        "processor": processor(),
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
    write_json(folder.newest_meta, {**folder.read_meta(), "numerics": numerics})


def differences(old: RunFolder, new: RunFolder, batches: int) -> list[str]:
    """Returns the differences between the first `batches` batches of `old` and a new run that may change the results of
    equal configurations; one line each, for the first part of `old` that differs. Packages that only one run has are
    counted, because few of them matter."""
    lines: dict[str, str] = {}
    alone: set[str] = set()
    after = _circumstances(newest := new.read_meta())
    for begin, meta in _metas(old, batches):
        before, since = _circumstances(meta), f" from batch {begin} on" if begin else ""
        alone |= (meta.get("packages") or {}).keys() ^ (newest.get("packages") or {}).keys()
        for name in dict.fromkeys([*before, *after]):
            if before.get(name) != after.get(name) and name not in alone:
                values = _shown(after.get(name)), _shown(before.get(name))
                lines.setdefault(name, "{}: {} in this run, {} in {}{}".format(name, *values, old.path, since))
    more = f"packages that only one of the runs has: {len(alone)}, see snapshot/meta.json"
    return [*lines.values(), *[more] * bool(alone)]


def check_format(folder: RunFolder) -> None:
    """Raises `ConfigError` if another version of collectx wrote the run folder in a format that this version does not
    read."""
    meta = folder.read_meta()
    # Format 2 is the same: run folders had a number of their own. Before their runs had an id, their files differ.
    found = meta.get("format") if "id" in meta else 1
    if meta and found not in (2, FORMAT):
        version = (meta.get("packages") or {}).get("collectx", "or another one")
        reads = f"collectx {sys.modules['collectx'].__version__} reads format {FORMAT}"
        advice = f"Use the version that wrote it, {version} (its commit is in snapshot/meta.json), or start a new run."
        raise ConfigError(f"{folder.path} has format {found}, but {reads}. {advice}")


def changes(folder: RunFolder, cfg: RunConfig, batches: int | None = None) -> list[str]:
    """Returns a sentence for each import path of a configuration whose source files have changed since one of the first
    `batches` batches, and for each interpolation whose value has; None: since the last start or resume."""
    metas = [folder.read_meta()] if batches is None else [meta for _, meta in _metas(folder, batches)]
    return [
        f"the {what} of {name} has changed since the run."
        for what, digests in (("source", digests(cfg)), ("value", _digests(cfg)))
        for name, digest in digests.items()
        if any((meta.get(f"{what}s") or {}).get(name, digest) != digest for meta in metas)
    ]


def is_edited(folder: RunFolder) -> bool:
    """Whether somebody has changed the newest configuration of a run folder since it was written."""
    config = folder.newest_config
    digest = (folder.read_meta().get("config") or {}).get(config.name)
    return digest is not None and digest != _digest(config)


def _digests(cfg: RunConfig) -> dict[str, str]:
    """Returns a digest of each value that the snapshot keeps as written. It is too short to tell the value, which may
    be a password, even to who tries all of them."""
    values = written_values(cfg)
    return {name: blake2b(repr(value).encode(), digest_size=3).hexdigest() for name, value in values.items()}


def _metas(folder: RunFolder, batches: int) -> list[tuple[int, dict[str, Any]]]:
    """Returns what describes the start and the resumes that delivered the first `batches` batches, each with the number
    of batches before it."""
    parts = folder.parts(folder.meta)
    return [(begin, folder.read_meta(path)) for begin, path in parts if begin < max(batches, 1)]


def _circumstances(meta: dict[str, Any]) -> dict[str, Any]:
    git = {f"git checkout of {name}": state for name, state in (meta.get("git") or {}).items()}
    files = {f"source of {name}": digest for name, digest in (meta.get("sources") or {}).items()}
    values = {f"value of {name}": digest for name, digest in (meta.get("values") or {}).items()}
    return {
        **files,
        **values,
        **(meta.get("numerics") or {}),
        "python": meta.get("python"),
        "PYTHONHASHSEED": meta.get("PYTHONHASHSEED"),
        **git,
        **(meta.get("packages") or {}),
    }


def _shown(value: Any) -> str:
    if isinstance(value, dict):  # `git_state`
        commit = f"commit {str(value.get('commit'))[:10]}"
        changes = f" ({value['diff'][:10]})" if value.get("diff") else ""
        if value.get("refused"):
            return f"unknown ({value['refused']})"
        return f"{commit} with uncommitted changes{changes}" if value.get("dirty") else commit
    return "none" if value is None else str(value)


def processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or platform.machine()


def packages() -> dict[str, str]:
    """Returns the version of every installed package by name, read from the names of the `*.dist-info` folders on
    `sys.path`: reading their metadata, as `importlib.metadata` does, takes a hundred times longer."""
    versions: dict[str, str] = {}
    for folder in sys.path:
        if not os.path.isdir(folder):
            continue
        for name in os.listdir(folder):
            match = re.fullmatch(r"(.+?)-([^-]+)\.dist-info", name)
            if match:
                versions.setdefault(match[1].replace("_", "-").lower(), match[2])
    return dict(sorted(versions.items()))


def git_state(folder: Path) -> dict[str, Any] | None:
    """Returns `{"commit", "dirty"}` of the checkout that contains `folder`, and, if it is dirty, `"diff"`, the digest
    of the changes; None without a checkout or git. Dirty means that tracked files differ from the commit. If git
    refuses to read a checkout that belongs to another user, `{"commit": None, "refused"}` says what to do."""
    status = _git("status", "--porcelain=v2", "--branch", "--untracked-files=no", folder=folder)
    if status is None:
        return None
    if isinstance(status, str):
        return {"commit": None, "refused": status}
    lines = status.decode(errors="replace").splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid")), None)
    state: dict[str, Any] = {"commit": commit, "dirty": any(not line.startswith("#") for line in lines)}
    if state["dirty"] and (diff := _diff(folder)) is not None:
        state["diff"] = xxhash.xxh3_128(diff).hexdigest()
    return state


def _diff(folder: Path) -> bytes | None:
    """Returns the uncommitted changes of the checkout's tracked files, for `git apply`."""
    changes = _git("diff", "--binary", "--no-ext-diff", "--no-textconv", "HEAD", folder=folder)
    return changes if isinstance(changes, bytes) else None


def _git(*arguments: str, folder: Path) -> bytes | str | None:
    """Returns the output of git; None without a checkout or git, or if git takes too long; as a text, what to do if git
    refuses the checkout."""
    command, english = ["git", "--no-optional-locks", *arguments], {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_GIT_TIMEOUT_S, env=english)
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode == 0:
        return done.stdout
    advice = re.search(rb"git config --global --add safe\.directory .+", done.stderr)
    return f"another user owns the checkout. To record its commit: {advice[0].decode()}" if advice else None


class Target(NamedTuple):
    """A class or function that a configuration names.

    Attributes:
        key: the option that names it.
        name: its import path.
        kwargs_key: the option that contains its keyword arguments.
        kwargs: its keyword arguments.
    """

    key: str
    name: str
    kwargs_key: str
    kwargs: Mapping[str, Any]


def targets(cfg: RunConfig, env_path: str = "env") -> Iterator[Target]:
    """Yields the classes and functions of user code and Gymnasium that a configuration names by import path, and those
    that only evaluations use. Options that failed their check are left out. `env_path` is the name of the options of
    `env`."""
    found = [*_targets(cfg, env_path)]
    yield from found
    with suppress(Unset):
        names = {each.name for each in found}
        yield from (each for each in _targets(evaluated(cfg), OF_EVALUATIONS) if each.name not in names)


def _targets(cfg: RunConfig, env_path: str) -> Iterator[Target]:
    sections = {name: getattr(cfg, name, None) for name in ("policy", "trainer", "logger")}
    sections = {env_path: (env := cfg.env), **sections}
    sections["logger.custom"] = getattr(sections.pop("logger"), "custom", None)
    for path, section in sections.items():
        for name in ("entry_point", "target"):
            if target := getattr(section, name, None):
                yield Target(f"{path}.{name}", target, f"{path}.kwargs", getattr(section, "kwargs", {}))
        yield from _objects(getattr(section, "kwargs", None), f"{path}.kwargs")
    if isinstance(env, GymnasiumConfig):
        if ":" in (name := getattr(env, "id", None) or ""):
            yield Target(f"{env_path}.id", name, f"{env_path}.kwargs", {})
        for index, item in enumerate(getattr(env, "wrappers", ())):
            target, arguments = named_call(item)
            kwargs = arguments if isinstance(arguments, Mapping) else {}
            where = f"{env_path}.wrappers[{index}]"
            yield Target(where, str(target), where, kwargs)
            yield from _objects(kwargs, where)


def _objects(kwargs: Any, where: str) -> Iterator[Target]:
    for path, node in named_objects(kwargs, where):
        arguments = {key: value for key, value in node.items() if key not in HYDRA_KEYS}
        yield Target(f"{path}._target_", str(node["_target_"]), path, arguments)


def digests(cfg: RunConfig) -> dict[str, str]:
    """Returns, for each `key=import path` of `targets`, the digest of the module's file, or of all Python files of a
    package. Leaves out installed packages, and modules without a source file."""
    modules = {f"{each.key}={each.name}": _module(each.name) for each in targets(cfg)}
    return {name: _digest(path) for name, path in modules.items() if path is not None}


def _module(target: str) -> Path | None:
    """Returns the file of an import path's module, or the folder of its package."""
    first, *others = target.partition(":")[0].split(".")
    try:
        spec = find_spec(first)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        return None
    path = Path(spec.origin)
    if is_installed(path):
        return None
    for name in others if path.name == "__init__.py" else ():
        # Not by find_spec, which imports the packages above.
        following = [path.parent / f"{name}.py", path.parent / name / "__init__.py"]
        if not (there := [each for each in following if each.is_file()]):
            break
        path = there[-1]
    return path.parent if path.name == "__init__.py" else path


def _digest(path: Path) -> str:
    digest = xxhash.xxh3_128()
    files: Iterable[Path] = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    for file in files:
        try:
            content = file.read_bytes()
        except OSError:
            content = b""
        digest.update(f"{file.relative_to(path.parent)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()
