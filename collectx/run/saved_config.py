"""The configurations of runs for comparison: of a run that is to be started, and of those that are in folders.

Used by the command line and by what submits jobs, before a run is started.
"""

from __future__ import annotations

from pathlib import Path

from collectx.config.check import check
from collectx.config.schema.run import RunConfig, as_dict
from collectx.errors import ConfigError, DamagedFile
from collectx.run.folder import RunFolder
from collectx.run.result import Status
from collectx.run.resumed import newest_config, read_config


def config_text(cfg: RunConfig) -> str:
    """A configuration as YAML, for comparison: equal text is an equal run. Resources of a scheduler, `launcher.wait`,
    `run.overwrite`, `run.resume` and checkpoints have no effect on a run, so it contains only the name of the
    launcher."""
    from omegaconf import OmegaConf

    content = as_dict(cfg)
    del content["run"]["overwrite"], content["run"]["resume"], content["checkpoint"]
    content["launcher"] = cfg.launcher.kind
    return OmegaConf.to_yaml(OmegaConf.create(content), sort_keys=True)


def saved_config(files: RunFolder) -> RunConfig:
    """The configuration with which the run in a folder was begun or resumed last.

    Raises:
        ConfigError: it cannot be read, or has problems.
    """
    content = read_config(newest_config(files))
    # The run folder is not part of the configuration.
    cfg, problems = check({key: value for key, value in content.items() if key != "hydra"})
    if problems:
        raise ConfigError([problem.text() for problem in problems])
    return cfg


def saved_text(files: RunFolder) -> str | None:
    """The `saved_config` as `config_text`; None where it cannot be read."""
    try:
        return config_text(saved_config(files))
    except ConfigError:
        return None


def completed(root: Path) -> dict[str, Path]:
    """The folder of each completed run in `root`, by its configuration as `config_text`."""
    folders = {}
    for snapshot in sorted(root.absolute().glob("*/snapshot/config.yaml")):
        files = RunFolder(snapshot.parent.parent)
        try:
            result = files.read_result()
        except DamagedFile:
            continue
        text = saved_text(files)
        if result is not None and result["status"] == Status.COMPLETED and text is not None:
            folders[text] = files.path
    return folders
