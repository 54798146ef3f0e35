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
    center_images: bool = option(
        False,
        """`true`: subtract the mean of each channel of each image, so that a bright background is 0 as a black one
        is. Otherwise it can silence the ReLUs of an actor before it has learned.""",
    )


@dataclass(kw_only=True)
class MultiPolicyConfig(MlpPolicyConfig, CnnPolicyConfig):
    images: list[str] | None = option(
        None,
        """The parts of the observation that are images, such as [camera] or [robot.camera]. `null`: those of 3 or 4
        dimensions, and those of bytes of 2 dimensions.""",
    )
    channels: list[int] | None = like(  # type: ignore[assignment]
        CnnPolicyConfig,
        "channels",
        """Output channels of each convolution over an image. channels, kernel_sizes and strides must have the same
        length. `null` for all three: the defaults of policy=cnn for images of at least 36x36, kernels of 3 for smaller
        ones.""",
        default=None,
    )
    kernel_sizes: list[int] | None = like(CnnPolicyConfig, "kernel_sizes", default=None)  # type: ignore[assignment]
    strides: list[int] | None = like(CnnPolicyConfig, "strides", default=None)  # type: ignore[assignment]
    hidden_size: int = like(CnnPolicyConfig, "hidden_size", "Width of the layer after the convolutions of each image.")
    hidden_sizes: list[int] = like(
        MlpPolicyConfig, "hidden_sizes", "Width of each layer that reads all parts. []: only the heads read all."
    )


@dataclass(kw_only=True)
class SquashedMultiPolicyConfig(SquashedMlpPolicyConfig, MultiPolicyConfig):
    """The options of `multi` with the layers of `squashed_mlp`."""


@dataclass(kw_only=True)
class CustomPolicyConfig(TrainablePolicyConfig):
    target: str = required(
        """`module:name`. An nn.Module, or a function of an observation, is the policy itself. A class or factory is
        called with kwargs, and with the env's spec if it takes a parameter `spec`."""
    )
    kwargs: dict[str, Any] = option({}, "Keyword arguments of the target.", movable=True)
