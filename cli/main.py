"""The `collectx` command: finds the subcommand, runs it, and exits with its status.

0 completed, 1 failed, 2 wrong configuration or usage, 130 interrupted. Imports nothing heavy: `--version`, `--help` and
completion answer at once.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from importlib import import_module

from collectx.process import open_closed, outlive_readers, unbind_threads
from collectx.progress import telling_imports

# The name of each subcommand, and one line about it. The module of that name contains `main(argv) -> exit status`.
SUBCOMMANDS = {
    "init": "write a project with an env, a policy and a trainer of your own: collectx init DIR",
    "run": "collect and train: collectx run [overrides] [-m] [flags]",
    "reproduce": "repeat a run and compare the batches: collectx reproduce RUN_DIR [overrides]",
    "resume": "continue a run from its newest checkpoint: collectx resume RUN_DIR [overrides]",
    "eval": "evaluate a trained policy: collectx eval RUN_DIR [episodes=10] [video=true]",
    "export": "write a policy, or recorded episodes, for other programs: collectx export RUN_DIR format=NAME",
    "plan": "show what a run would start, allocate and request: collectx plan [overrides] [-m] [--json]",
    "tune": "find the fastest number of workers, envs and threads: collectx tune [overrides] [minutes=5]",
    "doctor": "check this machine and the cluster: collectx doctor [--json]",
    "status": "list runs with their status, also from SLURM: collectx status [DIR...]",
    "watch": "follow a running run or sweep: collectx watch DIR",
    "cancel": "stop a run or sweep after it saves a checkpoint: collectx cancel DIR [--now]",
    "logs": "print the logs of a run: collectx logs DIR [ROLE] [-f]",
    "report": "write a page with the figures of runs: collectx report DIR... [out=DIR]",
    "list": "list the choices of a group, and their keys: collectx list [GROUP [CHOICE]] [-v]",
    "schema": "print a JSON schema for editors: collectx schema [GROUP]",
    "docs": "list the pages of the documentation, or print one: collectx docs [PAGE]",
}

# What other programs call subcommands.
_OTHER_NAMES = {
    "train": "run",
    "start": "run",
    "submit": "run launcher=slurm",
    "validate": "plan",
    "evaluate": "eval",
    "test": "eval",
    **dict.fromkeys(("sweep", "multirun", "search"), "run -m"),
    **dict.fromkeys(("play", "enjoy", "render", "video"), "eval RUN_DIR video=true"),
    "record": "run trainer=record",
    "continue": "resume",
    **dict.fromkeys(("stop", "kill"), "cancel"),
    **dict.fromkeys(("ls", "ps", "info", "show"), "status"),
    "tail": "logs DIR -f",
    **dict.fromkeys(("documentation", "manual"), "docs"),
    **dict.fromkeys(("plot", "compare"), "report DIR..."),
    "tensorboard": "report, or collectx run logger=tensorboard",
}

# Subcommands that only print. They end when nobody reads their output any more; the others continue.
PRINTING = ("plan", "doctor", "status", "watch", "logs", "list", "schema", "docs")

# Subcommands that step envs, or start processes that do; all but eval may take hours.
_STEPPING = ("run", "reproduce", "resume", "eval", "tune")
_LONG = ("run", "reproduce", "resume", "tune")

# What a file of the working directory must not be called: Python's modules, and those that collectx imports.
_TAKEN = sys.stdlib_module_names | {"gymnasium", "hydra", "numpy", "omegaconf", "submitit", "tensordict", "torch"}

# How long a command waits for the threads that user code has left.
_THREADS_S = 10.0

_HELP = """\
collectx: collect experience for reinforcement learning, configured by YAML.

{subcommands}

For details: collectx SUBCOMMAND --help. For the version: collectx --version.
Completion: eval "$(collectx -sc install=bash)"; in zsh, first autoload -Uz bashcompinit; bashcompinit; in fish:
collectx -sc install=fish | source

Examples:
  collectx run                                     PPO on CartPole-v1 with two workers
  collectx run env=pendulum collector.num_workers=4 collector.frames_per_batch=1024 collector.total_frames=102400
  collectx run -m collector.num_workers=1,2 seed=0,1                          a sweep, one run after another
  collectx run -m launcher=slurm seed=0,1                                     a sweep whose runs are jobs of SLURM
  collectx reproduce outputs/2026-01-31/12-00-00-000000

Exit status: 0 completed, 1 failed, 2 wrong configuration or usage, 130 interrupted.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command; the entry point of the installed script. Ends in `sys.exit`."""
    open_closed()
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None and words and words[0] in _STEPPING:
        _fix_hashes()
    if words and words[0] not in PRINTING:

        def tell(text: str) -> None:
            if words[0] in _LONG:  # others end soon: `collectx eval RUN | head -1`
                print(f"collectx {words[0]}: {text}", file=sys.stderr)

        outlive_readers(tell)
        unbind_threads(lambda text: print(f"note: {text}", file=sys.stderr))
    status = _status(words)
    _limit_exit(status)
    sys.exit(status)


def _fix_hashes() -> None:
    """Starts this command again, with `PYTHONHASHSEED=0`, unless the variable is set: so sets of texts have the same
    order in every run and in all of its workers. Python reads the variable at its start only. Does nothing in a
    debugger."""
    if "PYTHONHASHSEED" not in os.environ and sys.gettrace() is None and threading.active_count() == 1:
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _limit_exit(status: int) -> None:
    """Ends the process `_THREADS_S` seconds from now if non-daemon threads of user code keep it alive: Python waits for
    them before it calls exit handlers. Exit handlers may take any time."""

    def threads() -> list[str]:
        others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        # joblib ends its own threads when Python exits, after its processes, which may take long on a busy machine.
        return [each.name for each in others if not each.daemon and not type(each).__module__.startswith("joblib.")]

    def end() -> None:
        left = ", ".join(threads())
        text = f"note: the command ends now, although some threads of your code are still running: {left}."
        print(f"{text} Start such threads with daemon=True.", file=sys.stderr)
        sys.stdout.flush()
        atexit._run_exitfuncs()
        os._exit(status)

    if threads():
        timer = threading.Timer(_THREADS_S, end)
        timer.name, timer.daemon = "collectx-exit", True
        timer.start()
        atexit.register(timer.cancel)


def _status(argv: list[str]) -> int:
    try:
        return _dispatch(argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        if argv and argv[0] not in PRINTING:
            raise  # of an env or a trainer
        # `collectx list | head`: the pipe is closed, so nothing may be flushed into it.
        sys.stdout = sys.stderr
        return 0


def _dispatch(argv: list[str]) -> int:
    if argv[:1] == ["help"] and argv[1:] and argv[1] in SUBCOMMANDS:
        argv = [argv[1], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(help_text(), end="")
        return 0 if argv else 2
    name, rest = argv[0], argv[1:]
    if name in ("--version", "version") or (name in SUBCOMMANDS and "--version" in rest):
        from collectx import __version__

        print(f"collectx {__version__}")
        return 0
    if name in ("-sc", "--shell-completion", "--shell_completion"):
        from collectx.cli import completion

        return completion.main(rest, SUBCOMMANDS)
    if name not in SUBCOMMANDS:
        from collectx.config.problem import did_you_mean, nearest

        if name.startswith("-"):
            from collectx.cli.arguments import names

            what, near = f"unknown flag {name}", did_you_mean(name, ("--help", "--version"))
            if found := [word for word in rest if word in SUBCOMMANDS]:
                near = f". Write flags after the subcommand: collectx {found[0]} {name}"
            elif name in names("run"):
                near = f". Write flags after a subcommand: collectx run {name}"
        else:
            what = f"there is no subcommand '{name}'"
            near = did_you_mean(name, SUBCOMMANDS, "collectx ", "To list all: collectx --help")
            if (other := nearest(name, _OTHER_NAMES, 0.8)) is not None:
                near = f". Did you mean collectx {_OTHER_NAMES[other]}?"
        print(f"collectx: {what}{near}", file=sys.stderr)
        return 2
    from collectx.run.signals import ignore_requests

    # They ask a run for a checkpoint, and may come before it begins or after its end.
    ignore_requests()
    # As `python -m` does, so that modules of the working directory can be imported, here and in the workers.
    try:
        sys.path.insert(0, os.getcwd())
        _note_hidden_modules()
    except FileNotFoundError:
        print("collectx: the working directory no longer exists. Change to another one with cd.", file=sys.stderr)
        return 2
    with nullcontext() if name in PRINTING else telling_imports():
        subcommand: Callable[[list[str]], int] = import_module(f"collectx.cli.{name}").main
    return subcommand(rest)


def _note_hidden_modules() -> None:
    """Prints which files and packages of the working directory hide a module that collectx, or a package, imports."""
    names: list[str] = []
    with suppress(PermissionError):
        names = os.listdir()
    files = (name for name in names if name.endswith(".py") or os.path.isfile(os.path.join(name, "__init__.py")))
    for name in sorted(file for file in files if file.removesuffix(".py") in _TAKEN):
        text = f"{name} in this folder hides the module {name.removesuffix('.py')} of Python or of a package"
        print(f"note: {text}. If the command fails, rename {name}.", file=sys.stderr)


def help_text() -> str:
    width = max(map(len, SUBCOMMANDS))
    return _HELP.format(subcommands="\n".join(f"  {name:{width}}  {line}" for name, line in SUBCOMMANDS.items()))
