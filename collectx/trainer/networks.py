"""The networks of an actor-critic trainer, and the gradients of their parameters.

Two small networks spend 40 % of a gradient step on autograd's graph. `MlpNetworks` therefore calls the kernels that
autograd would call, in the same order. Its gradients are equal to autograd's bit by bit, so it does not matter to a run
which of the two classes computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from collectx.policy.fast_call import hooked
from collectx.policy.heads import HeadGradient
from collectx.policy.stochastic import StochasticPolicy

# An activation, and the function that returns the gradient of its input, given that of its output, and the output.
_Activation = tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]
_ACTIVATIONS: dict[type[nn.Module], _Activation] = {
    nn.Tanh: (torch.tanh, torch.ops.aten.tanh_backward),
    nn.ReLU: (torch.relu, lambda gradient, output: torch.ops.aten.threshold_backward(gradient, output, 0)),
}


def networks_of(policy: Any, critic: Any) -> Networks:
    """Returns the networks of a policy and a `collectx.trainer.actor_critic.Critic`."""
    is_written_out = (
        type(policy) is StochasticPolicy
        and policy.head.has_gradient
        and policy.legal is None
        and not [*policy.encode.parameters()]
        and not any(hooked(module) for module in (*policy.modules(), *critic.modules()))
        and all(_is_known(layer) for layer in (*policy.body, policy.out, *critic.body, critic.out))
    )
    return (MlpNetworks if is_written_out else Networks)(policy, critic)


def _is_known(layer: nn.Module) -> bool:
    if type(layer) is not nn.Linear:
        return type(layer) in _ACTIVATIONS
    return layer.bias is not None and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"


class Networks:
    """Evaluates policy and critic, and computes gradients by autograd."""

    def __init__(self, policy: Any, critic: Any):
        self._policy, self._critic = policy, critic
        self._outputs: tuple[torch.Tensor, ...] = ()

    def evaluate(
        self, observation: Sequence[Any], action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the log-probability of `action`, `[B, *shape]`, the entropy, and the value of the observation, all
        `[B]` and without gradients. `observation` has a tensor `[B, *shape]` per key of the policy's
        `observation_keys`. Keeps what `backward` needs."""
        log_prob, entropy = self._policy.evaluate(observation, action)
        self._outputs = (log_prob, entropy, self._critic(observation))
        return log_prob.detach(), entropy.detach(), self._outputs[-1].detach()

    def backward(self, d_log_prob: torch.Tensor, d_entropy: float, d_value: torch.Tensor) -> None:
        """Adds the gradients of a loss to `grad` of all parameters, given its gradients with respect to the results of
        `evaluate`: `[B]`, one number that holds for each entropy, and `[B]`."""
        gradients = (d_log_prob, torch.full_like(self._outputs[1], d_entropy), d_value)
        pairs = [pair for pair in zip(self._outputs, gradients, strict=True) if pair[0].requires_grad]
        self._outputs = ()
        torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])


class MlpNetworks(Networks):
    """Networks of linear layers, tanh and ReLU on the CPU, with the same encoder, which has no parameters. `backward`
    replaces the gradients of the step before."""

    def __init__(self, policy: Any, critic: Any):
        super().__init__(policy, critic)
        self._encode, self._head = policy.encode, policy.head
        self._actor_layers = _Layers((*policy.body, policy.out))
        self._critic_layers = _Layers((*critic.body, critic.out))
        self._head_gradient: HeadGradient

    @torch.no_grad()
    def evaluate(
        self, observation: Sequence[Any], action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self._encode(observation)
        log_prob, entropy, self._head_gradient = self._head.differentiate(self._actor_layers.forward(x), action)
        return log_prob, entropy, self._critic_layers.forward(x).squeeze(-1)

    @torch.no_grad()
    def backward(self, d_log_prob: torch.Tensor, d_entropy: float, d_value: torch.Tensor) -> None:
        self._actor_layers.backward(self._head_gradient(d_log_prob, d_entropy))
        self._critic_layers.backward(d_value.unsqueeze(-1))


class _Layers:
    """A chain of layers."""

    def __init__(self, layers: Iterable[nn.Module]):
        self._layers: list[Any] = [_ACTIVATIONS.get(type(layer), layer) for layer in layers]
        self._seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._seen = [x]
        for layer in self._layers:
            x = layer[0](x) if isinstance(layer, tuple) else nn.functional.linear(x, layer.weight, layer.bias)
            self._seen.append(x)
        return x

    def backward(self, gradient: torch.Tensor) -> None:
        """Sets the gradients of the parameters, given that of the result of `forward`."""
        for index in reversed(range(len(self._layers))):
            layer, x = self._layers[index], self._seen[index]
            if isinstance(layer, tuple):
                gradient = layer[1](gradient, self._seen[index + 1])
                continue
            layer.weight.grad, layer.bias.grad = gradient.t().mm(x), gradient.sum(0)
            if index:
                gradient = gradient.mm(layer.weight)
        self._seen = []
