"""The state of envs, samplers and generators: saved as tensors and plain data, restored in place."""

from collectx.state.restore import read, restore
from collectx.state.save import save

__all__ = ["read", "restore", "save"]
