"""`policy.kind=mlp`: a fully connected network for any observation that can be flattened."""

from __future__ import annotations

from torch import nn

from collectx.config.schema.policy import MlpPolicyConfig
from collectx.env.action_masks import network_inputs
from collectx.env.base import EnvSpec
from collectx.policy.normalize import Normalized
from collectx.policy.stochastic import Flatten, StochasticPolicy

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "elu": nn.ELU,
}


def build(cfg: MlpPolicyConfig, spec: EnvSpec, kind: type[StochasticPolicy] = StochasticPolicy) -> StochasticPolicy:
    """Returns the network of `cfg`, on the CPU, as a policy of class `kind`. Raises `ConfigError` if there is no
    observation, or none that can be normalised, or `SpaceError` if no head supports the action space
    (`collectx.policy.heads`)."""
    flatten = Flatten(spec, network_inputs(spec))
    encode = Normalized(flatten) if cfg.normalize_observations else flatten
    sizes = [flatten.num_outputs, *cfg.hidden_sizes]
    return kind(spec, encode, nn.Sequential(*hidden_layers(cfg, sizes[0])), sizes[-1])


def hidden_layers(cfg: MlpPolicyConfig, width: int) -> list[nn.Module]:
    """Returns the hidden layers of `cfg`, over rows of a width."""
    widths = zip([width, *cfg.hidden_sizes], cfg.hidden_sizes, strict=False)
    return [layer for sizes in widths for layer in (nn.Linear(*sizes), ACTIVATIONS[cfg.activation]())]
