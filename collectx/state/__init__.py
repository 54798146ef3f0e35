"""The state of envs, samplers and generators: saved as tensors and plain data, restored in place."""

from collectx.state.generators import load_generators, save_generators
from collectx.state.processes import ProcessState
from collectx.state.restore import read, restore
from collectx.state.save import reason_not_saved, save

__all__ = ["ProcessState", "load_generators", "read", "reason_not_saved", "restore", "save", "save_generators"]
