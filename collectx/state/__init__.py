"""The state of envs, samplers and generators: saved as tensors and plain data, restored in place."""

from collectx.state.generators import load_generators, save_generators
from collectx.state.processes import ProcessState
from collectx.state.restore import read, restore, restore_bytes
from collectx.state.save import pack, reason_not_saved, save, save_bytes, unpack

__all__ = [
    "ProcessState",
    "load_generators",
    "pack",
    "read",
    "reason_not_saved",
    "restore",
    "restore_bytes",
    "save",
    "save_bytes",
    "save_generators",
    "unpack",
]
