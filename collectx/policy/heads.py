"""The last step of a built-in policy: computes actions from the output of a network, and the log-probability of
actions.

A head samples with a few kernels, because it runs in every env step, and `torch.distributions` takes several times as
long as the forward of a small network. `Categorical` is for Discrete, MultiDiscrete and MultiBinary, `Gaussian` for
Box.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from collectx.batch import Leaf
from collectx.errors import SpaceError

# Takes the gradients of a loss with respect to each log-probability, `[B]`, and to each entropy, one number for all.
# Returns the gradient with respect to `raw`, and sets the gradients of the head's parameters.
HeadGradient: TypeAlias = Callable[[torch.Tensor, float], torch.Tensor]


class Head(nn.Module):
    """The interface of heads. `raw` is the network's output, `[..., num_inputs]`; actions are `[..., *shape]`.
    `num_inputs` is the width of `raw`. `has_gradient` says whether `differentiate` exists."""

    num_inputs: int
    has_gradient = False

    def sample(self, raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a sampled action and its log-probability, `[...]` float32."""
        raise NotImplementedError

    def mode(self, raw: torch.Tensor) -> torch.Tensor:
        """Returns the most likely action."""
        raise NotImplementedError

    def evaluate(self, raw: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the log-probability of `action` and the entropy of the distribution, both `[...]` and
        differentiable."""
        raise NotImplementedError

    def differentiate(self, raw: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, HeadGradient]:
        """Returns the results of `evaluate` for `raw`, `[B, num_inputs]`, and a function for their gradients. It calls
        autograd's kernels in autograd's order, so that both gradients are equal bit by bit."""
        raise NotImplementedError


class Categorical(Head):
    """Independent categorical choices: one for Discrete, `prod(shape)` for MultiDiscrete and MultiBinary.

    Narrower choices are padded to the widest one, with logits of minus infinity.
    """

    _start: torch.Tensor
    _mask: torch.Tensor | None

    def __init__(self, counts: np.ndarray, start: np.ndarray, leaf: Leaf):
        super().__init__()
        flat = np.asarray(counts, dtype=np.int64).reshape(-1)
        self._shape = leaf.shape
        self._dtype = leaf.dtype
        self._choices = len(flat)
        self._width = int(flat.max())
        self.num_inputs = self._choices * self._width
        self._scalar = leaf.shape == ()
        begin = torch.as_tensor(np.asarray(start).reshape(-1 if leaf.shape else ()), dtype=torch.int64)
        self._plain = leaf.dtype == torch.int64 and not bool(begin.any())
        self.register_buffer("_start", begin, persistent=False)
        mask = None
        if bool((flat != self._width).any()):
            beyond = torch.arange(self._width) >= torch.as_tensor(flat)[:, None]
            mask = torch.zeros(self._choices, self._width).masked_fill_(beyond, -torch.inf)
        self.register_buffer("_mask", mask, persistent=False)
        self.has_gradient = self._scalar

    def sample(self, raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        probability = self._logits(raw).softmax(-1)
        # An exponential race: argmax p / Exp(1) has the distribution p (the Gumbel trick without its two logarithms).
        race = torch.empty_like(probability).exponential_()
        index = torch.div(probability, race, out=race).argmax(-1, keepdim=True)
        log_prob = probability.gather(-1, index).log_().squeeze(-1)
        index = index.squeeze(-1)
        if not self._scalar:
            log_prob = log_prob.sum(-1)
        return self._action(index), log_prob

    def mode(self, raw: torch.Tensor) -> torch.Tensor:
        return self._action(self._logits(raw).argmax(-1))

    def evaluate(self, raw: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs = self._logits(raw).log_softmax(-1)
        index = action.to(torch.int64)
        if not self._scalar:
            index = index.reshape(*raw.shape[:-1], self._choices)
        if not self._plain:
            index = index - self._start
        log_prob = log_probs.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        # Padding has log-probability -inf and probability 0, whose product must be 0 instead of NaN.
        finite = log_probs if self._mask is None else log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
        entropy = -(finite * log_probs.exp()).sum(-1)
        return (log_prob, entropy) if self._scalar else (log_prob.sum(-1), entropy.sum(-1))

    def differentiate(self, raw: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, HeadGradient]:
        log_probs = raw.log_softmax(-1)
        probability = log_probs.exp()
        index = action.to(torch.int64)
        index = (index if self._plain else index - self._start).unsqueeze(-1)

        def gradient(d_log_prob: torch.Tensor, d_entropy: float) -> torch.Tensor:
            d_log_probs = probability * -d_entropy + (log_probs * -d_entropy) * probability
            d_log_probs += torch.zeros_like(raw).scatter_add_(-1, index, d_log_prob.unsqueeze(-1))
            return torch.ops.aten._log_softmax_backward_data(d_log_probs, log_probs, -1, raw.dtype)

        return log_probs.gather(-1, index).squeeze(-1), -(log_probs * probability).sum(-1), gradient

    def _logits(self, raw: torch.Tensor) -> torch.Tensor:
        if self._scalar:
            return raw
        logits = raw.unflatten(-1, (self._choices, self._width))
        return logits if self._mask is None else logits + self._mask

    def _action(self, index: torch.Tensor) -> torch.Tensor:
        if not self._plain:
            index = (index + self._start).to(self._dtype)
        return index if len(self._shape) < 2 else index.unflatten(-1, self._shape)


class Gaussian(Head):
    """A Gaussian with independent components. Its log standard deviation is a parameter, not an output of the network.

    Actions are neither squashed nor clipped: env and batch get exactly the sample, so the stored log-probability is the
    true one. The env or a wrapper (`gymnasium.wrappers.ClipAction`) may clip actions.
    """

    has_gradient = True

    def __init__(self, leaf: Leaf):
        super().__init__()
        self._shape = leaf.shape
        self._dtype = leaf.dtype
        self.num_inputs = math.prod(leaf.shape)
        self.log_std = nn.Parameter(torch.zeros(self.num_inputs))
        self._offset = 0.5 * math.log(2 * math.pi) * self.num_inputs

    def sample(self, raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_std = self.log_std
        noise = torch.randn_like(raw)
        log_prob = (noise * noise).sum(-1).mul_(-0.5).sub_(log_std.sum() + self._offset)
        return self._action(torch.addcmul(raw, noise, log_std.exp())), log_prob

    def mode(self, raw: torch.Tensor) -> torch.Tensor:
        return self._action(raw)

    def evaluate(self, raw: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = (action.reshape(raw.shape).to(raw.dtype) - raw) * torch.exp(-self.log_std)
        volume = self.log_std.sum() + self._offset
        log_prob = noise.square().sum(-1) * -0.5 - volume
        return log_prob, (volume + 0.5 * self.num_inputs).expand(log_prob.shape)

    def differentiate(self, raw: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, HeadGradient]:
        difference = action.reshape(raw.shape).to(raw.dtype) - raw
        scale = torch.exp(-self.log_std)
        noise = difference * scale
        volume = self.log_std.sum() + self._offset
        entropy = (volume + 0.5 * self.num_inputs).expand(len(raw))

        def gradient(d_log_prob: torch.Tensor, d_entropy: float) -> torch.Tensor:
            d_noise = (d_log_prob * -0.5).unsqueeze(-1) * (noise * 2)
            d_volume = torch.full_like(d_log_prob, d_entropy).sum() - d_log_prob.sum()
            self.log_std.grad = d_volume - (d_noise * difference).sum(0) * scale
            return -(d_noise * scale)

        return noise.square().sum(-1) * -0.5 - volume, entropy, gradient

    def _action(self, flat: torch.Tensor) -> torch.Tensor:
        if flat.dtype != self._dtype:
            flat = flat.to(self._dtype)
        return flat if len(self._shape) == 1 else flat.reshape(*flat.shape[:-1], *self._shape)


def head_for(space: object, leaf: Leaf) -> Head:
    """Returns the head for an action space whose only leaf is `leaf`. Raises `SpaceError` if the space is neither
    Discrete, MultiDiscrete, MultiBinary nor a floating-point Box."""
    if isinstance(space, spaces.Discrete):
        return Categorical(np.array([space.n]), np.array(space.start), leaf)
    if isinstance(space, spaces.MultiDiscrete):
        return Categorical(space.nvec, getattr(space, "start", np.zeros_like(space.nvec)), leaf)
    if isinstance(space, spaces.MultiBinary):
        return Categorical(np.full(space.shape, 2), np.zeros(space.shape), leaf)
    if isinstance(space, spaces.Box) and leaf.dtype.is_floating_point:
        return Gaussian(leaf)
    name, ways = str(space), "policy=random or policy=custom"
    if type(space) is spaces.Space:  # it stands for spaces that only TorchRL has, such as one-hot actions
        name, ways = f"one-hot actions {list(leaf.shape)}", f"{ways}, or an env with categorical actions"
    elif isinstance(space, spaces.Dict) and len(leaf.key) > 1:
        name = f"the Dict of a group of agents ({'.'.join(leaf.key)})"
    raise SpaceError(
        "the built-in policies only support the action spaces Discrete, MultiDiscrete, MultiBinary and floating-point "
        f"Box, not {name}. Use {ways}."
    )
