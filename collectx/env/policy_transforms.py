"""`auto_register_policy_transforms`: appends the transforms that a recurrent policy needs to an env of TorchRL.

Imports torchrl, which the env has imported before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from collectx.batch import as_key
from collectx.env.torchrl import is_torchrl_env


@dataclass
class WithPolicyTransforms:
    """Calls `create`, and appends `InitTracker` and the primers of the policy's modules (`make_tensordict_primer`) to
    the env, unless its specs contain their keys. Envs that are not TorchRL's stay unchanged.
    """

    create: Callable[..., Any]
    policy: nn.Module

    def __call__(self, **kwargs: Any) -> Any:
        env = self.create(**kwargs)
        return with_policy_transforms(env, self.policy) if is_torchrl_env(env) else env


def with_policy_transforms(env: Any, policy: nn.Module) -> Any:
    """Returns a TorchRL env with those of the transforms that it lacks."""
    from torchrl.envs.transforms import InitTracker

    if "is_init" not in {key[-1] for key in _keys(env)}:
        env = env.append_transform(InitTracker())
    makers = [make for module in policy.modules() if (make := getattr(module, "make_tensordict_primer", None))]
    for made in (make() for make in makers):
        for primer in made if hasattr(made, "__iter__") else (made,):
            if not {as_key(key) for key in primer.primers.keys(True, True)} <= _keys(env):
                env = env.append_transform(primer)
    return env


def _keys(env: Any) -> set[tuple[str, ...]]:
    specs = env.full_observation_spec, env.full_state_spec
    return {as_key(key) for spec in specs for key in spec.keys(True, True)}
