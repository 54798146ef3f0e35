"""Composes from the snapshot of a run, for `collectx reproduce`, `resume` and `eval`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hydra.core.config_store import ConfigStore

from collectx.cli.arguments import Arguments, UsageError, ask_which, synopsis
from collectx.cli.compose import SNAPSHOT, Composer
from collectx.cli.overrides import joined, key_of
from collectx.config import other_names
from collectx.config.registry import GROUPS
from collectx.config.schema.fields import Unset
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.run import RunFolder, preflight
from collectx.run.after import foreign_code
from collectx.run.folder import saved_config


def find_run_folder(arguments: Arguments, usage: str, why_no_sweep: str) -> tuple[RunFolder, tuple[str, ...]]:
    """Returns the only run folder among the words of a command line, and the overrides. A folder may look like an
    override: a point of a sweep is called `collector.num_workers=2`. Raises `UsageError` if there is not exactly one
    folder, it contains no run that this version can read, or there is `--multirun`."""
    words = joined(arguments.words, {})
    folders = [word for word in words if os.path.isdir(word) or not re.search("[= ]|^~", word)]
    if len(folders) != 1:
        if not folders:
            raise UsageError(ask_which(usage))
        problem = f"name one run folder, not {len(folders)} ({', '.join(folders)})."
        meant = next(filter(None, map(other_names.meant, folders)), None)
        raise UsageError(f"{problem} {other_names.hint(meant) if meant else synopsis(usage)}")
    if arguments.is_multirun:
        raise UsageError(why_no_sweep)
    run_folder = RunFolder(folders[0])
    try:
        saved_config.check_folder(run_folder)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    return run_folder, tuple(word for word in arguments.words if word not in folders)


def working_directory(run_folder: RunFolder) -> tuple[str, ...]:
    """Returns the override with which a run has the working directory of the run in `run_folder`: its own folder, or
    the one where the command was typed."""
    return ("hydra.job.chdir=true",) * bool(run_folder.read_meta().get("chdir"))


def compose_saved(
    run_folder: RunFolder,
    saved: dict[str, Any],
    overrides: Sequence[str],
    arguments: Arguments,
    is_resumed: bool = False,
) -> tuple[Composer, RunConfig]:
    """Composes from the configuration `saved`; groups that an override names come from the packaged choices. Prints
    which code the configuration names, see `foreign_code.check`. Raises `ConfigError` if the configuration is wrong
    (the error lists every problem), or the folder is another user's, and not trusted. With `is_resumed`, also if it
    changes what is fixed on resume."""
    named = set(map(key_of, overrides))
    for preset in {"debug", "experiment"} & named:
        raise UsageError(
            f"{preset}=NAME is for new runs, as `collectx {arguments.argv[1]}` starts from the "
            "saved configuration. Set single options instead, such as launcher=inline."
        )
    replaced = [group for group in GROUPS if group in named]
    content = {key: value for key, value in saved.items() if key not in replaced}
    if isinstance(content.get("run"), dict):
        content["run"] = {k: v for k, v in content["run"].items() if k not in saved_config.RUN_FOLDER_OPTIONS}
    # Placeholders: the user's overrides replace them.
    choices: list[dict[str, Any]] = [{group: (saved.get(group) or {}).get("kind", "cpu")} for group in replaced]
    if "logger" in named:
        choices.append({"logger": []})
        logger = saved.get("logger") or {}
        content["logger"] = {name: logger[name] for name in ("close_timeout_s",) if name in logger}
    content["defaults"] = ["_hydra", *choices, "_self_"]
    ConfigStore.instance().store(SNAPSHOT, content)
    composer = Composer(arguments.config_dir, SNAPSHOT)
    # Rules advise only what may change.
    checked = composer.check((*overrides, "run.resume=auto") if is_resumed else overrides)
    composed = composer.examine(checked.overrides, checked.broken)
    if is_resumed:
        with suppress(Unset):  # an option that has failed its check
            if fixed := saved_config.problems(run_folder, composed.cfg):
                # The advice of a rule may name options that are fixed too.
                rules = preflight.rule_problems(composed.cfg)
                others = [text for text in composed.problems if text not in rules]
                raise ConfigError(*checked.problems, *fixed, *others)
    if problems := [*checked.problems, *composed.problems]:
        raise ConfigError(*problems)
    foreign_code.check(run_folder, composed.cfg, "trust" in arguments.flags)
    return composer, composed.cfg
