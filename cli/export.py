"""`collectx export RUN_DIR... format=NAME [output=PATH]`: writes the policy of a run, or recorded episodes, for other
programs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from collectx.cli.arguments import Arguments, UsageError, ask_which, refuse_empty, subcommand, unknown_key
from collectx.config.problem import did_you_mean
from collectx.config.schema.trainer import DATA_PACKAGES
from collectx.errors import ConfigError, ExportError, frames_of_user
from collectx.run import RunFolder
from collectx.run.after import foreign_code
from collectx.run.folder import saved_config
from collectx.run.terminal import printing

# The function for each format of policies, `(run_dir, output, weights) -> Path`, imported when the format is chosen.
# `output` is None if the user names no path; the function returns the path that it wrote.
POLICIES = {
    "state_dict": "collectx.run.after.export:state_dict",
    "torchscript": "collectx.run.after.export:torchscript",
    "onnx": "collectx.run.after.export:onnx",
}
# What users call a file of torch.save.
_FILES_OF_TORCH = ("pt", "pth", "torch", "pytorch")
# Beside format and output.
_OPTIONS_OF = {**dict.fromkeys(POLICIES, ("weights",)), "lerobot": ("fps", "task")}
_OPTIONS = ("format", "output", *dict.fromkeys(itertools.chain(*_OPTIONS_OF.values())))
_USAGE = """\
collectx export RUN_DIR format=NAME [output=PATH] [weights=best] [--trust]: write the newest policy of the run in
RUN_DIR to PATH, by default in RUN_DIR/export/. weights=best takes the checkpoint that checkpoint.keep_best kept.

  format=state_dict    policy tensors, for torch.load and load_state_dict
  format=torchscript   observations -> greedy actions, for torch.jit.load, also in C++
  format=onnx          the same, for ONNX Runtime and others: pip install 'collectx[onnx]'

Inputs of torchscript and onnx are the observations, `[B, *shape]` each, in the order of
`collectx.load_policy(RUN_DIR).leaves`, and the states of a recurrent policy; outputs are the actions, and the next
states.

If RUN_DIR was written on another machine, the command first prints which code the configuration imports. If it belongs
to another user, add --trust.

collectx export DIR... format=NAME [output=FOLDER] [fps=N] [task=TEXT]: convert episodes that trainer=record wrote.

  DIR     a run folder, or a data set folder with format memmap or parquet; several are merged into one data set
  format  memmap, parquet, minari or lerobot
  output  folder of a new or an existing data set; default: a folder in DIR, named like the format
  fps     frames per second, for format=lerobot; default 30
  task    description of the task in words, for format=lerobot

Exit status: 0 written, 1 the policy cannot be exported to this format, 2 wrong usage, or a data set cannot be read or
written."""


def _export(arguments: Arguments) -> int:
    options = dict(word.split("=", 1) for word in arguments.words if "=" in word and not os.path.isdir(word))
    sources = [word for word in arguments.words if word.partition("=")[0] not in options]
    if unknown := [key for key in options if key not in _OPTIONS]:
        raise UsageError(unknown_key(unknown[0], options[unknown[0]], _OPTIONS))
    refuse_empty(options)
    name, output = options.pop("format", None), options.pop("output", None)
    if name not in (formats := [*POLICIES, *DATA_PACKAGES]):
        if name in _FILES_OF_TORCH:
            raise UsageError(f"format={name} is unknown. Did you mean format=state_dict?")
        if meant := [word for word in sources if word in formats]:
            raise UsageError(f"name the format as an option: format={meant[0]}")
        problem = "which format? Add format=NAME" if name is None else f"format={name} is unknown"
        raise UsageError(f"{problem}{did_you_mean(name or '', formats, 'format=')}")
    if not sources:
        raise UsageError(ask_which(_USAGE))
    allowed = _OPTIONS_OF.get(name, ())
    if unfit := [key for key in options if key not in allowed]:
        raise UsageError(f"format={name} has no option '{unfit[0]}'. Leave out {unfit[0]}={options[unfit[0]]}.")
    target = None if output is None else Path(output).expanduser()
    if name in DATA_PACKAGES:
        return _export_episodes(sources, name, target, options)
    if len(sources) > 1:
        raise UsageError(f"format={name} takes one run folder. Leave out {sources[1]}.")
    return _export_policy(sources[0], name, target, options.get("weights", "newest"), "trust" in arguments.flags)


def _export_policy(source: str, name: str, target: Path | None, weights: str, trusted: bool) -> int:
    run_folder = RunFolder(source)
    foreign_code.check(run_folder, saved_config.run_config(run_folder), trusted)
    module, _, function = POLICIES[name].partition(":")
    try:
        path = getattr(import_module(module), function)(run_folder.path, target, weights)
    except ConfigError:
        raise
    except ExportError as error:
        printing.error(f"export to {name} failed: {error}")
        return 1
    except Exception as error:
        is_ours = not frames_of_user(error)
        if isinstance(error, OSError) and (is_ours or (target and str(error.filename).startswith(str(target)))):
            place = error.filename or run_folder.path
            raise ConfigError(
                f"cannot write to {place}: {error.strerror or error}. Choose another path with output=PATH."
            ) from error
        from collectx.run.terminal.display import format_error

        printing.error(f"export to {name} failed: {format_error(error)}")
        return 1
    print(path)
    return 0


def _export_episodes(sources: Sequence[str], name: str, target: Path | None, options: dict[str, str]) -> int:
    if len(sources) > 1 and target is None:
        raise UsageError("you named several folders. Add output=FOLDER, the folder into which to merge them.")
    fps = options.get("fps", "30")
    if not fps.isdecimal() or int(fps) < 1:
        raise UsageError(f"fps={fps} must be a whole number of at least 1.")
    target = target or Path(sources[0], name)
    # Runs that have recorded to one data set are exported once, with it.
    sets = dict.fromkeys(_recorded(each) for each in sources)
    from collectx import data  # imports torch

    count = sum(data.export(each, target, name, int(fps), options.get("task", "")) for each in sets)
    printing.say(f"added {count:,} episode{'s' * (count != 1)} to {target}")
    return 0


def _recorded(source: str) -> Path:
    """Returns the data set of the run in a folder, or the folder itself."""
    run_folder = RunFolder(source)
    if not os.path.isdir(source):
        raise ConfigError(f"there is no folder '{source}'. To list your runs: collectx status")
    if not run_folder.config.exists():
        return Path(source)
    trainer = saved_config.read_config(run_folder.config).get("trainer") or {}
    if trainer.get("kind") != "record":
        raise ConfigError(
            f"{source} contains no episodes, because it ran with trainer={trainer.get('kind')}. Only "
            "trainer=record records them."
        )
    return Path(source) if trainer.get("dir") is None else Path(trainer["dir"]).expanduser()


main = subcommand("export", _export, _USAGE)
