"""The configurations in a run folder: from which batch on each applies, what a resume may change, and how they are
compared.

    snapshot/config.yaml             from the start of the run
    snapshot/config-000000050.yaml   from batch 50 on, if a resume changed the configuration there

Each resume also adds a `meta-<batches>.json` and, with uncommitted changes, a `git-<batches>.patch`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectx.config.check import check_config, check_group
from collectx.config.interpolation import as_written, resolved
from collectx.config.problem import YAML, Problem
from collectx.config.registry import GROUPS, KEPT_GROUPS, field_of, marked, schemas
from collectx.config.schema.fields import default_of
from collectx.config.schema.run import OBJECTIVES, SECTIONS, RunConfig
from collectx.errors import ConfigError, DamagedFileError
from collectx.run.folder import snapshot
from collectx.run.folder.layout import RunFolder, locked, runs_below
from collectx.run.folder.result import Result, Status, limit_of


def write_snapshot(
    cfg: RunConfig, run_folder: RunFolder, argv: list[str], batches: int, elapsed_s: float = 0.0
) -> None:
    """Writes the snapshot of a run that continues after `batches` batches. Earlier files are kept."""
    for first in (run_folder.config, run_folder.meta, run_folder.patch):
        for before, path in run_folder.parts(first)[1:]:
            if before >= batches:
                path.unlink()
    saved = _comparable_file(run_folder.newest_config)
    if saved != _comparable(cfg, saved):
        snapshot.write_config(cfg, run_folder.resumed(run_folder.config, batches))
    snapshot.write_meta(cfg, run_folder, argv, batches, elapsed_s)


def is_equal_run(config: Path, cfg: RunConfig) -> bool:
    """Whether runs of a saved configuration and of `cfg` give the same batches, up to the end of the shorter run."""
    return not _effects(*_both(config, cfg))


def changes(old: Path, new: Path, keys: Iterable[str]) -> list[str]:
    """Returns the differences between two saved configurations in the options `keys` and below them, one clause
    each."""
    before, after = flat(_comparable_file(old)), flat(_comparable_file(new))
    named = tuple(f"{key}." for key in keys)
    return [
        f"{path} (was {YAML.show(before.get(path))}, now {YAML.show(after.get(path))})"
        for path in {**before, **after}
        if f"{path}.".startswith(named) and before.get(path) != after.get(path)
    ]


# These options say what happens to an earlier run in the folder.
RUN_FOLDER_OPTIONS = ("overwrite", "resume", "moved", "trust")


@dataclass(frozen=True)
class Change:
    """A change that a resume made: for this `reason`, only the first `batches` batches are those of an uninterrupted
    run."""

    batches: int
    reason: str


def repeatable_config(run_folder: RunFolder) -> tuple[Path, Change | None]:
    """Returns the newest configuration that gives the same batches as the first one, and the change after which batches
    cannot be repeated; None if all can."""
    (_, path), *others = run_folder.configs
    changes = []
    for batches, other in others:
        before, after = _comparable_file(path), _comparable_file(other)
        if effects := _effects(before, _back(before, after, (read_config(other).get("run") or {}).get("moved"))):
            changes.append(Change(batches, f"with {', '.join(effects)}"))
            break
        path = other
    for event in run_folder.read_events():
        if event.get("event") == "resumed" and (event.get("new_episodes") or event.get("empty_buffers")):
            why = "with new episodes, because env states were not saved"
            if not event["new_episodes"]:
                why = "with empty replay buffers (checkpoint.replay_buffer=false)"
            changes.append(Change(event["batches"], why))
            break
    return path, min(changes, key=lambda change: change.batches, default=None)


def completed_result(run_folder: RunFolder, cfg: RunConfig) -> Result | None:
    """Returns the result of the run in a folder if the run is complete and `cfg`, which may change other options that a
    resume may change, would end it there too; otherwise None."""
    result = run_folder.read_result()
    if result is None or result["status"] != Status.COMPLETED or not run_folder.config.is_file():
        return None
    saved, new = _both(run_folder.newest_config, cfg)
    limit = limit_of(str(result.get("exit_reason")))
    before, after = flat(saved), flat(new)
    ends = [limit] if limit else ["collector.total_frames", "run.max_batches", "run.max_minutes"]
    if any(before.get(path) != after.get(path) for path in ends):
        return None
    # A trainer that ended the run itself may go on with other options.
    if _effects(saved, new) and (limit is None or _fixed(saved, new)):
        return None
    try:
        return Result.from_json(result, run_folder.path)
    except (KeyError, TypeError) as error:
        raise DamagedFileError(f"{run_folder.result} is damaged: it does not describe a result: {error!r}") from error


def changed(run_folder: RunFolder, cfg: RunConfig) -> list[str]:
    """Returns an override for each option of `cfg` that differs from the newest configuration of a folder."""
    before, after = map(flat, _both(run_folder.newest_config, cfg))
    return [f"{path}={YAML.show(value)}" for path, value in after.items() if before.get(path) != value]


def moved(run_folder: RunFolder, cfg: RunConfig) -> list[str]:
    """Returns a clause for each text of `cfg` that names another place than in the newest configuration of a folder."""
    saved = _comparable_file(run_folder.newest_config)
    return [
        f"{'.'.join(map(str, path))} (was {before}, now {after})"
        for path, before, after in _moves(saved, _comparable(cfg, saved))
    ]


def problems(run_folder: RunFolder, cfg: RunConfig) -> list[str]:
    """Returns a message for each option of `cfg` that does not fit the saved state of the run in a folder. Raises
    `ConfigError` if the folder has another format."""
    if not run_folder.config.is_file() or not run_folder.has_checkpoint:
        return []
    snapshot.check_format(run_folder)
    if snapshot.is_edited(run_folder):
        advice = "Undo the edit, and name what should change behind the command."
        return [f"{run_folder.newest_config} was edited, so it no longer says what was run. {advice}"]
    saved = _comparable_file(run_folder.newest_config)
    now = _comparable(cfg, saved)
    found = _fixed(saved, _back(saved, now, cfg.run.moved))
    is_moved = not cfg.run.moved and _fixed(saved, _back(saved, now, True)) != found
    what = "it" if len(found) == 1 else "these changes"
    advice = f"Leave {what} out, or start a new run in another folder."
    if is_moved:
        advice = (
            "If only the place of your data is another, add --moved (in `collectx run`: run.moved=true). Otherwise, "
            f"{advice[0].lower()}{advice[1:]}"
        )
    return [f"{' and '.join(found)} cannot change when you resume {run_folder.path}. {advice}"] if found else []


def _fixed(saved: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns a clause for each option that differs, although it is fixed on resume."""
    changed = [f"seed (was {saved.get('seed')}, now {new['seed']})"] if saved.get("seed") != new["seed"] else []
    for group in GROUPS:
        before, after = saved.get(group) or {}, new[group]
        names = [*after, *before] if group in KEPT_GROUPS else [*marked(group, "kept")]
        if "kind" in names and before.get("kind") != after.get("kind"):
            changed.append(f"{group}={after.get('kind')} (was {before.get('kind')})")
            continue  # the other options differ with it
        changed += [
            f"{group}.{name} (was {YAML.show(before.get(name))}, now {YAML.show(after.get(name))})"
            for name in dict.fromkeys(names)
            if before.get(name) != after.get(name)
        ]
    return changed


def _moves(saved: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, ...], str, str]]:
    """Yields path, saved text and new text of each text that may name a place and differs, if its option differs in
    texts only."""
    for group in GROUPS:
        for name in marked(group, "movable"):
            path = (group, name)
            found = [*_other_texts((saved.get(group) or {}).get(name), new[group].get(name), path)]
            yield from found if all(isinstance(each, str) for _, *texts in found for each in texts) else ()


def _other_texts(saved: Any, new: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yields path, saved value and new value of each difference."""
    if isinstance(saved, dict) and isinstance(new, dict) and saved.keys() == new.keys():
        for key in saved:
            yield from _other_texts(saved[key], new[key], (*path, key))
    elif isinstance(saved, list) and isinstance(new, list) and len(saved) == len(new):
        for i, pair in enumerate(zip(saved, new, strict=True)):
            yield from _other_texts(*pair, (*path, i))
    elif saved != new:
        yield path, saved, new


def _back(saved: Mapping[str, Any], new: dict[str, Any], is_moved: bool | None) -> dict[str, Any]:
    """Returns `new` with the saved places, if `is_moved`: for comparison, a run is the same wherever its data are."""
    new = copy.deepcopy(new) if is_moved else new
    for path, before, _ in [*_moves(saved, new)] if is_moved else ():
        holder: Any = new
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = before
    return new


def read_config(path: Path) -> dict[str, Any]:
    """Returns a saved configuration as plain data, with its interpolations. Leaves out Hydra's section, which would
    decide where the new run writes. Raises `DamagedFileError` if the file cannot be read."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, ValueError, OmegaConfBaseException, yaml.YAMLError) as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from error
    # OmegaConf reads a mere text as a key without a value.
    if not isinstance(content, dict) or all(value is None for value in content.values()):
        raise DamagedFileError(f"{path} is damaged: it contains no configuration")
    return {str(key): value for key, value in content.items() if key != "hydra"}


def config_text(cfg: RunConfig) -> str:
    """Returns a configuration as YAML, for comparison: runs with equal texts are equal. It leaves out options that have
    no effect on a run: those about an earlier run in the folder, checkpoints, loggers, evaluations, and all launcher
    options except `kind`, such as the resources of a scheduler."""
    from omegaconf import OmegaConf

    content = _relevant(as_written(cfg))
    del content["checkpoint"], content["logger"], content["eval"]
    content["launcher"] = cfg.launcher.kind
    return OmegaConf.to_yaml(OmegaConf.create(content), sort_keys=True)


def _checked_config(run_folder: RunFolder) -> RunConfig:
    """See `run_config`."""
    cfg, problems = typed(read_config(run_folder.newest_config))
    if problems:
        raise ConfigError(*problems)
    return cfg


def typed(content: dict[str, Any]) -> tuple[RunConfig, list[Problem]]:
    """Returns a saved configuration that `read_config` has read, and its problems; see `check_config`."""
    from omegaconf import OmegaConf

    values, written = resolved(OmegaConf.create(content))
    cfg, problems = check_config(values)
    cfg.written = written
    return cfg, problems


def readable_config(run_folder: RunFolder) -> RunConfig:
    """Like `run_config`, but with the packaged defaults for options that cannot be read, or that this version of
    collectx refuses. For commands that watch or end a run of any version."""
    try:
        content = read_config(run_folder.newest_config)
    except DamagedFileError:
        content = {}
    cfg, problems = typed(content)
    for name in {problem.path.partition(".")[0] for problem in problems}.intersection([*GROUPS, *SECTIONS]):
        right = vars(getattr(cfg, name))
        if name in GROUPS:
            complete = check_group(name, {"kind": right.get("kind") or next(iter(schemas(name)))}, [])
        else:
            complete = SECTIONS[name]()
        vars(complete).update(right)
        setattr(cfg, name, complete)
    vars(cfg).setdefault("seed", default_of(field_of("seed")))
    return cfg


def check_folder(run_folder: RunFolder) -> None:
    """Checks that a folder named by the user contains a run that this version of collectx can read. Restores the run
    first if a start that would have replaced it was killed. Raises `ConfigError` if there is no run, or it has another
    format."""
    if run_folder.has_replaced:
        with suppress(ConfigError), locked(run_folder, replace=True):  # otherwise, the start is not over
            pass
    if not os.path.isfile(run_folder.config):
        check_not_within(run_folder)
        if not os.path.exists(run_folder.path):
            raise ConfigError(f"there is no folder '{run_folder.path}'. To list your runs: collectx status")
        if runs := runs_below(run_folder.path, max_depth=1, includes_root=False):
            raise ConfigError(f"'{run_folder.path}' contains several runs. Name one of them, such as {runs[0].path}.")
        if os.path.isfile(run_folder.result) and not (ended := run_folder.read_result() or {}).get("batches"):
            raise ConfigError(
                f"the run in '{run_folder.path}' ended before it began: {ended.get('exit_reason')}. Repeat its command"
                f"{' with run.overwrite=true' * run_folder.has_run}."
            )
        lacks = f"it does not contain {run_folder.config.relative_to(run_folder.path)}"
        why = lacks if run_folder.path.is_dir() else "it is a file"
        raise ConfigError(f"'{run_folder.path}' is not a run folder: {why}. To list your runs: collectx status")
    snapshot.check_format(run_folder)


def check_not_within(run_folder: RunFolder) -> None:
    """Raises `ConfigError` if a folder, or file, that the user named lies in a run folder."""
    above = (each for each in run_folder.path.absolute().parents if os.path.isfile(RunFolder(each).config))
    if (run := next(above, None)) is not None:
        raise ConfigError(f"'{run_folder.path}' is within the run folder {run}. Name this folder.")


def objective_of(run_folder: RunFolder) -> str:
    """Returns the first `sweep.objective` of a run, which Hydra saved; the default if it cannot be read."""
    try:
        name = read_config(run_folder.hydra / "config.yaml")["sweep"]["objective"]
        return str(name[0] if isinstance(name, list) else name)
    except (DamagedFileError, KeyError, TypeError):
        return OBJECTIVES[0]


def run_config(run_folder: RunFolder) -> RunConfig:
    """Returns the configuration of the last start or resume of the run in a folder that the user named. Raises
    `ConfigError` as `check_folder` does, or if the configuration cannot be read, or breaks a rule."""
    check_folder(run_folder)
    return _checked_config(run_folder)


def saved_text(run_folder: RunFolder) -> str | None:
    """Returns the `config_text` of the configuration of a run; None if it cannot be read."""
    try:
        return config_text(_checked_config(run_folder))
    except ConfigError:
        return None


def completed(root: Path) -> dict[str, Path]:
    """Returns the folder of each completed run below `root`, by its `config_text`."""
    folders = {}
    for run_folder in runs_below(root, includes_root=False):
        with suppress(DamagedFileError):
            if run_folder.is_completed and (text := saved_text(run_folder)) is not None:
                folders[text] = run_folder.path
    return folders


def _effects(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns the options of `other` that differ from those of `one` and affect the batches."""
    # A trainer that anneals its learning rate learns differently in a run of another length.
    is_length_free = not (other.get("trainer") or {}).get("anneal")
    mark = "without_effect"
    no_effect = {group: marked(group, mark) for group in ("", "collector", "trainer")}
    no_effect["collector"] += ["total_frames"] * is_length_free
    differences = []
    for section in {**one, **other}:
        before, after = one.get(section), other.get(section)
        if section in no_effect[""] or before == after:
            continue
        if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
            differences.append(f"{section}={after} (was {before})")
            continue
        for name in {**before, **after}:
            if before.get(name) != after.get(name) and name not in no_effect.get(section, ()):
                differences.append(f"{section}.{name}={after.get(name)} (was {before.get(name)})")
    return differences


def _both(config: Path, cfg: RunConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a saved configuration and `cfg` in comparable form; places that only moved are those of the saved one."""
    saved = _comparable_file(config)
    return saved, _back(saved, _comparable(cfg, saved), cfg.run.moved)


def _comparable_file(config: Path) -> dict[str, Any]:
    """Returns a saved configuration for comparison, with defaults for options that are newer than the file."""
    content = read_config(config)
    complete = {
        group: vars(check_group(group, {"kind": section.get("kind")}, [])) | section
        for group in GROUPS
        if isinstance(section := content.get(group), dict)
    }
    return _relevant(content | complete)


def _comparable(cfg: RunConfig, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration for comparison with a saved one, which may contain values of interpolations."""
    return _relevant(as_written(cfg, like=saved))


def _relevant(content: dict[str, Any]) -> dict[str, Any]:
    """Leaves out the options that say what happens to an earlier run in the folder."""
    run = content.get("run") or {}
    return {**content, "run": {name: run[name] for name in run if name not in RUN_FOLDER_OPTIONS}}


def flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the options of a configuration by their paths, as in `{"env.id": "CartPole-v1"}`."""
    values: dict[str, Any] = {}
    for key, value in options.items():
        is_section = isinstance(value, Mapping) and value
        values |= flat(value, f"{prefix}{key}.") if is_section else {f"{prefix}{key}": value}
    return values
