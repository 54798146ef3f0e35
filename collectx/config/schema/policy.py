"""Options of the group `policy`."""

# ruff: noqa: RUF009, the calls in defaults make a `field`
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collectx.config.schema.fields import Section, like, option, required


@dataclass(kw_only=True)
class PolicyConfig(Section):
    kind: str = required("The kind of policy.")

    @property
    def is_random(self) -> bool:
        """Whether the actions are random, so there are no weights."""
        return self.kind == "random"


@dataclass(kw_only=True)
class TrainablePolicyConfig(PolicyConfig):
    """Options of policies with weights."""

    init_from: str | None = option(
        None,
        """A run folder, or a file of a state_dict, such as policy.pt: the run begins with these weights. A run of the
        same trainer.kind also passes on its critic. `null`: begin with random weights.""",
    )
    init_weights: str = option(
        "newest",
        """Whose weights of a run folder. newest: those of its end, or of its newest checkpoint. best: those of the
        checkpoint that checkpoint.keep_best kept.""",
        choices=("newest", "best"),
    )
    init_strict: bool = option(
        True,
        """`true`: refuse weights with other names or shapes. `false`: load those that fit, and say which do not.""",
    )


@dataclass(kw_only=True)
class MlpPolicyConfig(TrainablePolicyConfig):
    hidden_sizes: list[int] = option([64, 64], "Width of each hidden layer. []: a linear policy.", minimum=1)
    activation: str = option(
        "tanh",
        "Activation function of the hidden layers: tanh, relu, silu, gelu or elu.",
        choices=("tanh", "relu", "silu", "gelu", "elu"),
    )
    normalize_observations: bool = option(
        False,
        """`true`: scale observations to mean 0 and variance 1 over all frames so far. The trainer updates these
        statistics from each batch, and publishes them with the weights.""",
    )


@dataclass(kw_only=True)
class SquashedMlpPolicyConfig(MlpPolicyConfig):
    hidden_sizes: list[int] = like(MlpPolicyConfig, "hidden_sizes", default=[256, 256])
    activation: str = like(MlpPolicyConfig, "activation", default="relu")


@dataclass(kw_only=True)
class CnnPolicyConfig(TrainablePolicyConfig):
    channels: list[int] = option(
        [32, 64, 64],
        "Output channels of each convolution. channels, kernel_sizes and strides must have the same length.",
        minimum=1,
    )
    kernel_sizes: list[int] = option([8, 4, 3], "Kernel size of each convolution, in pixels of its input.", minimum=1)
    strides: list[int] = option([4, 2, 1], "Stride of each convolution.", minimum=1)
    hidden_size: int = option(512, "Width of the layer between the convolutions and the heads.", minimum=1)
    scale: float | None = option(
        None,
        """Divisor of the observations. `null`: the largest absolute value of the observation space, such as 255 for
        images of bytes and 1 for images in [0, 1]; 1 for a space without bounds.""",
        above=0,
    )


@dataclass(kw_only=True)
class CustomPolicyConfig(TrainablePolicyConfig):
    target: str = required(
        """`module:name`. An nn.Module, or a function of an observation, is the policy itself. A class or factory is
        called with kwargs, and with the env's spec if it takes a parameter `spec`."""
    )
    kwargs: dict[str, Any] = option({}, "Keyword arguments of the target.", movable=True)
