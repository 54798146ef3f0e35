"""Whether the configured devices are there, and which one the trainer learns on.

Used by job.py in the trainer's process, before anything starts. Must not know collectors.
"""

from __future__ import annotations

from dataclasses import asdict

import torch

from collectx.config import DevicesConfig
from collectx.errors import ConfigError


def training_device(cfg: DevicesConfig) -> torch.device:
    """Where the trainer learns: where the policy acts, the CPU unless configured.

    Raises:
        ConfigError: a device's name means nothing to torch, or that device is not on this machine.
    """
    problems = [text for name, device in asdict(cfg).items() if device is not None and (text := problem(name, device))]
    if problems:
        raise ConfigError(problems)
    return torch.device(cfg.policy_device or cfg.device or "cpu")


def problem(name: str, device: str) -> str | None:
    """What is wrong with `devices.<name>=<device>`; None where it is there."""
    given = f"devices.{name}={device}"
    try:
        wanted = torch.device(device)
    except RuntimeError:
        return f"{given} is no device of torch: use cpu, cuda or cuda:<index>."
    if wanted.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            return f"{given}: torch sees no GPU on this machine: use devices=cpu."
        if wanted.index is not None and wanted.index >= count:
            return f"{given}: torch sees {count} GPUs on this machine, cuda:0 to cuda:{count - 1}."
    if wanted.type == "mps" and not torch.backends.mps.is_available():
        return f"{given}: torch cannot use MPS on this machine: use devices=cpu."
    return None
