"""`policy.kind=cnn`: convolutions over one image, then a fully connected layer (after Mnih et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from collectx.batch import Leaf
from collectx.config.problem import YAML
from collectx.config.schema.policy import CnnPolicyConfig
from collectx.env.action_masks import network_inputs
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.policy.base import input_space, largest_value
from collectx.policy.stochastic import StochasticPolicy


class Image(nn.Module):
    """Converts an image of any common layout to float32 `[B, channels, height, width]`, divided by `scale`, and with
    `center` less the mean of each channel.

        [H, W]                one grey channel
        [C, H, W], [H, W, C]  the smaller end is the channels: [4, 84, 84] is a stack of grey frames
        [S, C, H, W], [S, H, W, C]  a stack of S colour frames: S times C channels

    Attributes:
        num_channels, height, width: the size of the output.
        num_outputs: the product of these.
        num_dims: the number of dimensions of an observation.
    """

    def __init__(self, shape: tuple[int, ...], scale: float, kind: str = "cnn", *, center: bool = False):
        super().__init__()
        if len(shape) not in (2, 3, 4):
            raise ConfigError(
                f"policy={kind} needs images of shape [H, W], [C, H, W] or [S, C, H, W] (a stack), but the "
                f"observations have shape {list(shape)}. Use policy={kind.replace('cnn', 'mlp')}."
            )
        self._shape = (1,) * (4 - len(shape)) + shape
        self._factor = 1.0 / scale
        self._center = center
        self._channels_last = self._shape[3] < self._shape[1]
        stack, a, b, c = self._shape
        channels, self.height, self.width = (c, a, b) if self._channels_last else (a, b, c)
        self.num_channels = stack * channels
        self.num_outputs = self.num_channels * self.height * self.width
        self.num_dims = len(shape)

    def forward(self, observation: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the first leaf, `[..., *shape]`, as `[B, channels, height, width]`; flattens `...` to B."""
        x = observation[0].reshape(-1, *self._shape)
        if self._channels_last:
            x = x.permute(0, 1, 4, 2, 3)
        x = x.flatten(1, 2).to(torch.float32).mul(self._factor)
        return x - x.mean((-2, -1), keepdim=True) if self._center else x


def build(cfg: CnnPolicyConfig, spec: EnvSpec, kind: type[StochasticPolicy] = StochasticPolicy) -> StochasticPolicy:
    """Returns the network of `cfg`, on the CPU, as a policy of class `kind`. Raises `ConfigError` if the observation is
    not one image, or the image is smaller than the convolutions need, or `SpaceError` if no head supports the action
    space (`collectx.policy.heads`)."""
    leaves = network_inputs(spec)
    if len(leaves) != 1:
        names = ", ".join(".".join(leaf.key) for leaf in leaves) or "nothing"
        advice = f"Use policy={cfg.kind.replace('cnn', 'multi')}, or leave out the other parts with env.exclude_keys."
        advice = advice if leaves else "Exclude fewer parts in env.exclude_keys."
        raise ConfigError(f"policy={cfg.kind} needs a single image, but the env observes {names}. {advice}")
    encode = image_of(cfg, spec, leaves[0])
    return kind(spec, encode, convolutions(cfg, encode), cfg.hidden_size)


def image_of(cfg: CnnPolicyConfig, spec: EnvSpec, leaf: Leaf) -> Image:
    """Returns the encoder of a leaf that is an image."""
    scale = cfg.scale if cfg.scale is not None else largest_value(input_space(spec.observation_space, leaf.key))
    return Image(leaf.shape, scale, cfg.kind, center=cfg.center_images)


def convolutions(cfg: CnnPolicyConfig, image: Image) -> nn.Sequential:
    """Returns the layers over an image: from `[B, channels, height, width]` to `[B, cfg.hidden_size]`, float32."""
    layers: list[nn.Module] = []
    channels, height, width = image.num_channels, image.height, image.width
    for out_channels, kernel, stride in zip(cfg.channels, cfg.kernel_sizes, cfg.strides, strict=True):
        layers += [nn.Conv2d(channels, out_channels, kernel, stride), nn.ReLU()]
        channels = out_channels
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        if height < 1 or width < 1:
            raise ConfigError(
                f"policy.kernel_sizes={YAML.show(cfg.kernel_sizes)} with policy.strides={YAML.show(cfg.strides)} need "
                f"an image larger than {image.height}x{image.width}. Use fewer or smaller convolutions."
            )
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, cfg.hidden_size), nn.ReLU())
