"""Translates submitit's parameters of SLURM jobs into the launcher's configuration."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from collectx.config.schema.launcher import SubmititLauncherConfig
from collectx.errors import ConfigError

# Parameters about how submitit starts and watches jobs.
_UNSUPPORTED = (
    "array_parallelism",
    "nodes",
    "ntasks_per_node",
    "signal_delay_s",
    "stderr_to_stdout",
    "teardown",
    "use_srun",
)


def slurm_resources(slurm_kwargs: dict[str, Any], num_threads: int) -> SubmititLauncherConfig:
    """Returns the launcher configuration for parameters of submitit's `AutoExecutor`, which `DistributedCollector`
    takes. submitit itself checks them. Raises `ConfigError` if submitit does not know a parameter, or collectx sets it
    itself."""
    requested = _translated(slurm_kwargs)
    # As passed: with or without the prefix, and `tasks_per_node` for `ntasks_per_node`.
    typed = {name: key for key in slurm_kwargs for name in _UNSUPPORTED if name.endswith(key.removeprefix("slurm_"))}
    wrong = [
        f"slurm_kwargs[{typed.get(name, name)!r}]={requested[name]!r} cannot be used: each worker is one task on one "
        "node, which collectx starts and watches itself. Leave it out."
        for name in _UNSUPPORTED
        if requested.get(name) not in (None, 1)
    ]
    if wrong:
        raise ConfigError(*wrong)
    launcher = SubmititLauncherConfig(kind="submitit", num_threads=num_threads)
    for name, value in requested.items():
        if name in _UNSUPPORTED:
            continue
        if name in ("gpus_per_node", "num_gpus"):
            launcher.gpus = value
        elif name == "srun_args":
            options = (word.removeprefix("--").partition("=") for word in value)
            launcher.srun = {option: setting if has_value else True for option, has_value, setting in options}
        elif name == "additional_parameters":
            launcher.sbatch |= value
        elif name in vars(launcher) and not (name == "exclusive" and isinstance(value, str)):
            setattr(launcher, name, str(value) if name == "time" else value)
        else:
            launcher.sbatch[name.replace("_", "-")] = value
    return launcher


def _translated(slurm_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters that are not None by sbatch's names, with `_` for `-`."""
    if not slurm_kwargs:
        return {}
    import submitit

    # submitit warns about names without the prefix `slurm_`, which it accepts.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            executor = submitit.AutoExecutor(Path(), cluster="slurm")
            executor.update_parameters(**slurm_kwargs)
        except (NameError, ValueError, TypeError, AssertionError, RuntimeError) as error:
            raise ConfigError(f"slurm_kwargs cannot be used: {error}") from error
    return {name: value for name, value in executor.parameters.items() if value is not None}
