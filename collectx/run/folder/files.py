"""Reading and writing the files of a run folder: atomic, private, and JSON lines."""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from collectx.checkpoints import INCOMPLETE, sync
from collectx.errors import DamagedFileError


def write_json(path: Path, value: Any, is_private: bool = False) -> None:
    """Writes `value` as JSON, so that a reader at any moment, also after a crash, finds the complete old or new
    file."""
    text = json.dumps(plain(value), indent=2, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()), is_private)


def write_atomically(path: Path, write: Callable[[BinaryIO], object], is_private: bool = False) -> None:
    """Calls `write(file)` on a new file beside `path`, syncs it, and renames it to `path`; blocks until it is on the
    disk. An error leaves `path` as it was. With `is_private`, only this user can read the file; otherwise, the umask
    says who can."""
    temporary = str(path.with_name(f"{INCOMPLETE}{path.name}-{secrets.token_hex(4)}"))
    try:
        # The system applies the umask. To read it, os.umask would change it for other threads.
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if is_private else 0o666)
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        with os.fdopen(handle, "w+b") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync(path.parent)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        # torch.save raises a RuntimeError, whose context is the OSError of the file.
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        if isinstance(cause, OSError):
            if cause.filename == temporary:
                cause = OSError(cause.errno, cause.strerror)
            raise _with_filename(cause, path) from None
        raise


def write_private(path: Path, content: bytes) -> None:
    """Writes a new file that only this user can read. A file or link of that name is removed first."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(handle)
    sync(path.parent)


def read_private(path: Path) -> bytes:
    """Returns the content of a file that `write_private` wrote. Raises `PermissionError` if another user owns the file,
    or has access to it."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        status = os.fstat(file.fileno())
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid() or mode & 0o077:
            raise PermissionError(
                f"{path} belongs to user {status.st_uid} and has mode {mode:o}, but it must belong to user "
                f"{os.geteuid()} and have mode 600. Another user may have written it, or its file system has no "
                "permissions. Choose another run folder with hydra.run.dir."
            )
        return file.read()


class JsonLines:
    """Appends JSON objects to a file, one per line. Each line is one write, so that readers see complete lines only,
    even if the writer is killed; the file is not synced. An incomplete last line, which a full disk leaves, is removed
    when the file is opened."""

    def __init__(self, path: Path):
        self._path = path
        _drop_incomplete_line(path)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115, closed by close()

    def append(self, line: dict[str, Any]) -> None:
        """Appends `line`. Numbers that JSON lacks (nan, inf) become null."""
        try:
            text = _encode(line)
        except (ValueError, TypeError):
            text = _encode(plain(line))
        rest = memoryview(text.encode() + b"\n")
        try:
            while rest:  # a disk that is nearly full writes a part of the line before the error
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise _with_filename(error, self._path) from None

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._file.close()


def _drop_incomplete_line(path: Path) -> None:
    """Truncates a file, if it exists, after its last newline."""
    with suppress(FileNotFoundError), open(path, "r+b") as file:
        size = begin = file.seek(0, os.SEEK_END)
        newline = -1
        while newline < 0 < begin:
            end, begin = begin, max(0, begin - _TAIL)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
        if (complete := begin + newline + 1) < size:
            file.truncate(complete)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSON lines file; none if it does not exist. An incomplete last line is skipped. Raises
    `DamagedFileError` if the file, or a line of it, cannot be read."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield decode(path, f"line {number}", line)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DamagedFileError(f"{path} cannot be read: {error.strerror}") from error


# The number of bytes read at once: from the end of a file, and from a file that grows.
_TAIL = 1 << 12
_BLOCK = 1 << 24


class LinesTail:
    """Reads the lines that are appended to a file. If the file is longer than `newest_bytes` at the first read, only
    the lines in its last `newest_bytes` are read."""

    def __init__(self, path: Path, newest_bytes: int | None = None):
        self.path = path
        self._newest_bytes = newest_bytes
        self._position = 0
        self._file: int | None = None

    def read_lines(self, is_last: bool = False) -> tuple[list[bytes], bool]:
        """Returns the complete lines added since the last call, about `_BLOCK` bytes at most, and whether the file was
        replaced before them, as a restarted job does. `is_last` also returns a last line without a newline. Blocks for
        the disk only."""
        was_replaced = False
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if self._file is not None and (status.st_ino != self._file or status.st_size < self._position):
                    was_replaced, self._position = True, 0
                if self._file is None and self._newest_bytes is not None and status.st_size > self._newest_bytes:
                    file.seek(status.st_size - self._newest_bytes)
                    file.readline()
                    self._position = file.tell()
                self._file = status.st_ino
                file.seek(self._position)
                text = file.read(_BLOCK)
                text += b"" if b"\n" in text else file.readline()
        except FileNotFoundError:
            return [], False
        if not (is_last and len(text) < _BLOCK):
            text = text[: text.rfind(b"\n") + 1]
        self._position += len(text)
        lines = text.split(b"\n")
        return (lines if lines[-1] else lines[:-1]), was_replaced


class JsonLinesTail(LinesTail):
    """Reads the objects that are appended to a JSON lines file."""

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Returns the objects of `read_lines`, and whether the file was replaced. May raise `DamagedFileError`."""
        lines, was_replaced = self.read_lines()
        try:
            return [decode(self.path, "a line", line) for line in lines], was_replaced
        except DamagedFileError:
            # Counts the lines before only now, as the tail may have begun in the middle of the file.
            with open(self.path, "rb") as file:
                before = file.read(self._position - sum(len(line) + 1 for line in lines)).count(b"\n")
            for number, line in enumerate(lines, before + 1):
                decode(self.path, f"line {number}", line)
            raise


def decode(path: Path, part: str, text: bytes) -> dict[str, Any]:
    """Returns a JSON object. Raises `DamagedFileError`, with `path` and `part`, for other content."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DamagedFileError(f"{path} is damaged: {part} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path} is damaged: {part} is not a JSON object")
    return value


def plain(value: Any) -> Any:
    """Converts `value` to JSON types: nan and inf become None, keys and other objects become strings."""
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


def _with_filename(error: OSError, path: Path) -> OSError:
    """Adds the file's name, which errors of `write` and `fsync` lack."""
    if error.filename is None:
        error.filename = str(path)
    return error
