"""`collectx reproduce RUN_DIR [overrides] [flags]`: runs again from the snapshot, and compares the delivered batches.

The saved configuration is the file that composition starts from, so what the packaged defaults have become since does
not matter; a group is composed from the packaged choices only where an override names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from collectx.cli import foreign_code, output
from collectx.cli.arguments import Arguments, split
from collectx.cli.compose import Composer, parsed
from collectx.cli.run import launch
from collectx.config import ASYNC, GROUPS
from collectx.errors import ConfigError, DamagedFile
from collectx.run import RunFolder, delivery_log, snapshot

_PRIMARY = "_collectx_snapshot"
# So many differences between two snapshots are printed.
_SHOWN = 12
_USAGE = """\
collectx reproduce RUN_DIR [overrides] [flags]: run again from RUN_DIR/snapshot and compare the digests of the batches.

The configuration there names code that is imported and called: it is shown first. --trust goes on where RUN_DIR is
another user's.

A run that was interrupted, or failed, is run again up to the last batch in its folder.

Exit status: 0 identical (or completed, where the saved run has no digest), 1 different or failed, 2 wrong usage.
To compare, the run must have digests of its batches; trainer.digest says when it has."""


def main(argv: Sequence[str]) -> int:
    """Runs the subcommand; returns the exit status."""
    try:
        arguments = split(argv, ["trust"])
        if "help" in arguments.flags:
            print(_USAGE)
            return 0
        return _reproduce(arguments, ["reproduce", *argv])
    except ConfigError as error:
        return output.config_errors(error.problems)


def _reproduce(arguments: Arguments, argv: Sequence[str]) -> int:
    # A sweep names its points' folders by overrides, such as `collector.num_workers=2`.
    folders = [word for word in arguments.words if Path(word).is_dir() or not ("=" in word or word.startswith("~"))]
    overrides = tuple(word for word in arguments.words if word not in folders)
    if len(folders) != 1:
        return output.usage_error(f"reproduce needs one run folder, got {len(folders)}.\n{_USAGE}")
    if "multirun" in arguments.flags:
        return output.usage_error("reproduce runs one configuration; sweeps are `collectx run -m`.")
    old = RunFolder(folders[0])
    saved = _saved(old)
    # A damaged file is reported before the run, not after it.
    digests = [line.get("digest") for line in old.read_metrics()]
    result, _ = old.read_result(), list(old.read_events())
    ended = "failed" if result is None else result["status"]
    if ended != "completed" and not digests:
        raise ConfigError([f"{old.path} has delivered no batch: there is nothing to run again up to."])
    had_digest = bool(digests) and all(digests)
    composer = _composer(saved, overrides, arguments.config_dir)
    checked = composer.check(overrides)
    cfg, problems = composer.examine(checked)
    if problems:
        raise ConfigError(problems)
    foreign_code.check(old, cfg, "trust" in arguments.flags)
    for override in parsed(checked.overrides):
        if override.key_or_group == "hydra.run.dir" and Path(str(override.value())).resolve() == old.path.resolve():
            raise ConfigError([f"{override.input_line}: this is the run to be reproduced: choose another folder."])
    if not had_digest:
        output.note(f"{old.path} has no digest of its batches; runs again without comparing.")
    elif not any(text.lstrip("+").startswith("trainer.digest=") for text in overrides):
        overrides = (*overrides, "trainer.digest=true")
    collector = saved.get("collector") or {}
    is_cut = ended != "completed"
    if is_cut and not any(text.lstrip("+").startswith("run.max_batches=") for text in overrides):
        overrides = (*overrides, f"run.max_batches={len(digests)}")
    different = _order(old, collector, overrides)
    if different is None:
        overrides = (*overrides, f"++collector.order_of={old.path.absolute()}")
    results: list[Any] = []
    status = launch(composer, Arguments(overrides, _flags(arguments)), argv, results)
    # What a failed run has raised may be raised again after its last batch.
    if not results or not had_digest or status not in ((0, 1) if ended == "failed" else (0,)):
        return status
    # A run that goes on has grown meanwhile.
    return _compared(old, results[0].folder, len(digests), different, is_cut)


def _order(old: RunFolder, collector: dict[str, Any], overrides: Sequence[str]) -> str | None:
    """Why batches may be others than in `old`, or "" where seeds decide everything; None where they can be delivered in
    the order that `old` tells of."""
    if collector.get("kind") not in ASYNC and collector.get("sync") is not False:
        hurried = collector.get("preemptive_threshold") is not None
        return "with collector.preemptive_threshold they end by who is ready" if hurried else ""
    if any(text.lstrip("+~").startswith("collector") for text in overrides):
        return "the overrides change the collector"
    why = delivery_log.why_never(
        collector.get("refresh", "batch"), collector.get("num_workers_per_collector", 1), collector.get("inner", "sync")
    )
    if why is None:
        try:
            delivery_log.read(old.path)
        except DamagedFile:
            raise
        except ValueError as error:
            return str(error)
    return why


def _compared(old: RunFolder, new: Path, limit: int, different: str | None, is_cut: bool) -> int:
    from collectx.run import compare

    found = compare(old.path, new, limit)
    up_to = " up to its end" if found.identical and is_cut else ""
    print(f"{found.verdict.value}{up_to}: {found.message}", flush=True)
    if not found.identical and different:
        print(
            f"note: no seed decides which workers are ready first, nor can that be had from the folder: {different}.",
            flush=True,
        )
    if not found.identical and (differences := snapshot.differences(old, RunFolder(new))):
        more = f"\n  and {len(differences) - _SHOWN} more, see snapshot/meta.json" if len(differences) > _SHOWN else ""
        print("note: results may depend on these differences:", *differences[:_SHOWN], sep="\n  ", end=f"{more}\n")
    return 0 if found.identical else 1


def _saved(folder: RunFolder) -> dict[str, Any]:
    """The saved configuration as plain data.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    if not folder.config.is_file():
        raise ConfigError([f"{folder.path} is no run folder: {folder.config} does not exist."])
    try:
        content = OmegaConf.to_container(OmegaConf.load(folder.config))
    except (OSError, ValueError, OmegaConfBaseException, yaml.YAMLError) as error:
        raise DamagedFile([f"{folder.config}: cannot be read: {error}"]) from error
    if not isinstance(content, dict) or not content:
        raise DamagedFile([f"{folder.config}: is not a configuration"])
    # Where a run goes is nothing that a folder decides.
    return {str(key): value for key, value in content.items() if key != "hydra"}


def _composer(saved: dict[str, Any], overrides: Sequence[str], config_dir: str | None) -> Composer:
    """Composes from the snapshot. A group that an override names leaves the snapshot for the packaged choice."""
    named = {text.lstrip("+").partition("=")[0] for text in overrides}
    replaced = [group for group in GROUPS if group in named]
    content = {key: value for key, value in saved.items() if key not in replaced}
    # That run may have replaced another.
    if isinstance(content.get("run"), dict):
        content["run"] = content["run"] | {"overwrite": False}
    content["defaults"] = [
        "_hydra",
        # The choice given here is never used: the override replaces it.
        *({group: _placeholder(saved, group)} for group in replaced),
        "_self_",
        {"override hydra/launcher": "points"},
        {"override hydra/job_logging": "none"},
        {"override hydra/hydra_logging": "none"},
    ]
    ConfigStore.instance().store(_PRIMARY, content)
    return Composer(config_dir, _PRIMARY)


def _placeholder(saved: dict[str, Any], group: str) -> str:
    section = saved.get(group)
    return str(section.get("kind", "cpu")) if isinstance(section, dict) else "cpu"


def _flags(arguments: Arguments) -> dict[str, str]:
    """The flags for Hydra, without one that would replace the snapshot."""
    return {name: value for name, value in arguments.flags.items() if name not in ("config-name", "trust")}
