"""Composes groups, files and overrides into one typed configuration. Makes no run folder and no process, and does not
log.

`compose` is for tests, benchmarks and users of the library.
"""

from __future__ import annotations

import dataclasses
import os
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from hydra import initialize_config_module
from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from collectx.cli.overrides import BASED, Checked, check_overrides, key_of, no_such_choice, of_file, quoted
from collectx.config.check import check_config, wrong_type
from collectx.config.interpolation import resolved, why_unresolved
from collectx.config.other_names import meant
from collectx.config.problem import Missing, Problem, Unknown, did_you_mean, either, naming, nearest
from collectx.config.registry import GROUPS, KINDS, schemas
from collectx.config.schema.fields import ABSENT, Unset, incomplete
from collectx.config.schema.launcher import SlurmResources
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.run import preflight
from hydra_plugins import collectx as plugins

# The groups whose choices set keys of the whole configuration.
_PRESETS = ("experiment", "debug")
# The names of the file that composition starts from: the packaged one, and the snapshot of a run. Neither sets
# `hydra.searchpath`.
_PACKAGED = "config"
SNAPSHOT = "_collectx_snapshot"
# What YAML 1.1 reads as a number of base 60.
_BASE_60 = re.compile(r"[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")


@naming(None)  # a collector of the library may call the code that calls this
def compose(overrides: Sequence[str] = (), config_dir: str | os.PathLike[str] | None = None) -> RunConfig:
    """Returns the configuration that `collectx run` with these overrides would use.

    Args:
        overrides: as on the command line, for example `["env=pendulum", "collector.num_workers=4"]`.
        config_dir: a folder of the user's choices, `<config_dir>/<group>/<name>.yaml`.

    Raises:
        ConfigError: the configuration is wrong; the error lists every problem.
    """
    composer = Composer(config_dir)
    checked = composer.check(overrides)
    composed = composer.examine(checked.overrides, checked.broken)
    if problems := [*checked.problems, *composed.problems, *preflight.argument_problems(composed.cfg)]:
        raise ConfigError(*problems)
    return composed.cfg


@dataclass(frozen=True)
class Composed:
    """A composed configuration.

    Attributes:
        node: the untyped configuration, Hydra's part included; empty if Hydra could not compose it.
        cfg: the typed configuration; options with problems are absent.
        note: a message about keys of an experiment that were removed, or "".
    """

    node: DictConfig
    cfg: RunConfig
    problems: list[str]
    note: str = ""


class Composer:
    """Composes configurations from the packaged choices and those in one folder of the user.

    Attributes:
        groups: the choices of every group by its name, without nested groups.
        config_name: the file that composition starts from.
        config_dir: the user's folder; None: packaged choices only.
    """

    def __init__(self, config_dir: str | os.PathLike[str] | None = None, config_name: str = _PACKAGED):
        if config_dir is not None and not os.path.isdir(config_dir):
            what = f"'{config_dir}' is a file" if os.path.exists(config_dir) else f"there is no folder '{config_dir}'"
            raise ConfigError(f"{what}. Name the folder that contains your choices: --config-dir DIR")
        inner = os.path.basename(os.path.abspath(config_dir or ""))
        if (
            config_dir is not None
            and inner in (*GROUPS, *_PRESETS)
            and not any(os.path.isdir(os.path.join(config_dir, group)) for group in (*GROUPS, *_PRESETS))
        ):
            above = os.path.dirname(os.fspath(config_dir).rstrip("/")) or "."
            raise ConfigError(
                f"--config-dir {config_dir} names the group {inner}. Name the folder above it: --config-dir {above}"
            )
        group, _, choice = config_name.partition("/")
        if choice and group in (*GROUPS, *_PRESETS):
            raise ConfigError(f"--config-name {config_name} names a choice. Write {group}={choice} in its place.")
        if "/" in config_name:
            # Hydra would put the keys of the file below the name of its folder.
            raise ConfigError(of_file(os.path.join(config_dir or "", f"{config_name.removesuffix('.yaml')}.yaml")))
        self.config_dir = config_dir
        self.config_name = config_name
        with _separate_hydra():
            plugins.register(config_dir)
            with initialize_config_module("collectx.conf", job_name="collectx", **plugins.VERSION_BASE):
                self._hydra: Any = GlobalHydra.instance().hydra
                loader: Any = GlobalHydra.instance().config_loader()
        # Also for Hydra's launchers, which compose the points of a sweep with it.
        loader.load_configuration = partial(_load, loader)
        self._loader = loader
        # A cache by the choices of the groups: the points of a sweep usually choose the same files.
        self._of_files: dict[str, list[str]] = {}
        with config_errors(yaml.YAMLError, config_name=config_name):
            self.groups = self.choices(())

    def choices(self, overrides: Sequence[str]) -> dict[str, list[str]]:
        """Returns the choices of every group by its name; with overrides, also those of `hydra.searchpath`."""
        loader = self._loader
        sources = loader.get_sources()

        def options(group: str, kind: ObjectType = ObjectType.CONFIG) -> list[str]:
            if overrides or self.config_name not in (_PACKAGED, SNAPSHOT):
                # Such a call copies all sources, and reads the primary file.
                return loader.get_group_options(group, kind, self.config_name, [*overrides])
            return sorted({name for each in sources if each.is_group(group) for name in each.list(group, kind)})

        return {
            group: [name for name in options(group) if not name.startswith("_")]
            for group in options("", ObjectType.GROUP)
            if group != "hydra"
        }

    def check(self, overrides: Sequence[str]) -> Checked:
        """Checks the overrides one by one, see `collectx/cli/overrides.py`. Values are checked by `examine`."""
        if paths := [text for text in overrides if text.lstrip("+").startswith("hydra.searchpath=")]:
            with config_errors(yaml.YAMLError, ValueError):
                self.groups = self.choices(paths)
        checked = check_overrides(overrides, self.groups)
        own = os.path.join(self.config_dir or "", f"{_PACKAGED}.yaml")
        if self.config_dir is not None and self.config_name == _PACKAGED and os.path.isfile(own):
            note = f"{own} is not read, because collectx has its own. To use yours, rename it, and add -cn NAME."
            checked = dataclasses.replace(checked, notes=(*checked.notes, note))
        return checked

    def load(
        self, overrides: Sequence[str], mode: RunMode = RunMode.RUN, master: DictConfig | None = None
    ) -> DictConfig:
        """Returns the untyped configuration, Hydra's part (`hydra`) included. `master` is the configuration of the
        sweep, for the overrides of one of its points. It keeps the sweep's time, and its overrides of Hydra's part.
        Raises `ConfigError` if Hydra could not compose it."""
        with config_errors(yaml.YAMLError, ValueError, overrides=overrides, config_name=self.config_name):
            node: DictConfig
            if master is not None:
                node = self._loader.load_sweep_config(master, list(overrides))
            else:
                node = self._loader.load_configuration(self.config_name, list(overrides), mode)
            return node

    def run(self, node: DictConfig, folder: str, task: Callable[[DictConfig], Any]) -> None:
        """Lets Hydra run the task with a composed configuration: `hydra.callbacks`, logging, the folder with `.hydra`,
        `hydra.job`; in a sweep, the sweeper and the launcher. Blocks until it has ended. Raises what the task raises.

        Args:
            folder: what `hydra.run.dir` becomes, or, with `hydra.mode=MULTIRUN`, `hydra.sweep.dir`.
        """
        is_sweep = node.hydra.mode is RunMode.MULTIRUN
        section = "sweep" if is_sweep else "run"
        with read_write(node.hydra), open_dict(node.hydra):
            node.hydra.mode = RunMode.MULTIRUN if is_sweep else RunMode.RUN
            node.hydra[section].dir = folder
            # Hydra composes the points of a sweep again, with these overrides.
            node.hydra.overrides.hydra.append(f"hydra.{section}.dir={quoted(folder)}")
        composed: Any = copy(self._loader)

        def take(**_: Any) -> DictConfig:
            self._hydra.config_loader = self._loader
            return node

        # Hydra would compose the configuration once more, and check it less well.
        composed.load_configuration = take
        self._hydra.config_loader = composed
        with _separate_hydra(self._hydra):
            call = self._hydra.multirun if is_sweep else self._hydra.run
            call(self.config_name, task, overrides_of(node.hydra))

    def examine(
        self, overrides: Sequence[str], broken: Collection[str] = (), master: DictConfig | None = None
    ) -> Composed:
        """Composes the configuration and checks it. Problems are returned, not raised. `broken` are groups that are not
        checked, because their choice is wrong."""
        try:
            node = self.load(overrides, master=master)
        except ConfigError as error:
            return Composed(DictConfig({}), incomplete(RunConfig), list(error.problems))
        if self.config_name not in (_PACKAGED, SNAPSHOT) and not {*GROUPS} & {*node.hydra.runtime.choices}:
            problem = f"{self.config_name}.yaml selects no env, policy or trainer. Add the line '{BASED}' to it."
            return Composed(node, incomplete(RunConfig), [problem])
        composed = examine(node, broken)
        return dataclasses.replace(composed, problems=[*composed.problems, *self._file_problems(node.hydra)])

    def _file_problems(self, hydra: DictConfig) -> list[str]:
        """Returns messages about what Hydra reads in the user's files in another way than it is written."""
        folders = [Path(each.path) for each in hydra.runtime.config_sources if each.schema == "file"]
        key = str(hydra.runtime.choices)
        if not folders or key in self._of_files:
            return self._of_files.get(key, [])
        overridden: Any = OmegaConf.to_container(hydra.overrides, resolve=False)
        words = [str(word) for each in overridden.values() for word in each]
        with config_errors(yaml.YAMLError, ValueError):
            files = self._loader.compute_defaults_list(self.config_name, words, RunMode.RUN).defaults
        names = dict.fromkeys(f"{each.config_path}.yaml" for each in files)
        paths = [(name, folder / name) for name in names for folder in folders if (folder / name).is_file()]
        problems = [text for name, path in paths for text in (_hidden(name, path) or _misread(path))]
        return self._of_files.setdefault(key, problems)


def _load(loader: Any, *arguments: Any, **options: Any) -> DictConfig:
    """Composes with Hydra's loader. Names in `hydra.job.override_dirname` are those that were typed: `_forced` of
    `collectx.cli.overrides` puts `++` before them."""
    node: DictConfig = type(loader).load_configuration(loader, *arguments, **options)
    between = re.escape(node.hydra.job.config.override_dirname.item_sep)
    name = as_written(node, "hydra.job.override_dirname")
    with read_write(node.hydra), open_dict(node.hydra):
        node.hydra.job.override_dirname = re.sub(rf"(^|{between})\+\+", r"\1", name)
    return node


def _hidden(name: str, path: Path) -> list[str]:
    """Returns the message about a choice of the user with the name of a packaged one, which Hydra reads instead."""
    group, _, choice = name.removesuffix(".yaml").rpartition("/")
    if not group or not (resources.files("collectx.conf") / name).is_file():
        return []
    own = f"{group}={choice}"
    return [f"{path} is not read, because collectx has its own {own}. Rename the file, and choose it: {group}=NAME"]


def _misread(path: Path) -> Iterator[str]:
    """Yields a message for each number such as 12:00:00 in a file, which YAML 1.1 reads as 43200, and about a defaults
    list that overrides a group twice, or that puts the base of a choice behind the choice itself."""
    text = path.read_text("utf-8")
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.ScalarEvent) and event.implicit[0] and _BASE_60.fullmatch(event.value):
            yield (
                f"{path}, line {event.start_mark.line + 1 if event.start_mark else 0}: YAML reads {event.value} as the "
                f"number {yaml.safe_load(event.value)} (base 60). If it is a time or a text, put it in quotes: "
                f"'{event.value}'."
            )
    content = yaml.safe_load(text)
    defaults = (content.get("defaults") if isinstance(content, dict) else None) or []
    if path.parent.name in GROUPS and "_self_" in defaults[:-1]:
        yield f"{path} puts `_self_` before other defaults, whose values then replace its own. Put `_self_` last."
    keys = [key for each in defaults if isinstance(each, dict) for key in each if key.startswith("override ")]
    for key in dict.fromkeys(key for key in keys if keys.count(key) > 1):
        yield f"{path} contains `{key}` {keys.count(key)} times, and Hydra uses the first. Leave one."


@contextmanager
def _separate_hydra(hydra: Any = None) -> Iterator[None]:
    """Makes `hydra` the running Hydra within the block; None: no Hydra runs. Also inside of another application of
    Hydra."""
    instance = GlobalHydra.instance()
    running = instance.hydra
    instance.clear()
    try:
        if hydra is not None:
            instance.initialize(hydra)
        yield
    finally:
        instance = GlobalHydra.instance()
        instance.clear()
        if running is not None:
            instance.initialize(running)


@contextmanager
def config_errors(
    *others: type[Exception], overrides: Sequence[str] = (), config_name: str = _PACKAGED
) -> Iterator[None]:
    """Turns Hydra's errors in the block, and errors of the types `others`, into `ConfigError`. `overrides` are those
    that the block composes, `config_name` the file that it starts from."""
    expected: tuple[type[Exception], ...] = (HydraException, OmegaConfBaseException, *others)
    try:
        yield
    except ConfigError:
        raise
    except expected as error:
        raise ConfigError(_explained(error, overrides, config_name)) from error


# What installs Hydra's own plugins, by the choices that they add.
_PLUGINS = {
    "hydra/launcher/joblib": "'collectx[joblib]'",
    "hydra/launcher/ray": "hydra-ray-launcher",
    "hydra/launcher/rq": "hydra-rq-launcher",
    "hydra/launcher/submitit_local": "hydra-submitit-launcher",
    "hydra/launcher/submitit_slurm": "hydra-submitit-launcher",
    "hydra/sweeper/ax": "hydra-ax-sweeper",
    "hydra/sweeper/nevergrad": "hydra-nevergrad-sweeper",
    "hydra/sweeper/optuna": "'collectx[optuna]'",
}
# What to do about an error of YAML's parser, by a part of its text.
_YAML_ADVICE = {
    "'\\t'": "Indent with spaces, not with tabs.",
    "but got '{'": "Put a value with ${...} in quotes.",
    "expected ':'": "A colon needs a space after it.",
    "mapping values are not": "Is the line indented as those beside it? A colon needs a space after it, or its value "
    "quotes.",
}
# What to write with `hydra/sweeper=halving` for options of Optuna's sweeper.
_OF_HALVING = {
    "n_trials": "write sweep.draws=N.",
    "sampler.seed": "write sweep.seed=N.",
    "n_jobs": "choose a hydra/launcher that runs several points at a time.",
    "direction": "leave it out: less is better of wall_s and start_s, more of the others.",
}
# These errors of Hydra have neither a type of their own nor attributes.
_NOT_IN_DEFAULTS = re.compile(r"(?:In '(.+?)': )?Could not override '(?:[^'@]*/)?([^'@/]+)(@[^']*)?'")
_TWO_VALUES = re.compile(r"Multiple values for (\w+)\. To override a value use 'override \1: (.*)'")
_NOTHING_TO_DELETE = re.compile(r"Could not delete from config\. '(.+?)' does not exist")


def _explained(error: BaseException, overrides: Sequence[str], config_name: str) -> str:
    text = str(error).strip()
    cause = error.__cause__
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark) is not None:
        why = ", ".join(filter(None, (error.context, error.problem)))
        advice = next((f" {_YAML_ADVICE[part]}" for part in _YAML_ADVICE if part in why), "")
        return f"{mark.name} is not valid YAML at line {mark.line + 1}: {why}.{advice}"
    if isinstance(error, UnicodeDecodeError):
        # The name of the file is only in a variable of Hydra's loader.
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if "full_path" in frame.f_locals]
        file_name = frames[-1].f_locals["full_path"] if frames else "a configuration file"
        return f"{file_name} is not UTF-8 ({error.reason}). Save it with this encoding."
    if isinstance(error, MissingConfigException) and (path := error.missing_cfg_file) is not None:
        file, (group, _, name) = re.match(r"In '(.+?)': ", text), path.rpartition("/")
        if file is None and path.endswith((".yaml", ".yml")):
            return of_file(path)
        if file is None:
            if os.path.isfile(f"{path}.yaml"):
                return of_file(f"{path}.yaml", "needs its folder")
            return (
                f"--config-name {path} cannot be used: there is no file '{path}.yaml'. Name the folder that contains "
                "it: --config-dir DIR"
            )
        if package := _PLUGINS.get(path):
            return f"{group}={name} needs a plugin of Hydra that is not installed. Install it: pip install {package}"
        source = "" if file[1] in (_PACKAGED, "hydra/config") else f"{file[1]}.yaml: "
        if group.startswith(_PRESET_FOLDERS) and (inner := group.rpartition("/")[2]) in _SELECTED:
            return _within(file[1], inner, name)
        plugins = [each.name for each in map(Path, _PLUGINS) if str(each.parent) == group]
        near = nearest(name, plugins)
        options = dict.fromkeys([*(error.options or [*KINDS.get(group, ())]), *([] if near is None else [near])])
        return f"{source}{no_such_choice(group, name, [*options])}"
    if isinstance(cause, OmegaConfBaseException):
        # The key that OmegaConf could not set, unless a file sets it.
        key = str(cause.full_key)
        words = [each.lstrip("+") for each in overrides if f"{key_of(each)}.".startswith(f"{key}.")]
        if words and isinstance(cause, ConfigKeyError | ConfigAttributeError):
            return _unknown(key)
        if words and isinstance(cause, ValidationError):
            return f"{words[-1]} cannot be used: {str(cause).splitlines()[0].rstrip('.')}."
        if words:
            return f"{words[-1]} {_rule_of(key, words[-1])}"
    if found := _NOT_IN_DEFAULTS.match(text):
        return _not_in_defaults(found, overrides, config_name) or text
    if found := _TWO_VALUES.match(text):
        group, choice = found.groups()
        return f"{group}={choice} cannot be added, because {group} is selected already. {_select(group, choice)}"
    if nothing := _NOTHING_TO_DELETE.match(text):
        key = nothing[1]
        return f"~{key} cannot be used, because {key} is not an option. To list all: collectx run --cfg all"
    return text


# The groups of which a file selects a choice, and the beginnings of groups that Hydra looks for in a preset.
_SELECTED = (*GROUPS, "logger")
_PRESET_FOLDERS = tuple(f"{preset}/" for preset in _PRESETS)


def _select(group: str, choice: str) -> str:
    """Returns how a file of the user selects a choice."""
    return f"Under `defaults`, write `- override /{group}: {choice}`."


def _within(file: str, group: str, choice: str) -> str:
    """Returns the message about a preset that selects a choice without a slash."""
    return f"{file}.yaml looks for {group} within `{file.partition('/')[0]}`. {_select(group, choice)}"


def _not_global(group: str, choice: str) -> str:
    """Returns the message about an experiment, or another preset, whose keys are not those of the run."""
    return (
        f"{group}/{choice}.yaml sets keys of `{group}`, not of the run, because its first line is not `# @package "
        "_global_`. Add this line."
    )


def _not_in_defaults(found: re.Match[str], overrides: Sequence[str], config_name: str) -> str:
    """Returns the message about a group that a file, or an override, selects anew although nothing has selected it; ""
    if the reason is not known."""
    file, group, package = found.groups()
    preset, _, choice = (file or "").partition("/")
    if preset in _PRESETS and package == f"@{preset}.{group}":
        return _not_global(preset, choice)
    if file is not None and group not in _SELECTED:
        return f"{file}.yaml: there is no group '{group}'{did_you_mean(group, _SELECTED)}"
    if file is not None and preset in _PRESETS:
        return _within(file, group, "NAME")
    word = next((each for each in overrides if key_of(each) == group), None)
    if file is None and word is not None and config_name not in (_PACKAGED, SNAPSHOT):
        return f"{word} cannot be used: {config_name}.yaml selects no {group}. Add the line '{BASED}' to it."
    return ""


def _unknown(key: str) -> str:
    if (option := key.removeprefix("hydra.launcher.")) != key:
        own = next((each for each in meant(option) if each.startswith("launcher.")), f"launcher.{option}")
        return (
            f"{key} is not an option of the chosen hydra/launcher. To run collectx as a SLURM job, use launcher=slurm "
            f"{own}=VALUE. To sweep with submitit, add -m hydra/launcher=submitit_slurm."
        )
    if (option := key.removeprefix("hydra.sweeper.")) != key:
        instead = f" With hydra/sweeper=halving, {_OF_HALVING[option]}" if option in _OF_HALVING else ""
        return f"{key} is not an option of the chosen hydra/sweeper. Optuna's is hydra/sweeper=optuna.{instead}"
    option = key.removeprefix("hydra.")
    near = nearest(option, _hydras_options(), 0.75) if option != key else None
    question = f"Did you mean hydra.{near}? " if near else ""
    return f"{key} is not an option. {question}To list all: collectx run --cfg all"


def _hydras_options() -> list[str]:
    """Returns the paths of the options within Hydra's part."""

    def paths(node: Any, prefix: str = "") -> Iterator[str]:
        for key, value in node.items() if isinstance(node, dict) else ():
            yield f"{prefix}{key}"
            yield from paths(value, f"{prefix}{key}.")

    return [*paths(OmegaConf.to_container(OmegaConf.structured(HydraConf)))]


def _rule_of(key: str, word: str) -> str:
    """Returns why `word`, which sets the option `key`, cannot replace a list or a mapping."""
    group, _, name = key.partition(".")
    hints = [get_type_hints(cls) for cls in schemas(group).values()] if group in GROUPS else []
    rules = {wrong_type(each[name]) for each in hints if name in each}
    if len(rules) == 1:
        return rules.pop()
    return (
        "cannot replace the default, because one is a list and the other is not. If the option accepts both, write "
        f"'~{key}' '+{word}'."
    )


def examine(node: DictConfig, broken: Collection[str] = ()) -> Composed:
    """Checks types and rules of a composed configuration that includes Hydra's part. Imports none of the code that it
    names."""
    with _resolving_hydra(node):
        cfg, problems, note = typed(node, node.hydra, broken)
    texts = [*dict.fromkeys(_text(problem, node.hydra) for problem in problems), *_two_launchers(node.hydra, cfg)]
    return Composed(node, cfg, [*texts, *preflight.rule_problems(cfg)], note)


def _text(problem: Problem, hydra: DictConfig) -> str:
    """Returns the message of a problem, with the file of a user's choice that causes it; for an unknown key of
    `launcher`, with the same key of Hydra's launcher, if that exists."""
    text = str(problem)
    group, _, key = problem.path.partition(".")
    if problem.path == group and isinstance(problem, Missing) and (deleted := f"~{group}") in overrides_of(hydra):
        return f"{group} is missing, because {deleted} removes it. Leave out {deleted}, or {problem.advice}"
    if group == "launcher" and isinstance(problem, Unknown) and key in hydra.launcher:
        text += f" For hydra/launcher={hydra.runtime.choices['hydra/launcher']}, write hydra.launcher.{key}."
    choice = hydra.runtime.choices.get(group)
    if group in _PRESETS and choice is not None and isinstance(problem, Unknown):
        return _not_global(group, choice)
    is_typed = any(word.lstrip("+").startswith(problem.path) for word in overrides_of(hydra))
    if isinstance(problem, Unknown) and problem.path.rpartition(".")[2].isdigit() and not is_typed:
        text = f"{problem.path}: a comma in braces ends a value, so a number is a key. Write 1_024, not 1,024."
    if not is_typed and (file := _file_with(problem.path, hydra)):
        if problem.path in _SELECTED and isinstance(problem.value, str):
            return f"{file} sets {problem.path} to the text '{problem.value}'. {_select(problem.path, problem.value)}"
        return f"{file}: {text}"
    if group not in GROUPS or choice is None or choice in KINDS[group]:
        return text
    if key == "kind" and isinstance(problem, Missing):
        return (
            f"{group}={choice} cannot be used: {group}/{choice}.yaml does not say which kind it extends. Begin the "
            f"file with `defaults: [BASE, _self_]`, where BASE is {either(KINDS[group])}."
        )
    is_elsewhere = hydra.runtime.choices.get("experiment") is not None or is_typed
    is_of_file = isinstance(problem, Unknown) or problem.value is not ABSENT
    return f"{group}/{choice}.yaml: {text}" if is_of_file and not is_elsewhere else text


def _file_with(key: str, hydra: DictConfig) -> str | None:
    """Returns the user's preset, or primary file, that sets a key of the run; None if there is none."""
    presets = [f"{preset}/{hydra.runtime.choices.get(preset)}.yaml" for preset in _PRESETS]
    folders = [Path(each.path) for each in hydra.runtime.config_sources if each.schema == "file"]
    for name in (*presets, f"{hydra.job.config_name}.yaml"):
        for path in (folder / name for folder in folders):
            value = yaml.safe_load(path.read_text("utf-8")) if path.is_file() else None
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                return name
    return None


def _two_launchers(hydra: DictConfig, cfg: RunConfig) -> Iterator[str]:
    with suppress(Unset):
        if ".hydra_submitit_launcher." in hydra.launcher._target_ and isinstance(cfg.launcher, SlurmResources):
            theirs = hydra.runtime.choices["hydra/launcher"]
            both = f"hydra/launcher={theirs} and launcher={cfg.launcher.kind}"
            yield f"{both} cannot be used together, because both submit jobs. Leave one out."


@contextmanager
def _resolving_hydra(node: DictConfig) -> Iterator[None]:
    """Resolves `${hydra:...}` to the values of `node` within the block."""
    instance = HydraConfig.instance()
    before = instance.cfg
    with read_write(node.hydra), open_dict(node.hydra):
        if OmegaConf.is_missing(node.hydra.runtime, "output_dir"):
            with suppress(ConfigError):
                node.hydra.runtime.output_dir = os.path.abspath(folder_of(node, "hydra.run.dir"))
    instance.set_config(node)
    try:
        yield
    finally:
        instance.cfg = before


def folder_of(node: DictConfig, key: str) -> str:
    """Returns the folder that an option, such as "hydra.run.dir", names. Raises `ConfigError` if an interpolation in
    the value cannot be resolved."""
    try:
        return str(OmegaConf.select(node, key, throw_on_missing=True))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{key}={as_written(node, key)} {why_unresolved(error)}") from error


def as_written(node: DictConfig, key: str) -> Any:
    """Returns the value of an option with its interpolations, unresolved."""
    section, _, name = key.rpartition(".")
    values: Any = OmegaConf.to_container(OmegaConf.select(node, section), resolve=False)
    return values[name]


def overrides_of(hydra: DictConfig) -> list[str]:
    """Returns the overrides of a composed configuration as written, without those of Hydra's part, which is `hydra`."""
    return [str(text) for text in OmegaConf.to_container(hydra.overrides.task, resolve=False) or ()]


def is_enumerated(hydra: DictConfig) -> bool:
    """Whether the sweeper of a composed configuration only enumerates points, as Hydra's basic sweeper does."""
    return hydra.sweeper._target_.endswith(".basic_sweeper.BasicSweeper")


def is_halving(hydra: DictConfig) -> bool:
    """Whether the sweeper of a composed configuration stops points early; see `collectx.cli.halving`."""
    return str(hydra.sweeper._target_).endswith(".HalvingSweeper")


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Returns overrides, which must have passed `check`, in Hydra's form."""
    return OverridesParser.create().parse_overrides(list(overrides))


def typed(node: DictConfig, hydra: DictConfig, ignore: Collection[str] = ()) -> tuple[RunConfig, list[Problem], str]:
    """Returns (typed configuration, problems, message about keys that were left out, or ""), see `check_config`.
    `hydra` is Hydra's part of the composition `node`. The composition is untyped: otherwise Hydra would stop at the
    first problem, and its advice to put a `+` before an unknown key would switch this check off."""
    values, written = resolved(node)
    note = _leave_out_unused(values, hydra.runtime.choices, overrides_of(hydra))
    cfg, problems = check_config(values, ignore, hydra.runtime.choices)
    cfg.written = written
    return cfg, problems, note


def _leave_out_unused(values: dict[str, Any], choices: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """Removes keys of an experiment that belong to a choice which an override replaces: with `experiment=cartpole_ppo
    trainer=meter`, those that only PPO has. Returns the message about them, or ""."""
    chosen = {group: choice for group, choice in choices.items() if group not in GROUPS and "/" not in group}
    presets = [f"{group}={choice}" for group, choice in chosen.items() if choice is not None]
    words = [text.lstrip("+~") for text in overrides]
    unused = []
    for group in (group for group in GROUPS if presets and any(word.startswith(f"{group}=") for word in words)):
        section = values.get(group)
        kind = KINDS[group].get(str(section.get("kind"))) if isinstance(section, dict) else None
        if not isinstance(section, dict) or kind is None:
            continue
        known = {field.name for field in dataclasses.fields(kind.schema)}
        others = {field.name for schema in schemas(group).values() for field in dataclasses.fields(schema)} - known
        for key in [key for key in section if key in others]:
            path = f"{group}.{key}"
            if not any(word.startswith((f"{path}=", f"{path}.")) for word in words):
                unused.append(path)
                del section[key]
    if not unused:
        return ""
    named = " ".join(f"{group}={choices[group]}" for group in dict.fromkeys(path.partition(".")[0] for path in unused))
    plural = "s" * (len(unused) > 1)
    lacks = f"{named} has no option{plural} {', '.join(unused)}"
    return f"{lacks}, so the value{plural} from {either(presets)} will be ignored."
