"""What a run may leave behind: processes, temporary files, shared memory, a lock, unfinished files in its folder.

A listening port belongs to a process, so that none is left where no process is.
"""

import contextlib
import re
from pathlib import Path

import psutil

from collectx.run.folder.layout import RunFolder, is_locked

_MARK = "COLLECTX_CHAOS"
# All that a run of `launcher=local` that has ended has in its folder; see collectx/run/folder/layout.py.
_FILES = re.compile(
    r"\.hydra/\w+\.yaml|snapshot/(config(-\d{9})?\.yaml|meta(-\d{9})?\.json)|(metrics|events)\.jsonl|logs/[\w-]+\.log|lock"
    r"|result\.json|checkpoints/(final\.pt|\d{9}/(manifest\.json|state\.pt))"
)


class Leftovers:
    """Marks the processes of one run, and gives them folders of their own for temporary files and shared memory.

    Args:
        folder: for these folders; exists.
        can_mount: whether `/dev/shm` can be replaced, which needs root.
    """

    def __init__(self, folder: Path, can_mount: bool):
        self._mark = f"{_MARK}={folder}".encode()
        self._temporary, self._shared = folder / "tmp", folder / "shm"
        for each in (self._temporary, self._shared):
            each.mkdir()
        self.environ = {_MARK: str(folder), "TMPDIR": str(self._temporary)}
        mount = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /dev/shm && exec "$@"', str(self._shared)]
        self.prefix = mount if can_mount else []

    def processes(self) -> list[psutil.Process]:
        """The processes of the run that live now. A process that has ended has no environment."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                if self._mark in path.read_bytes().split(b"\0"):
                    found.append(psutil.Process(int(path.parent.name)))
        return found

    def problems(self, run: Path, keep: int) -> list[str]:
        """Returns what a run left behind, in the folder `run` and elsewhere; with `keep`, checkpoints may be left."""
        found = [f"process {each.pid}: {' '.join(each.cmdline())[:100]}" for each in self.processes()]
        found += [str(path) for folder in (self._temporary, self._shared) for path in folder.rglob("*")]
        # The cache of torch, for all processes of a user.
        found = [each for each in found if "torchinductor_" not in each]
        files = [str(path.relative_to(run)) for path in run.rglob("*") if not path.is_dir()]
        found += [path for path in files if not _FILES.fullmatch(path)]
        numbers = {path.parent.name for path in run.glob("checkpoints/*/state.pt")}
        if len(numbers) > keep:
            found.append(f"checkpoints {sorted(numbers)}")
        if is_locked(RunFolder(run)):
            found.append("a lock")
        return found
