"""The command in processes that are forked from one which has imported what `collectx run` imports first: a tenth of a
second in place of seconds.

It is not the same as typed where something depends on the moment of an import: environment variables that libraries
read, standard streams at the start, an import that only another one makes possible. And the fork server of workers is
always forked from the command's process, which with a network backend would start a new Python.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from commands import COMMAND, environment


def import_what_a_run_imports() -> None:
    import_module("collectx.cli.run")
    from collectx.fork_server import start

    with start.environment(OPENBLAS_NUM_THREADS="1"):
        for module in start.PRELOAD:
            import_module(module)


def become(argv: Sequence[str], folder: Path, variables: Mapping[str, str], outputs: tuple[Path, Path]) -> NoReturn:
    """The rest of a forked process: the command, as a new process in this folder, with these environment variables and
    files for what it prints."""
    status = 70
    try:
        os.setsid()
        os.chdir(folder)
        null = os.open(os.devnull, os.O_RDONLY)
        files = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for path in outputs]
        for target, source in enumerate((null, *files)):
            os.dup2(source, target)
        os.environ.clear()
        os.environ.update(variables)
        # As this process; the command would start again to set it.
        os.environ.setdefault("PYTHONHASHSEED", "0")
        sys.argv = [COMMAND, *argv]
        path = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
        sys.path[:1] = [str(Path(COMMAND).parent), *path]
        from collectx.cli.main import main
        from collectx.fork_server import start

        # As in a process that has imported what workers need; see `collectx.fork_server.start.preload`.
        start.reuse_imports()
        try:
            status = main() or 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            traceback.print_exc()
            status = 1
        import atexit
        import threading

        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


class Forking:
    """A process that forks commands. It ends with this one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(PYTHONHASHSEED="0"),
        )

    def run(self, argv: Sequence[str], cwd: Path, outputs: tuple[Path, Path]) -> int:
        """The exit status of the command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = [[*argv], str(cwd), environment(), [str(path) for path in outputs]]
        print(json.dumps(words), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


def _serve() -> None:
    import_what_a_run_imports()
    for line in sys.stdin:
        argv, cwd, variables, outputs = json.loads(line)
        pid = os.fork() or become(argv, Path(cwd), variables, (Path(outputs[0]), Path(outputs[1])))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
