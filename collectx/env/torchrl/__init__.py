"""Kind `torchrl`: TorchRL's envs (`EnvBase`: wrapped, batched or not, with transforms).

    group.py            `TorchrlEnv`, the group of envs that the rollout steps, with one or more steppers
    stepper.py          steps an env of TorchRL by its `_step`
    conversion.py       recognises envs that only convert the frames of an env of Gymnasium
    gym_stepper.py      steps the env of Gymnasium instead, also in a process for each env, and converts its frames
    specs.py            TorchRL's specs as leaves and spaces

These modules do not import torchrl: it is in `sys.modules` if there is a TorchRL env.
"""

from __future__ import annotations

import sys
from typing import Any


def is_torchrl_env(value: Any) -> bool:
    """Whether `value` is an env of TorchRL (an `EnvBase`)."""
    return isinstance(value, getattr(sys.modules.get("torchrl.envs"), "EnvBase", ()))


def torchrl_envs() -> Any:
    """Returns the module `torchrl.envs`. Call it only if there is a TorchRL env."""
    return sys.modules["torchrl.envs"]
