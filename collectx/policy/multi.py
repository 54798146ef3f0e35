"""`policy.kind=multi`: convolutions over each image of an observation, and a fully connected network over their outputs
and all other parts, as in Stable-Baselines3's `CombinedExtractor`.

    camera --scale--+                 +--convolutions--+
    pose -----------+--one row [B, N]-+----------------+--hidden layers--head
    room --one-hot--+                 +----------------+

Actor and critic share an encoder without weights, which joins the parts to one row. Each has convolutions of its own,
whose layer takes the images out of the row again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from gymnasium import spaces
from torch import nn

from collectx.batch import Leaf
from collectx.config.problem import YAML
from collectx.config.schema.policy import CnnPolicyConfig, MultiPolicyConfig
from collectx.env.action_masks import network_inputs
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError
from collectx.policy import mlp
from collectx.policy.base import input_space
from collectx.policy.cnn import Image, convolutions, image_of
from collectx.policy.normalize import Normalized
from collectx.policy.stochastic import Flatten, StochasticPolicy

# The smallest image for the default convolutions of `cnn`.
_LARGE = 36


class Parts(nn.Module):
    """Converts an observation to one float32 row: its images, divided by their scale, then its other parts.

    Args:
        images: the encoder of each image, by its index in the observation.
        others: the encoder of all other parts; None: there are no others.
        indices: the indices of the other parts.
    """

    def __init__(self, images: dict[int, Image], others: Flatten | Normalized | None, indices: Sequence[int]):
        super().__init__()
        self.images, self.others = nn.ModuleList(images.values()), others
        self._image_indices, self._indices = [*images], indices
        self._num_dims = [image.num_dims for image in images.values()]
        self.num_outputs = sum(image.num_outputs for image in images.values())
        self.num_outputs += 0 if others is None else others.num_outputs

    def forward(self, observation: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns `[..., num_outputs]` float32 for a tensor `[..., *shape]` per part. Ignores tensors after those of
        the parts, such as masks."""
        rows: list[torch.Tensor] = []
        for index, num_dims, image in zip(self._image_indices, self._num_dims, self.images, strict=True):
            pixels = observation[index]
            rows.append(image([pixels]).reshape(*pixels.shape[: pixels.ndim - num_dims], -1))
        if self.others is not None:
            rows.append(self.others(self._others(observation)))
        return torch.cat(rows, -1)

    @property
    def update(self) -> Callable[[Sequence[torch.Tensor]], None] | None:
        """See `StochasticPolicy.update_statistics`."""
        add = getattr(self.others, "update", None)
        return None if add is None else lambda observation: add(self._others(observation))

    def _others(self, observation: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [observation[index] for index in self._indices]


class Branches(nn.Module):
    """Replaces the images at the beginning of a row by the outputs of convolutions; the rest of the row stays."""

    def __init__(self, images: Sequence[Image], branches: Sequence[nn.Sequential]):
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self._shapes = [(image.num_channels, image.height, image.width) for image in images]
        self._sizes = [image.num_outputs for image in images]

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns `[..., num_branches * hidden_size + rest]` for rows `[..., pixels of all images + rest]`."""
        *images, rest = rows.split([*self._sizes, rows.shape[-1] - sum(self._sizes)], -1)
        seen = [
            branch(pixels.reshape(-1, *shape)).reshape(*rows.shape[:-1], -1)
            for pixels, shape, branch in zip(images, self._shapes, self.branches, strict=True)
        ]
        return torch.cat((*seen, rest), -1)


def build(cfg: MultiPolicyConfig, spec: EnvSpec, kind: type[StochasticPolicy] = StochasticPolicy) -> StochasticPolicy:
    """Returns the network of `cfg`, on the CPU, as a policy of class `kind`; without images, that of `mlp`. Raises
    `ConfigError` if `cfg.images` does not fit the observation, if an image is smaller than the convolutions need, if
    there is nothing to normalise, or `SpaceError` if no head supports the action space (`collectx.policy.heads`)."""
    leaves = network_inputs(spec)
    images = {leaves.index(leaf): image_of(cfg, spec, leaf) for leaf in _images(cfg, spec, leaves)}
    if not images:
        return mlp.build(cfg, spec, kind)
    indices = [index for index in range(len(leaves)) if index not in images]
    flatten = Flatten(spec, [leaves[index] for index in indices]) if indices else None
    encode = Parts(images, Normalized(flatten) if cfg.normalize_observations else flatten, indices)
    branches = [convolutions(_with_convolutions(cfg, image), image) for image in images.values()]
    width = len(images) * cfg.hidden_size + (flatten.num_outputs if flatten else 0)
    body = nn.Sequential(Branches([*images.values()], branches), *mlp.hidden_layers(cfg, width))
    return kind(spec, encode, body, [width, *cfg.hidden_sizes][-1])


def _images(cfg: MultiPolicyConfig, spec: EnvSpec, leaves: Sequence[Leaf]) -> list[Leaf]:
    """Returns the parts of the observation that are images, in the order of the leaves."""
    if cfg.images is None:
        return [leaf for leaf in leaves if _is_image(leaf, input_space(spec.observation_space, leaf.key))]
    named = {".".join(leaf.key): leaf for leaf in leaves}
    if wrong := [name for name in cfg.images if name not in named or len(named[name].shape) not in (2, 3, 4)]:
        shapes = ", ".join(f"{name} {[*leaf.shape]}" for name, leaf in named.items())
        raise ConfigError(
            f"policy.images={YAML.show(cfg.images)} cannot contain {wrong[0]!r}: it must name parts of the observation "
            f"with 2, 3 or 4 dimensions. The env observes {shapes}."
        )
    return [leaf for name, leaf in named.items() if name in cfg.images]


def _is_image(leaf: Leaf, space: spaces.Space) -> bool:
    num_dims = len(leaf.shape)
    return isinstance(space, spaces.Box) and (num_dims in (3, 4) or (num_dims == 2 and leaf.dtype == torch.uint8))


def _with_convolutions(cfg: MultiPolicyConfig, image: Image) -> MultiPolicyConfig:
    """Returns `cfg` with the convolutions for an image in place of null."""
    if cfg.channels is not None:
        return cfg
    usual = CnnPolicyConfig(kind="cnn")
    side = min(image.height, image.width)
    kernels, strides = usual.kernel_sizes, usual.strides
    if side < _LARGE:
        kernels, strides = [], []
        for _ in usual.channels:
            kernels.append(min(3, side))
            strides.append(2 if side >= 10 else 1)
            side = (side - kernels[-1]) // strides[-1] + 1
    return replace(cfg, channels=usual.channels, kernel_sizes=kernels, strides=strides)
