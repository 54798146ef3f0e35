"""`collectx export RUN_DIR format=NAME [output=PATH]`: writes the policy of a run for other programs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from collectx.cli.arguments import Arguments, UsageError, subcommand
from collectx.config.problem import did_you_mean
from collectx.errors import ConfigError
from collectx.run import RunFolder, foreign_code, printing
from collectx.run.saved_config import run_config

# The function of each format, `(run_dir, output, options) -> Path`; it returns what it has written. `output` is None
# where the user names no path, `options` are the other `key=value` of the command line. Imported when it is chosen.
FORMATS = {
    "state_dict": "collectx.run.export:state_dict",
    "torchscript": "collectx.run.export:torchscript",
    "onnx": "collectx.run.export:onnx",
}
_USAGE = """\
collectx export RUN_DIR format=NAME [output=PATH] [--trust]: write the policy of the run in RUN_DIR, with its newest
weights, to PATH; by default to RUN_DIR/export/.

  format=state_dict    the tensors of the policy, for torch.load and load_state_dict
  format=torchscript   observations -> greedy actions, for torch.jit.load, also in C++
  format=onnx          the same, for ONNX Runtime and others: pip install 'collectx[onnx]'

Inputs of the last two are the observations `[B, *shape]`, in the order of `collectx.load_policy(RUN_DIR).leaves`, then
the states of a recurrent policy; outputs are the actions, then the next states. The code that the configuration imports
is printed first. If RUN_DIR belongs to another user, --trust is required.

Exit status: 0 written, 1 the policy cannot be written in this form, 2 wrong usage."""


def _export(arguments: Arguments) -> int:
    folders = [word for word in arguments.words if "=" not in word]
    options = dict(word.split("=", 1) for word in arguments.words if "=" in word)
    if len(folders) != 1:
        raise UsageError([f"export needs one run folder, got {len(folders)}.\n{_USAGE}"])
    name, output = options.pop("format", None), options.pop("output", None)
    if name not in FORMATS:
        problem = "export needs format=NAME" if name is None else f"format={name}: no such format"
        raise UsageError([f"{problem}{did_you_mean(name or '', FORMATS)}"])
    files = RunFolder(folders[0])
    foreign_code.check(files, run_config(files), "trust" in arguments.flags)
    module, _, function = FORMATS[name].partition(":")
    write = getattr(import_module(module), function)
    try:
        path = write(files.path, None if output is None else Path(output), options)
    except ConfigError:
        raise
    except Exception as error:
        printing.error(f"format={name}: {type(error).__name__}: {error}")
        return 1
    print(path)
    return 0


main = subcommand("export", _export, _USAGE)
