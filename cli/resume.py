"""`collectx resume RUN_DIR [overrides] [flags]`: continues a run in its folder, from its newest checkpoint.

The composition starts from the saved configuration, as in `collectx reproduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collectx.cli import foreign_code, output
from collectx.cli.arguments import Arguments, run_subcommand
from collectx.cli.run import launch
from collectx.cli.saved import read_snapshot, snapshot_composer
from collectx.errors import ConfigError
from collectx.run import RunFolder, Status
from collectx.run.checkpoint import Checkpoints

_USAGE = """\
collectx resume RUN_DIR [overrides] [flags]: continue the run in RUN_DIR from its newest checkpoint, in the same folder.

Batches after the checkpoint are collected again: every batch counts once. A completed run is continued only where
overrides change it, such as collector.total_frames=200000. The code that the configuration imports and calls is
printed first. If RUN_DIR belongs to another user, --trust is required.

Exit status: 0 completed, also before; 1 failed, 2 wrong usage or nothing to continue from, 130 interrupted."""


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""

    def run(arguments: Arguments) -> int:
        return _resume(arguments, ["resume", *argv])

    return run_subcommand(argv, _USAGE, run, ["trust"], output.config_errors)


def _resume(arguments: Arguments, argv: Sequence[str]) -> int:
    folders = [word for word in arguments.words if Path(word).is_dir() or not ("=" in word or word.startswith("~"))]
    overrides = tuple(word for word in arguments.words if word not in folders)
    if len(folders) != 1:
        return output.usage_error(f"resume needs one run folder, got {len(folders)}.\n{_USAGE}")
    if "multirun" in arguments.flags:
        return output.usage_error("resume continues one run: repeat the command of a sweep to continue the sweep.")
    files = RunFolder(folders[0])
    saved = read_snapshot(files)
    result = files.read_result()
    if result is not None and result["status"] == Status.COMPLETED and not overrides:
        print(f"{files.path} is completed: {result['exit_reason']}. To go on, change what ended it.")
        return 0
    if not Checkpoints(files.checkpoints).all():
        raise ConfigError([f"{files.path} has no checkpoint: there is nothing to continue from."])
    composer = snapshot_composer(saved, overrides, arguments.config_dir)
    composed = composer.examine(composer.check(overrides).overrides)
    if not composed.problems:
        foreign_code.check(files, composed.cfg, "trust" in arguments.flags)
    flags = {name: value for name, value in arguments.flags.items() if name not in ("config-name", "trust")}
    overrides = (*overrides, f"hydra.run.dir={files.path}", "run.resume=auto")
    return launch(composer, Arguments(overrides, flags), argv)
