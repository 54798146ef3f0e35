"""The code that a saved configuration names. Before `load_policy` or a command imports any of it, they print it if the
folder comes from another user or machine and, for another user's, require `--trust`. This module imports none of it."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from collectx.checkpoints import INCOMPLETE
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.run.folder import snapshot
from collectx.run.folder.layout import RunFolder
from collectx.run.terminal import printing

_IMPORTED, _MISSING = "is imported from", "names the package"
# Launcher options that name code, or may.
_EXECUTED_BY_LAUNCHER = {
    **dict.fromkeys(("python", "setup"), "is executed"),
    **dict.fromkeys(("srun", "sbatch", "container"), "is passed to SLURM, and may name code to execute"),
    **dict.fromkeys(("ray_init_config", "remote_configs"), "is passed to Ray, and may name code to execute"),
}


def check(run_folder: RunFolder, cfg: RunConfig, trusted: bool) -> None:
    """Prints which code a run of `cfg`, the configuration in `run_folder`, imports and executes, and where it comes
    from; if the folder is this user's and was begun on this machine, only the packages that are missing. Raises
    `ConfigError` if the folder belongs to another user, and `trusted` is false."""
    meta, owner = run_folder.read_meta(run_folder.meta), other_owner(run_folder)
    is_own = owner is None and meta.get("host") == socket.gethostname()
    texts = [
        f"{key}={value} {origin}"
        for key, value, origin in references(cfg, meta.get("cwd"))
        if not is_own or origin.startswith(_MISSING)
    ]
    found = [text for text in texts if _IMPORTED in text]
    for text in filter(None, ("; ".join(found), *(text for text in texts if text not in found))):
        printing.note(text)
    if owner is not None and not trusted:
        raise ConfigError(
            f"{run_folder.path} belongs to {owner}, and its configuration says which code is imported and called. Read "
            f"{run_folder.config}. If you trust the code that it names, add --trust (in Python, trust=True)."
        )


def check_checkpoints(run_folder: RunFolder) -> None:
    """Checks who may have written the checkpoints of a run before a command continues it: its workers will unpickle env
    states, which executes code. Raises `ConfigError` if the folder belongs to another user, or others can write to its
    checkpoints."""
    if not run_folder.has_run:
        return
    if (owner := other_owner(run_folder)) is not None:
        raise ConfigError(
            f"{run_folder.path} belongs to {owner}, and its checkpoints contain env pickles, which execute code. If "
            f"you trust them: collectx resume {run_folder.path} --trust"
        )
    for path in _checkpoint_paths(run_folder):
        if path.exists() and path.stat().st_mode & 0o022:
            how, chmod = "", f"chmod -R go-w {run_folder.checkpoints}, or "
            if not _has_permissions(run_folder.checkpoints):
                how, chmod = ", because its file system has no permissions", ""
            raise ConfigError(
                f"other users can write to {path}{how}, and checkpoints contain env pickles, which execute code. If "
                f"you are sure that nobody changed a file: {chmod}add run.trust=true (collectx resume "
                f"{run_folder.path} --trust)"
            )


def _has_permissions(folder: Path) -> bool:
    """Whether the file system of a folder stores who may write to a file."""
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder, prefix=INCOMPLETE) as file:
        return not os.stat(file.name).st_mode & 0o022
    return True


def references(cfg: RunConfig, began: str | None = None) -> Iterator[tuple[str, Any, str]]:
    """Yields option, value and origin of every reference to code in a configuration. `began` is the folder in which the
    run was started, if it is known."""
    for target in snapshot.targets(cfg):
        yield target.key, target.name, _origin(target.name, began)
    parts = {f"launcher.{name}": getattr(cfg.launcher, name, None) for name in ("trainer", "worker")}
    for path, part in {"launcher": cfg.launcher, **parts}.items():
        for name, origin in _EXECUTED_BY_LAUNCHER.items():
            if value := getattr(part, name, None):
                yield f"{path}.{name}", value, origin


def _origin(target: str, began: str | None) -> str:
    """Returns where an import path's first package comes from, as a part of a sentence. Only the first: finding a
    submodule would execute the packages above it."""
    package = target.partition(":")[0].partition(".")[0]
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        # The working directory is on the import path.
        is_elsewhere = began not in (None, os.getcwd())
        advice = f". The run began in {began}: start from there, or add it to PYTHONPATH." if is_elsewhere else ""
        return f"{_MISSING} '{package}', which is not installed here{advice}"
    found = printing.typed(Path(spec.origin)) if spec.origin else list(spec.submodule_search_locations or ())
    return f"{_IMPORTED} {found}"


def other_owner(run_folder: RunFolder) -> str | None:
    """Returns the other user who owns the folder, a configuration or a checkpoint file; None if this user owns them
    all."""
    configs = [path for _, path in run_folder.configs]
    for path in (run_folder.path, run_folder.snapshot, *configs, *_checkpoint_paths(run_folder)):
        if not path.exists():
            continue
        uid = path.stat().st_uid
        if uid != os.geteuid():
            try:
                return pwd.getpwuid(uid).pw_name
            except KeyError:
                return f"user {uid}"
    return None


def _checkpoint_paths(run_folder: RunFolder) -> Iterator[Path]:
    for folder in (run_folder.checkpoints, *run_folder.checkpoint_folders):
        yield folder
        yield from folder.rglob("*") if folder != run_folder.checkpoints else ()
