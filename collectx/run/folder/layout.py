"""The run folder and the names of its files; `collectx/place/slurm/__init__.py` has those that the scripts of jobs use
too.

    <run>/.hydra/              what Hydra writes
    <run>/snapshot/            config.yaml, meta.json, git.patch; those of resumes, see saved_config.py; init.pt
    <run>/metrics.jsonl        one line per batch
    <run>/events.jsonl         joins, deaths, checkpoints, in order
    <run>/rendezvous.json      where the trainer listens, for workers that other processes start; removed at the end
    <run>/secret               authenticates trainer and workers; readable by the owner only
    <run>/lock                 locked by the trainer's process (`Lock`); host and process id
    <run>/.learners            where several learners meet (torch's FileStore); removed at the end
    <run>/.replaced            the earlier run in the folder, until the workers of the new one have started
    <run>/result.json          written atomically, last
    <run>/logs/                one file per role
    <run>/jobs/                scripts of a scheduler's jobs, and the task that they run
    <run>/checkpoints/
    <run>/report/              what `collectx report` writes
    <run>/policy.pt            the state dict of the policy with the last published weights, at the end of the run
    <run>/evaluations.jsonl    one line per `collectx eval`; earlier versions wrote eval.json
    <run>/videos/              a folder for each evaluation that recorded its episodes
    <run>/tensorboard/, progress.csv, wandb/    what loggers write; logger_id lets them continue a run

Used by the trainer's process while a run lives, and by the command line afterwards.

The lock of a run folder: on Linux an open file description lock (fcntl(2), "OFD locks"), elsewhere flock(2).

The kernel releases the lock when its holder exits or is killed. An OFD lock works between hosts on NFS, as POSIX record
locks do. Unlike POSIX locks, both kinds survive when the holder opens and closes the file again, as a reader of the
folder does, and a process cannot lock a file twice. A forked process would share the lock, so it closes the descriptor.
On a file system without locks, every lock is granted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from collectx.checkpoints import INCOMPLETE, Checkpoints
from collectx.errors import ConfigError, DamagedFileError
from collectx.place.slurm import JobFiles
from collectx.run.folder.batch_line import BatchLine
from collectx.run.folder.files import decode, read_lines
from collectx.run.folder.result import ENDED, Status

# The maximum depth of runs below a folder: outputs, date, sweep, point.
_MAX_DEPTH = 4
# The content of `RunFolder._aside` if `begin` keeps the run.
_RESUMED = "resumed"


def absolute(path: str | os.PathLike[str]) -> Path:
    """Returns an absolute path, without `..` unless that leads to another folder, as behind a symbolic link."""
    path = Path(path).absolute()
    short = Path(os.path.normpath(path))
    return short if os.path.realpath(short) == os.path.realpath(path) else path


class RunFolder(JobFiles):
    """The paths of one run folder, and methods that read or remove its files. Making the object does not touch the
    disk; `begin` makes the folders."""

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__(absolute(path))
        self.hydra = self.path / ".hydra"
        self.snapshot = self.path / "snapshot"
        self.config = self.snapshot / "config.yaml"
        self.meta = self.snapshot / "meta.json"
        self.patch = self.snapshot / "git.patch"
        self.initial = self.snapshot / "init.pt"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events.jsonl"
        self.rendezvous = self.path / "rendezvous.json"
        self.secret = self.path / "secret"
        self.lock = self.path / "lock"
        self.job_objects = self.jobs / "task.pkl"
        self.job_note = self.jobs / "slurm.json"
        self.checkpoints = self.path / "checkpoints"
        self.report = self.path / "report"
        self.policy = self.path / "policy.pt"
        self.evaluations = self.path / "evaluations.jsonl"
        self.videos = self.path / "videos"
        self.tensorboard = self.path / "tensorboard"
        self.wandb = self.path / "wandb"
        self.progress = self.path / "progress.csv"
        self.logger_id = self.path / "logger_id"
        self.final_checkpoint = self.checkpoints / "final.pt"
        self._replaced, self._forgotten = self.path / ".replaced", self.path / ".replaced-old"
        # Exists if `set_aside` was completed; until then, nothing has been overwritten.
        self._aside = self._replaced / ".complete"
        self._is_new = False

    @property
    def has_run(self) -> bool:
        """Whether the folder contains a run, active or ended. One that was interrupted before its first batch does not
        count: the same command may begin it again."""
        if self.result.exists() and not self.has_checkpoint:
            with suppress(DamagedFileError):
                result = self.read_result() or {}
                if result.get("status") == Status.INTERRUPTED and not result.get("batches"):
                    return False
        return any(path.exists() for path in (self.config, self.metrics, self.result))

    @property
    def configs(self) -> list[tuple[int, Path]]:
        """The configurations of the run, each with the number of batches after which it applies: `config` with 0, then
        those of the resumes."""
        return self.parts(self.config)

    @property
    def newest_config(self) -> Path:
        """The configuration of the last start or resume."""
        return self.configs[-1][1]

    @property
    def newest_meta(self) -> Path:
        """What describes the last start or resume."""
        return self.parts(self.meta)[-1][1]

    @property
    def has_checkpoint(self) -> bool:
        """Whether the folder contains a checkpoint, which may be damaged."""
        return bool(Checkpoints(self.checkpoints).all())

    @property
    def is_completed(self) -> bool:
        """Whether the run has delivered all batches. Raises `DamagedFileError` if `result.json` cannot be read."""
        return (self.read_result() or {}).get("status") == Status.COMPLETED

    @property
    def checkpoint_folders(self) -> list[Path]:
        """The folders of all checkpoints and of the learners' parts of them."""
        return [path for pattern in ("[0-9]*", "learner-*") for path in self.checkpoints.glob(pattern)]

    def checkpoints_of(self, rank: int, keep: int = 1) -> Checkpoints:
        """Returns the checkpoints of a learner: those of the run, with rank 0, or a part for each of these."""
        return Checkpoints(self.checkpoints, keep, f"learner-{rank}-" if rank else "")

    def remove_old_parts(self) -> None:
        """Removes the learners' parts of checkpoints that are no longer there."""
        kept = {path.name for path in Checkpoints(self.checkpoints).all()}
        for path in self.checkpoints.glob("learner-*"):
            if path.name.rpartition("-")[2] not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def parts(self, first: Path) -> list[tuple[int, Path]]:
        """Returns a file of the snapshot and those that resumes wrote in its place, each with the number of batches
        after which it applies: `first` with 0, then the others in order."""
        resumed = sorted(self.snapshot.glob(f"{first.stem}-{'[0-9]' * 9}{first.suffix}"))
        return [(0, first), *((int(path.stem.rpartition("-")[2]), path) for path in resumed)]

    def resumed(self, first: Path, batches: int) -> Path:
        """Returns the file that a resume after `batches` batches writes in place of `first`; see `parts`."""
        return first.with_stem(f"{first.stem}-{batches:09d}")

    def name_below(self, root: Path) -> str:
        """Returns the path relative to `root`, or the name of `root` itself."""
        root = absolute(root)
        return self.path.name if self.path == root else str(self.path.relative_to(root))

    def begin(self, keep_logs: bool = False, keep_run: bool = False) -> None:
        """Makes the folders, and removes the files of an earlier run in them, and the incomplete files of a killed
        process. Raises `ConfigError` if the folder cannot be created or written to.

        Args:
            keep_logs: keeps `logs/` and `jobs/`, which other processes of this run may have written already.
            keep_run: removes only the files that the end of the run wrote, because the run is resumed.
        """
        with folder_errors(self.path):
            for folder in (self.path, self.snapshot, self.logs):
                folder.mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(mode=0o755, exist_ok=True)  # only the owner may write to checkpoints
            for folder in (self.path, self.snapshot, self.checkpoints, *(() if keep_logs else (self.jobs,))):
                for path in folder.glob(f"{INCOMPLETE}*"):
                    _remove(path)
            for path in self._stale(keep_logs, keep_run):
                _remove(path)

    def _stale(self, keep_logs: bool, keep_run: bool) -> list[Path]:
        ended = [self.result, self.final_checkpoint, self.policy, self.rendezvous, self.secret]
        notes = [] if keep_logs else [self.job_note, self.worker_jobs]
        if keep_run:
            return ended + notes
        evaluations = [self.evaluations, self.path / "eval.json"]
        lines = [self.initial, self.metrics, self.events, *evaluations, self.progress, self.logger_id]
        logs = [] if keep_logs else [*self.logs.glob("*.log")]
        resumed = [path for first in (self.config, self.meta, self.patch) for _, path in self.parts(first)[1:]]
        folders = [
            *self.checkpoint_folders,
            self.report,
            self.tensorboard,
            self.wandb,
            self.videos,
        ]
        return ended + notes + lines + logs + resumed + folders

    def set_aside(self, keep_run: bool) -> None:
        """Moves the files that `begin` would remove to `.replaced`, and copies the files that a new or resumed run
        overwrites there. Called before `begin`, so that `restore` can undo both, also if this raises, and also in a
        later process. Raises `ConfigError` if the folder cannot be written to."""
        with folder_errors(self.path):
            if not self.has_run:
                self._remove_run(keep_run=False)
            moved = [path for path in self._stale(False, keep_run) if path.exists()]
            kept = [path for path in (*self.snapshot.glob("*"), self.events) if path.is_file() and path not in moved]
            self._is_new = not moved and not kept
            for path in (*kept, *moved):
                saved = self._replaced / path.relative_to(self.path)
                saved.parent.mkdir(parents=True, exist_ok=True)
                if path in moved:
                    path.rename(saved)
                else:
                    copy = saved.with_name(f"{INCOMPLETE}{saved.name}")
                    shutil.copyfile(path, copy)
                    copy.rename(saved)
            if self._replaced.exists():
                self._aside.write_text(_RESUMED if keep_run else "")

    @property
    def has_replaced(self) -> bool:
        """Whether `.replaced` contains an earlier run, which the new one has not replaced yet."""
        return os.path.exists(self._replaced)  # Path.exists raises for a name that is too long

    def forget_replaced(self) -> None:
        """Deletes the files that `set_aside` kept. Idempotent."""
        shutil.rmtree(self._forgotten, ignore_errors=True)
        with suppress(FileNotFoundError):
            # At once, as `recover` must not find a part of the files.
            self._replaced.rename(self._forgotten)
        shutil.rmtree(self._forgotten, ignore_errors=True)

    def restore(self) -> None:
        """Undoes `set_aside` and `begin`, after a run failed to start. Without an earlier run, also removes Hydra's
        files, the lock, and the folder if it is then empty."""
        if self._is_new:
            self._remove_run(keep_run=False)
        self.recover()
        if not self.has_run:
            shutil.rmtree(self.hydra, ignore_errors=True)
            self.lock.unlink(missing_ok=True)
            for folder in (self.snapshot, self.logs, self.checkpoints, self.jobs, self.path):
                with suppress(OSError):  # it contains other files
                    folder.rmdir()

    def recover(self) -> None:
        """Moves the files in `.replaced` back, if there are any, in place of those of a run that ended before it began.
        Can be repeated if it is interrupted."""
        if not self.has_replaced:
            return
        if self._aside.exists():
            self._remove_run(self._aside.read_text() == _RESUMED)
            self._aside.unlink()
        _move_back(self._replaced, self.path)
        self.forget_replaced()

    def _remove_run(self, keep_run: bool) -> None:
        for path in {*self._stale(False, keep_run), *self.snapshot.glob("*"), self.events}:
            _remove(path)

    def read_result(self) -> dict[str, Any] | None:
        """Returns the content of `result.json`; None if the file does not exist. Raises `DamagedFileError` if the file
        cannot be read."""
        try:
            result = decode(self.result, "the file", self.result.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DamagedFileError(f"{self.result} cannot be read: {error.strerror}") from error
        if result.get("status") not in ENDED:
            raise DamagedFileError(
                f"{self.result} is damaged: its status is {result.get('status')!r}, not one of {', '.join(ENDED)}"
            )
        return result

    def read_meta(self, path: Path | None = None) -> dict[str, Any]:
        """Returns the content of `path`, one of the `parts` of `meta`, or of the newest one; empty if the file cannot
        be read."""
        path = path or self.newest_meta
        with suppress(OSError, DamagedFileError):
            return decode(path, "the file", path.read_bytes())
        return {}

    @property
    def run_id(self) -> str | None:
        """The id of the run, which names the run in data sets. A resume keeps it, and so does a run that replaces the
        one in the folder, because the user says so. None without a run."""
        return self.read_meta().get("id")

    def read_metrics(self) -> Iterator[BatchLine]:
        """Yields the lines of `metrics.jsonl`; see `read_lines`. Raises `DamagedFileError` also if one is not a
        `BatchLine`, or if lines are missing: each line contains its batch number."""
        for index, content in enumerate(read_lines(self.metrics)):
            line = BatchLine.of(content, self.metrics, f"line {index + 1}")
            if line.batch != index:
                problem = f"line {index + 1} belongs to batch {line.batch}, not {index}: lines are missing"
                raise DamagedFileError(f"{self.metrics}: {problem}")
            yield line

    def read_events(self) -> Iterator[dict[str, Any]]:
        """Yields the lines of `events.jsonl`; see `read_lines`."""
        return read_lines(self.events)


def _move_back(source: Path, target: Path) -> None:
    """Moves what is in a folder to another one, file by file where both have a folder of the same name."""
    for path in source.iterdir():
        place = target / path.name
        if path.is_dir() and place.is_dir():
            _move_back(path, place)
        elif not path.name.startswith(INCOMPLETE):
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def folder_errors(
    path: Path | str, what: str = "run folder", option: str = "hydra.run.dir (for a sweep, hydra.sweep.dir)"
) -> Iterator[None]:
    """Turns an `OSError` of the block, which creates the folder `path`, into a `ConfigError`. `option` names the option
    with which the user chooses another folder."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error).strip().partition("\n")[0] or type(error).__name__
        if isinstance(error, FileExistsError):
            why = "a file has this name"
        raise ConfigError(f"cannot create the {what} {path}: {why}. Choose another folder with {option}.") from error


@contextmanager
def removing_empty_folders(path: Path, of_hydra: str = "") -> Iterator[None]:
    """Removes the folder and those above it after the block, if they are empty and were made in the block. `of_hydra`
    names a file that Hydra writes into the folder; a folder with this file alone counts as empty."""
    path = path.absolute()
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    finally:
        if path in made and path.is_dir() and [each.name for each in path.iterdir()] == [of_hydra]:
            (path / of_hydra).unlink()
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def locked(
    run_folder: RunFolder, replace: bool, force: bool = False, to_continue: str = "resume=auto"
) -> Iterator[None]:
    """Makes the folder and locks it during the block. Does not wait for the lock. Raises `ConfigError` if
    the lock is held, the folder contains a run and `replace` is false, or it cannot be created.

    Args:
        replace: whether to replace a run that the folder contains.
        force: ignores the lock of another process and replaces the run: for a job that a scheduler restarts, whose
            first process has ended although a file server may still hold its lock.
        to_continue: what continues the run that the folder contains, for the message.
    """
    with folder_errors(run_folder.path):
        run_folder.path.mkdir(parents=True, exist_ok=True)
        handle, is_ours = acquire(run_folder.lock)
    try:
        if not is_ours and not force:
            holder = os.read(handle, 1000).decode(errors="replace").strip()
            raise ConfigError(
                f"another run is using {run_folder.path} ({holder or 'an unknown process'}). Wait until it ends, or "
                "choose another folder with hydra.run.dir."
            )
        if not force:
            run_folder.recover()  # from a start that was killed
        if run_folder.has_run and not (replace or force):
            advice = "replace it (run.overwrite=true), or choose another folder with hydra.run.dir."
            advice = f"Continue it ({to_continue}), {advice}" if run_folder.has_checkpoint else advice.capitalize()
            raise ConfigError(f"{run_folder.path} already contains a run. {advice}")
        with folder_errors(run_folder.path):
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        release(handle)


def is_locked(run_folder: RunFolder) -> bool:
    """Whether a process holds the folder's lock. False if the lock file does not exist or cannot be read."""
    return is_held(run_folder.lock)


def holder(run_folder: RunFolder) -> tuple[int | None, str]:
    """Returns the id of the process that holds the folder's lock, None if it is not on this host, and the name of its
    host.

    Anyone who can write to the folder can write the lock file, so the process that it names is checked.
    """
    try:
        words = run_folder.lock.read_text().split()
        pid, host = int(words[1]), words[3]
    except (OSError, ValueError, IndexError):
        return None, "its host"
    is_here = host == socket.gethostname() and pid > 1 and is_held_by(run_folder.lock, pid)
    return (pid if is_here else None), host


def runs_below(root: Path, max_depth: int = _MAX_DEPTH, includes_root: bool = True) -> list[RunFolder]:
    """Returns the runs at most `max_depth` levels below `root`, or the one in `root` itself. With
    `includes_root=False`, `root` itself does not count: a sweep folder may also contain a run. Skips folders that this
    user cannot read."""
    # `Path.is_dir` would raise for a folder that this user cannot read, and for a name that is too long.
    runs, folders = [], [absolute(root)] if os.path.isdir(root) else []
    for depth in range(max_depth + 1):
        runs += [folder for folder in folders if (depth or includes_root) and os.path.isdir(folder / "snapshot")]
        folders = [inner for folder in folders if folder not in runs for inner in _folders_in(folder)]
    return [RunFolder(folder) for folder in sorted(runs)]


def _folders_in(folder: Path) -> list[Path]:
    """Returns the folders in a folder that are not hidden; without a system call for each of its files."""
    try:
        with os.scandir(folder) as entries:
            shown = [each for each in entries if not each.name.startswith(".")]
    except OSError:
        return []
    return [
        Path(each)
        for each in shown
        if each.is_dir(follow_symlinks=False) or (each.is_symlink() and os.path.isdir(each))
    ]


def new_folder() -> RunFolder:
    """Returns the folder for a run that a script starts: below `outputs/`, named after the time. Does not make it."""
    now = datetime.now()
    return RunFolder(Path("outputs", f"{now:%Y-%m-%d}", f"{now:%H-%M-%S-%f}"))


_HAS_OFD = sys.platform == "linux"
# The numbers in Linux's fcntl.h: Pythons built with glibc headers before 2.20 have no names for them.
_OFD_GETLK, _OFD_SETLK = 36, 37
_HELD = (errno.EACCES, errno.EAGAIN)
# struct flock of 64-bit Linux, without its padding: type, whence, start, length (0: the whole file), pid.
_FLOCK = struct.Struct("hhqqi")
_handles: set[int] = set()


def acquire(path: Path) -> tuple[int, bool]:
    """Opens the file, creating it if necessary, and locks it without waiting. Returns (descriptor, acquired): pass the
    descriptor to `release`; `acquired` is False if another process holds the lock. Raises `OSError` if the file cannot
    be opened."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    _handles.add(handle)
    try:
        if _HAS_OFD:
            _call(handle, _OFD_SETLK, fcntl.F_WRLCK)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return handle, error.errno not in _HELD
    return handle, True


def release(handle: int) -> None:
    """Closes the file and releases its lock. Does nothing in a process that was forked since `acquire`."""
    if handle in _handles:
        _handles.remove(handle)
        # A process that was forked by other means than Python may have a copy of the descriptor.
        with suppress(OSError):
            _call(handle, _OFD_SETLK, fcntl.F_UNLCK) if _HAS_OFD else fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def is_held(path: Path) -> bool:
    """Whether a process, possibly this one, holds the lock of the file. False if the file does not exist or cannot be
    read. flock(2) cannot ask, so there this takes a shared lock for a moment."""
    try:
        with open(path, "rb") as file:
            if _HAS_OFD:
                return _call(file.fileno(), _OFD_GETLK, fcntl.F_WRLCK) != fcntl.F_UNLCK
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def is_held_by(path: Path, pid: int) -> bool:
    """Whether process `pid` of this host holds the lock of the file. False if its files are hidden from this user.

    The kernel does not say who holds such a lock, but lists the locks of each open file of a process.
    """
    try:
        lock = path.stat()
        entries = list(os.scandir(f"/proc/{pid}/fd"))
    except OSError:
        return False
    for entry in entries:
        with suppress(OSError):  # closed since
            info = Path(f"/proc/{pid}/fdinfo/{entry.name}")
            if os.path.samestat(entry.stat(), lock) and "\nlock:" in info.read_text():
                return True
    return False


def _call(handle: int, command: int, kind: int) -> int:
    """Calls fcntl(2) for all bytes of the file; returns the kind of lock in its answer."""
    answer = fcntl.fcntl(handle, command, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
    return int(_FLOCK.unpack(answer)[0])


def _close_all() -> None:
    for handle in _handles:
        with suppress(OSError):
            os.close(handle)
    _handles.clear()


os.register_at_fork(after_in_child=_close_all)
