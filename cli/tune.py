"""`collectx tune [overrides] [--output FILE]`: finds the fastest numbers of workers, envs and threads by measurements,
and writes an experiment file.
"""

from __future__ import annotations

import math
import os
import platform
import shlex
import signal
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from collectx import tune
from collectx.cli import run
from collectx.cli.arguments import Arguments, UsageError, subcommand
from collectx.cli.compose import Composed, Composer, parsed
from collectx.cli.overrides import key_of, with_section
from collectx.config.check import check_section
from collectx.config.problem import counted
from collectx.config.schema.run import RunConfig, TuneConfig
from collectx.errors import CollectxError, ConfigError
from collectx.process import handling
from collectx.run import cores
from collectx.run.folder.layout import folder_errors
from collectx.run.terminal import printing

_USAGE = """\
collectx tune [overrides] [minutes=5] [flags]: find the fastest number of workers, envs per worker, torch threads
and slots, and whether overlap and an inference server help. Each setting runs for some seconds, slow ones are dropped
early, and the fastest are measured next to yours. Options that you override keep their value, and
collector.frames_per_batch never changes. With exact=true, the default for a trainer that learns, batches also keep
their rows, steps and lag. minutes=5 is short for tune.minutes=5, and so on (to list them: collectx list tune).

tune writes an experiment file with your overrides and the fastest values, and prints the command that uses it.

  -o, --output FILE   DIR/experiment/NAME.yaml; by default experiment/tuned.yaml in --config-dir, or in ./conf

Exit status: 0 success, 1 failed, 2 wrong configuration or usage, 130 interrupted."""

_HEAD = ("point", "status", "measured", "frames/s", "std")
# The second line of the file, by which it may be replaced.
_WRITTEN_BY = "# Written by collectx tune"


def _tune(arguments: Arguments) -> int:
    if ranked := [word for word in arguments.words if key_of(word) in ("objective", "metric", "sweep.objective")]:
        raise UsageError(
            f"tune looks for the most frames/s, and for nothing else. Leave {ranked[0]} out. To search for the best "
            "return: collectx run -m hydra/sweeper=halving"
        )
    file = _output(arguments)
    composer = Composer(arguments.config_dir, arguments.config_name)
    checked = composer.check(with_section(arguments.words, "tune", {field.name for field in fields(TuneConfig)}))
    swept = [each for each in parsed(checked.overrides) if each.is_sweep_override()]
    keys = [each.key_or_group for each in swept]
    prepared = None if arguments.is_multirun or swept else run.prepare(composer, checked, is_multirun=False)
    if not isinstance(prepared, Composed):
        how = "Leave out -m, and give" if arguments.is_multirun else "Give"
        compared = shlex.join(str(each.input_line).lstrip("+") for each in swept)
        raise UsageError(
            f"tune looks for speed in one configuration. {how} {' and '.join(keys) or 'each option'} one value. To "
            f"compare values: collectx run -m {compared or 'OPTION=VALUE,VALUE'}"
        )
    cfg, options = prepared.cfg, check_section("tune", prepared.node.tune)
    assert isinstance(options, TuneConfig)
    overrides = [each for each in parsed(checked.overrides) if not each.key_or_group.startswith("tune.")]
    words = [str(each.input_line) for each in overrides]
    exact = cfg.trainer.kind != "meter" if options.exact is None else options.exact
    points = tune.space(cfg, [each.key_or_group for each in overrides], exact)
    if (load := os.getloadavg()[0]) > cores.num_cores() / 2:
        printing.note(
            f"other programs are using this machine (load {load:.1f}), so differences may be within the noise. Close "
            "them, or measure longer with a higher tune.minutes."
        )
    more = ". Each keeps the rows, steps and lag of a batch. To search others too: tune.exact=false" if exact else ""
    minutes = f"{options.minutes:g} minute{'s' * (options.minutes != 1)}"
    printing.say(f"searching {', '.join(points[0])}: {counted(len(points), 'point')}, about {minutes}{more}")

    def is_valid(values: Mapping[str, Any]) -> bool:
        tried = composer.check([*words, *tune.words(values)])
        return not tried.problems and not composer.examine(tried.overrides).problems

    flags = [*_flag(arguments, "config-dir"), *_flag(arguments, "config-name")]
    temporary = tempfile.TemporaryDirectory(prefix="collectx-tune-", ignore_cleanup_errors=True)
    with handling({signal.SIGTERM: _leave, signal.SIGHUP: _leave}), temporary as folder:
        measure = tune.RunMeasure(cfg, [*flags, *words], options, Path(folder))
        _say_batch_time(cfg, options, measure.limit_s)
        result = tune.search(points, is_valid, measure, options, printing.say, seed=cfg.seed)
    print()
    printing.print_table([_row(point, result) for point in result.points], _HEAD)
    if len(result.points) < len(points):
        left = len(points) - len(result.points) - result.num_refused
        why = [f"{result.num_refused} cannot be run (options that exclude each other)"] * bool(result.num_refused)
        why += [f"for {left} the time was up. To measure more: a higher tune.minutes"] * bool(left)
        printing.say(f"{len(result.points)} of {counted(len(points), 'point')} were measured; {', and '.join(why)}")
    changes = tune.changes(cfg, result.chosen.values)
    verdict = _verdict(result)
    for text in (verdict, *(f"this changes training: {text}" for text in changes)):
        printing.say(text)
    if result.chosen is result.points[0]:
        printing.say(f"experiment={file.stem} contains your own settings, so a script can use it in any case")
    where = f"measured on {platform.node()} with {cores.num_cores()} cores"
    text, rest = _experiment(composer, overrides, result.chosen.values, [verdict, *changes, where])
    with folder_errors(file.parent, "folder", "--output"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    config_dir = os.path.relpath(file.parent.parent)
    named = [f"experiment={file.stem}", "--config-dir", config_dir, *_flag(arguments, "config-name")]
    command = ["collectx", "run", *named, *rest]
    printing.say(f"written to {os.path.relpath(file)}. To run it: {shlex.join(command)}")
    return 0


def _leave(signum: int, frame: object) -> None:
    """Handles a signal by an exit, at which the run that is measured ends too."""
    raise SystemExit(128 + signum)


def _say_batch_time(cfg: RunConfig, options: TuneConfig, limit_s: float) -> None:
    """Prints how long a batch takes, if the envs are slow. Raises `ConfigError` if no measurement would end in time."""
    from collectx import plan

    try:
        seconds = plan.batch_s(cfg)
    except CollectxError as error:
        raise ConfigError(str(error)) from error
    if seconds is None or seconds < 1:
        return
    takes = f"a batch takes about {plan.duration(seconds)} with your settings"
    # The batches before the measurement, and its two. Async workers fill a batch each at the same time.
    num_batches = 4 if options.warmup_s else 3
    num_at_once = 1 if cfg.collector.schedule == "sync" else cfg.collector.num_workers
    needed_s = seconds * math.ceil(num_batches / num_at_once)
    if needed_s > limit_s:
        more = math.ceil(options.seconds + (needed_s - limit_s) / 20) + 1
        raise ConfigError(
            f"{takes}, so a measurement would take {needed_s:,.0f} s, but its limit is {limit_s:g} s. Lower "
            f"collector.frames_per_batch, or measure longer with tune.seconds={more}."
        )
    printing.say(f"{takes}. Each measurement waits up to {limit_s:g} s for two batches")


def _flag(arguments: Arguments, name: str) -> list[str]:
    return [f"--{name}", arguments.flags[name]] if name in arguments.flags else []


def _output(arguments: Arguments) -> Path:
    """Returns the path of the experiment file that will be written."""
    folder = arguments.config_dir or "conf"
    file = Path(arguments.flags.get("output", os.path.join(folder, "experiment", "tuned.yaml")))
    is_found = arguments.config_dir is None or file.absolute().parent.parent == Path(folder).absolute()
    if file.suffix != ".yaml" or file.absolute().parent.name != "experiment" or not is_found:
        place = "DIR" if arguments.config_dir is None else folder
        raise UsageError(
            f"--output {file} cannot be used, because Hydra would not find the experiment there. Write it to "
            f"{place}/experiment/NAME.yaml."
        )
    is_ours = os.path.isfile(file) and _WRITTEN_BY.encode() in file.read_bytes()
    if os.path.exists(file) and not is_ours:
        raise UsageError(f"'{file}' already exists, and tune did not write it. Choose another file: --output FILE")
    # Before anything is measured.
    place = next(each for each in (file, *file.absolute().parents) if os.path.exists(each))
    if not os.access(place, os.W_OK) or not (place is file or place.is_dir()):
        why = "is not writable" if place is file or place.is_dir() else "is a file, not a folder"
        raise UsageError(f"cannot write '{file}': '{place}' {why}. Choose another file: --output FILE")
    return file


def _row(point: tune.Point, result: tune.SearchResult) -> tuple[str, ...]:
    rates = point.rates
    marks = ["your settings"] * (point is result.points[0]) + ["chosen"] * (point is result.chosen)
    status = point.status.partition(":")[0] + (f" ({', '.join(marks)})" if marks else "")
    rate = f"{fmean(rates):,.0f}" if rates else "-"
    return str(point), status, str(len(rates)), rate, f"{stdev(rates):,.0f}" if len(rates) > 1 else "-"


def _verdict(result: tune.SearchResult) -> str:
    if result.best is result.points[0]:
        count = sum(bool(point.rates) for point in result.points)
        return f"keeping your settings, the fastest of {counted(count, 'point')}"
    if result.gain is None:
        if not result.points[0].failed:
            return f"keeping your settings, because {result.best} failed when it was measured again beside them"
        why = f"your settings failed when they were measured again ({result.points[0].status})"
        return f"{why}, so {result.best} is chosen" if result.chosen is result.best else f"{why}, and so did all others"
    mean, low, high = (f"{each:.2f}" for each in result.gain)
    if low == "1.00" and result.chosen is result.best:
        low = f"{result.gain[1]:.4f}"  # a gain counts if all of the interval is above 1
    interval = f"(95% CI {low} to {high})"
    if result.chosen is result.best:
        return f"{result.best} was {mean} times as fast as your settings {interval}, measured alternately"
    return f"keeping your settings: {result.best} was {mean} times as fast {interval}, which is within the noise"


def _experiment(
    composer: Composer, overrides: Iterable[Override], values: Mapping[str, Any], comments: Sequence[str]
) -> tuple[str, list[str]]:
    """Returns the text of an experiment with the user's overrides and the values of a point; and the overrides that
    must stay on the command line: of Hydra, of the run folder, and those that delete."""
    bases: list[Any] = []
    choices: dict[str, Any] = {}
    node = OmegaConf.create()
    rest = []
    for each in [*overrides, *parsed([f"{key}={value}" for key, value in values.items()])]:
        key = each.key_or_group
        if each.is_delete() or each.package is not None or key.startswith(("hydra.", "hydra/", "run.")):
            rest.append(str(each.input_line).removeprefix("++"))
        elif key == "experiment":
            bases = [each.value()]
        elif key in composer.groups:
            choices[key] = each.value()
        else:
            OmegaConf.update(node, key, each.value(), force_add=True)
    defaults = [*bases, *({f"override /{group}": choice} for group, choice in choices.items()), "_self_"]
    head = ["# @package _global_", f"{_WRITTEN_BY}: {comments[0]}.", *(f"# {text}." for text in comments[1:])]
    return "\n".join(
        [*head, OmegaConf.to_yaml(OmegaConf.create({"defaults": defaults})) + OmegaConf.to_yaml(node) * bool(node)]
    ), rest


main = subcommand("tune", _tune, _USAGE, lists_problems=True)
