"""Hydra's part of the configuration, and the logging that it sets up, in processes that Hydra did not start.

`current` reads it in the process that Hydra started, `adopt` sets it in a worker or a job, before user code is
imported. Without Hydra, neither imports it.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any


def current() -> dict[str, Any] | None:
    """Returns what `HydraConfig.get()` contains, as plain data with its interpolations resolved where they can be; None
    in a process without Hydra."""
    hydra: Any = getattr(sys.modules.get("hydra.core.hydra_config"), "HydraConfig", None)
    if hydra is None or not hydra.initialized():
        return None
    # A process that adopted its configuration has the defaults list, which composing removes.
    return {key: value for key, value in _resolved(hydra.get()).items() if key != "defaults"}


def _resolved(node: Any) -> Any:
    from omegaconf import DictConfig, ListConfig
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(node, DictConfig | ListConfig):
        return node.name if isinstance(node, Enum) else node
    values: dict[Any, Any] = {}
    keys: Any = node if isinstance(node, DictConfig) else range(len(node))
    for key in keys:
        try:
            values[key] = _resolved(node[key])
        except OmegaConfBaseException:
            values[key] = "???"
    return values if isinstance(node, DictConfig) else [*values.values()]


def adopt(hydra: dict[str, Any] | None, is_worker: bool = True) -> None:
    """Makes this process answer `HydraConfig.get()` and log as the one where `current` returned `hydra`. Does nothing
    for None. A worker does not write to the log files of `hydra.job_logging`: its log contains its lines."""
    if hydra is None or hydra == current():
        return
    from hydra.conf import HydraConf
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.utils import configure_log, setup_globals
    from omegaconf import OmegaConf

    setup_globals()
    cfg = OmegaConf.create({"hydra": OmegaConf.structured(HydraConf, flags={"struct": False})})
    cfg.merge_with({"hydra": hydra})
    logging = cfg.hydra.job_logging
    if is_worker and logging is not None:
        files = [name for name, each in (logging.get("handlers") or {}).items() if "filename" in each]
        for each in (logging, *(logging.get("loggers") or {}).values(), logging.get("root") or {}):
            if handlers := each.get("handlers"):
                kept = [name for name in handlers if name not in files]
                each.handlers = {name: handlers[name] for name in kept} if each is logging else kept
    configure_log(logging, cfg.hydra.verbose)
    HydraConfig.instance().set_config(cfg)
