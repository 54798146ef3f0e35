"""The state of envs, samplers and generators: saved as tensors and plain data, restored in place."""

from collectx.state.restore import read, restore
from collectx.state.save import NotRestorable, save

__all__ = ["NotRestorable", "read", "restore", "save"]
