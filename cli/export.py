"""`collectx export DIR... format=FORMAT [dir=FOLDER]`: converts recorded episodes to another format."""

from __future__ import annotations

from pathlib import Path

from collectx import data
from collectx.cli.arguments import Arguments, UsageError, subcommand
from collectx.config.problem import did_you_mean
from collectx.errors import ConfigError
from collectx.run import RunFolder, printing, saved_config

_USAGE = """\
collectx export DIR... format=FORMAT [dir=FOLDER] [fps=N] [task=TEXT]: convert what runs have recorded (trainer=record).

  DIR     a run folder, or the folder of a data set of the format memmap or parquet; several are put into one data set
  format  memmap, parquet, minari or lerobot
  dir     where the new data set goes, or one that exists already; default: a folder in DIR, named like the format
  fps     frames per second of format=lerobot, default 30
  task    what the policy does, in words, for format=lerobot

Exit status: 0, 2 wrong usage, or the data set cannot be read or written."""

_OPTIONS = ("format", "dir", "fps", "task")


def _export(arguments: Arguments) -> int:
    options = dict(word.split("=", 1) for word in arguments.words if "=" in word and not Path(word).is_dir())
    sources = [word for word in arguments.words if word.partition("=")[0] not in options]
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise UsageError([f"export: {unknown[0]}: no such option{did_you_mean(unknown[0], _OPTIONS)}"])
    if not sources:
        raise UsageError([f"export needs a folder.\n{_USAGE}"])
    if (name := options.get("format", "")) not in data.FORMATS:
        raise UsageError([f"export: format={name} is not one of {', '.join(data.FORMATS)}."])
    if len(sources) > 1 and "dir" not in options:
        raise UsageError(["export: several folders go into one data set: name its folder, dir=FOLDER."])
    fps = options.get("fps", "30")
    if not fps.isdigit() or int(fps) < 1:
        raise UsageError([f"export: fps={fps}: expected a number of at least 1."])
    target = Path(options.get("dir", Path(sources[0], name))).expanduser()
    count = sum(data.export(_recorded(each), target, name, int(fps), options.get("task", "")) for each in sources)
    printing.say(f"{count:,} episodes are in {target}")
    return 0


def _recorded(source: str) -> Path:
    """The data set of the run in a folder, or the folder itself.

    Raises:
        ConfigError: there is no such folder, or the run has no data set.
    """
    files = RunFolder(source)
    if not files.path.is_dir():
        raise ConfigError([f"export: {source}: no such folder."])
    if not files.config.exists():
        return Path(source)
    trainer = saved_config.read_config(files.config)["trainer"]
    if trainer["kind"] != "record":
        raise ConfigError([f"export: {source} has trainer={trainer['kind']}: only trainer=record records episodes."])
    return Path(source) if trainer["dir"] is None else Path(trainer["dir"]).expanduser()


main = subcommand("export", _export, _USAGE)
