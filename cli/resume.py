"""`collectx resume RUN_DIR [overrides] [flags]`: continues a run in its folder, from its newest checkpoint.

The composition starts from the saved configuration, as in `collectx reproduce`.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import replace

from collectx.checkpoints import Checkpoints
from collectx.cli.arguments import Arguments, UsageError, subcommand
from collectx.cli.overrides import key_of, quoted, repeated
from collectx.cli.run import launch
from collectx.cli.saved import compose_saved, find_run_folder, working_directory
from collectx.jobs.status import where_running
from collectx.run import RunFolder
from collectx.run.folder import saved_config
from collectx.run.folder.result import ALL_DELIVERED
from collectx.run.resume import check_ends, no_checkpoint, starts_over
from collectx.run.terminal import printing
from collectx.run.terminal.display import to_continue

_USAGE = """\
collectx resume RUN_DIR [overrides] [flags]: continue the run in RUN_DIR from its newest checkpoint, in the same folder.

Batches after the checkpoint are collected again; every batch counts once. To continue a completed run, raise the limit
that ended it, for example collector.total_frames=200000. You cannot change the seed, env, policy, algorithm, or
anything else that alters the size or shape of batches: `collectx list GROUP -v` marks these options with "Fixed on
resume". If only the place of your data is another, add --moved: env.kwargs.data=/new/place --moved.

If RUN_DIR was written on another machine, resume first prints which code the configuration imports. If it belongs to
another user, add --trust.

A point that its sweep stopped early (hydra/sweeper=halving) goes on to collector.total_frames.

Exit status: 0 completed, now or earlier, 1 failed, 2 wrong usage or nothing to continue, 130 interrupted."""


def _resume(arguments: Arguments) -> int:
    why_no_sweep = "resume continues one run. To continue a sweep, repeat its command."
    run_folder, overrides = find_run_folder(arguments, _USAGE, why_no_sweep)
    if wrong := [text for text in overrides if _contradicts(text)]:
        if not run_folder.has_checkpoint:
            raise UsageError(to_go_on(run_folder))
        raise UsageError(
            f"resume continues the run in {run_folder.path}. Leave out {' and '.join(wrong)}, or use collectx run."
        )
    if where := where_running(run_folder):
        raise UsageError(
            f"{run_folder.path} is {where}. Wait until it ends, or stop it: collectx cancel {run_folder.path}"
        )
    saved = saved_config.read_config(run_folder.newest_config)
    if starts_over(run_folder):
        raise UsageError(to_go_on(run_folder))
    overrides += ("run.moved=true",) * ("moved" in arguments.flags)
    result = run_folder.read_result() or {}
    is_over = result.get("exit_reason") == ALL_DELIVERED and "collector.total_frames" not in map(key_of, overrides)
    if "rung" in result and not is_over and "run.max_batches" not in map(key_of, overrides):
        overrides += ("run.max_batches=null",)  # the sweep set it
    composer, cfg = compose_saved(run_folder, saved, overrides, arguments, is_resumed=True)
    # Before notes about a configuration that is refused.
    newest, _ = Checkpoints(run_folder.checkpoints).newest(lambda checkpoint: checkpoint, names=())
    if newest is not None and (overrides or not is_over):
        check_ends(newest, cfg)
    place = f"hydra.run.dir={quoted(run_folder.path)}", "run.resume=auto"
    overrides = (*working_directory(run_folder), *overrides, *place)
    return launch(composer, replace(arguments, words=overrides), trusted="trust" in arguments.flags)


def to_go_on(run_folder: RunFolder) -> str:
    """Returns the command that continues a run, or without a checkpoint the one that starts it over."""
    return to_continue(run_folder) or f"{no_checkpoint(run_folder)} {_to_start_over(run_folder)}"


def _to_start_over(run_folder: RunFolder) -> str:
    """Returns the command that starts a run again, in its folder."""
    meta, overwrite = run_folder.read_meta(), ("run.overwrite=true",) * run_folder.has_run
    argv = meta.get("argv", [])
    if argv[:2] != ["collectx", "run"]:
        return f"To start over, repeat what started it{', with run.overwrite=true' * len(overwrite)}."
    is_here = meta["cwd"] == os.getcwd()
    there = "" if is_here else f"cd {shlex.quote(meta['cwd'])} && "
    typed = printing.typed if is_here else str
    # A sweep begins such a point again.
    root = next((each for each in run_folder.path.parents if (each / "multirun.yaml").is_file()), None)
    if root is not None:
        return f"To start over: {there}{repeated(argv, 'hydra.sweep.dir', typed(root))}"
    return f"To start over: {there}{repeated(argv, 'hydra.run.dir', typed(run_folder.path), *overwrite)}"


def _contradicts(override: str) -> bool:
    contradictions = ("resume=never", "run.resume=never", "run.overwrite=true")
    return key_of(override) == "hydra.run.dir" or override.lstrip("+") in contradictions


main = subcommand("resume", _resume, _USAGE, lists_problems=True)
