"""The run folder: the one place that knows its file names.

    <run>/.hydra/              what Hydra writes
    <run>/snapshot/            config.yaml, meta.json
    <run>/metrics.jsonl        one line per batch
    <run>/events.jsonl         joins, deaths, publishes, in order
    <run>/rendezvous.json      where the trainer listens, while it does, for workers that it has not started itself
    <run>/secret               what trainer and workers of this run know; for the owner's eyes only
    <run>/lock                 locked by the trainer's process while the run lives (lock.py); host and process id
    <run>/result.json          written atomically, last
    <run>/logs/                one file per role
    <run>/jobs/                scripts of a scheduler's jobs, and what they are told
    <run>/checkpoints/

Used by the trainer's process while a run lives, and by the command line afterwards. Must not know what the lines mean.
"""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from collectx.errors import ConfigError, DamagedFile
from collectx.run.result import Status


class RunFolder:
    """Paths of one run. Creating the object touches nothing on disk; `begin` makes the folders."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).absolute()
        self.hydra = self.path / ".hydra"
        self.snapshot = self.path / "snapshot"
        self.config = self.snapshot / "config.yaml"
        self.meta = self.snapshot / "meta.json"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events.jsonl"
        self.result = self.path / "result.json"
        self.rendezvous = self.path / "rendezvous.json"
        self.secret = self.path / "secret"
        self.lock = self.path / "lock"
        self.logs = self.path / "logs"
        self.jobs = self.path / "jobs"
        self.job_note = self.jobs / "slurm.json"
        self.worker_jobs = self.jobs / "workers.txt"
        self.checkpoints = self.path / "checkpoints"
        self.final_checkpoint = self.checkpoints / "final.pt"

    @property
    def has_run(self) -> bool:
        """Whether a run lives in it, or has ended there."""
        return any(path.exists() for path in (self.config, self.metrics, self.result))

    def begin(self, keep_logs: bool = False) -> None:
        """Makes the folders, and removes what an earlier run in the same folder wrote: its lines and its result must
        not be taken for this run's.

        Args:
            keep_logs: leaves `logs/` alone, where other roles of this run may be writing already, and what `jobs/` says
                of its jobs.

        Raises:
            ConfigError: the folder cannot be made, or not be written to.
        """
        with making(self.path):
            for folder in (self.path, self.snapshot, self.logs, self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
            lines = (self.metrics, self.events)
            others = () if keep_logs else (*self.logs.glob("*.log"), self.job_note, self.worker_jobs)
            for stale in (self.result, self.rendezvous, self.secret, *lines, self.final_checkpoint, *others):
                stale.unlink(missing_ok=True)

    def log(self, role: str) -> Path:
        """The log file of a role, as in `trainer`."""
        return self.logs / f"{role}.log"

    def read_result(self) -> dict[str, Any] | None:
        """What `result.json` says; None where the run has not ended.

        Raises:
            DamagedFile: the file is there and cannot be read.
        """
        try:
            result = decode(self.result, "the file", self.result.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedFile([f"{self.result}: cannot be read: {error.strerror}"]) from error
        if result.get("status") not in list(Status):
            raise DamagedFile(
                [f"{self.result}: its status is {result.get('status')!r}, not one of {', '.join(Status)}"]
            )
        return result

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of `metrics.jsonl`; see `read_lines`."""
        return read_lines(self.metrics)

    def read_events(self) -> Iterator[dict[str, Any]]:
        """The lines of `events.jsonl`; see `read_lines`."""
        return read_lines(self.events)


@contextmanager
def making(path: Path | str) -> Iterator[None]:
    """Raises a `ConfigError` where the block, which makes the folder `path`, raises an `OSError`."""
    try:
        yield
    except OSError as error:
        where = "choose another with hydra.run.dir or hydra.sweep.dir."
        raise ConfigError([f"the run folder {path} cannot be made: {error}: {where}"]) from error


def new_folder() -> RunFolder:
    """A folder for a run of a script's own, below `outputs/`, named as the command's are. Not made yet."""
    now = datetime.now()
    return RunFolder(Path("outputs", f"{now:%Y-%m-%d}", f"{now:%H-%M-%S-%f}"))


def write_json(path: Path, value: Any) -> None:
    """Writes `value` so that a reader, or a crash at any moment, sees the old file or the whole new one."""
    text = json.dumps(plain(value), indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls `write(file)` on a new file beside `path`, brings it to the disk, and renames it to `path`."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w+b") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp is for secrets; a result is as readable as every other file of the folder.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        # torch.save raises an error of its own, which does not say what the file's was.
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        if isinstance(cause, OSError):
            raise _named(cause, path) from None
        raise


def write_private(path: Path, content: bytes) -> None:
    """Writes a new file for this user alone; a file or link of that name is removed before."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)


def read_private(path: Path) -> bytes:
    """What `write_private` wrote.

    Raises:
        PermissionError: another user has written the file, or can read or write it.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        status = os.fstat(file.fileno())
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid() or mode & 0o077:
            raise PermissionError(
                f"{path} belongs to user {status.st_uid} and has mode {mode:o}: it must be user {os.geteuid()}'s, who "
                "reads it, and of mode 600. Another user may have put it there; or its file system keeps no modes: "
                "choose another for the run folder (hydra.run.dir)."
            )
        return file.read()


class JsonLines:
    """Appends one JSON object per line. Every line reaches the file in one write, so that a reader of a living run and
    a killed one see whole lines only; nothing is brought to the disk before the operating system wants to."""

    def __init__(self, path: Path):
        self._path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115, closed by close()

    def append(self, line: dict[str, Any]) -> None:
        """Adds `line`. Numbers that JSON lacks (nan, inf) become null."""
        try:
            text = _encode(line)
        except (ValueError, TypeError):
            text = _encode(plain(line))
        rest = memoryview(text.encode() + b"\n")
        try:
            while rest:  # a disk that is nearly full takes a part, and refuses the next
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise _named(error, self._path) from None

    def close(self) -> None:
        """Idempotent."""
        self._file.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON lines file, one by one; nothing where there is no such file. A last line cut short by a
    crash is left out.

    Raises:
        DamagedFile: the file, or a line of it, cannot be read.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield decode(path, f"line {number}", line)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DamagedFile([f"{path}: cannot be read: {error.strerror}"]) from error


def decode(path: Path, part: str, text: bytes) -> dict[str, Any]:
    """A JSON object; `path` and `part` are where it was read.

    Raises:
        DamagedFile: it is none.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DamagedFile([f"{path}: {part} is not JSON: {error}"]) from error
    if not isinstance(value, dict):
        raise DamagedFile([f"{path}: {part} is not a JSON object"])
    return value


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: nan and inf become None, keys and unknown objects become strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)


# One encoder for all lines: json.dumps with non-default arguments would build a new one for each.
_encode = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":")).encode


def _named(error: OSError, path: Path) -> OSError:
    """`error` with the name of the file, which those of `write` and `fsync` lack."""
    if error.filename is None:
        error.filename = str(path)
    return error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
