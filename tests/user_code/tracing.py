"""Policies that write one of their weights as `bias`, and as `traced` whether torch.compile traced the call."""

import torch
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn


class _Tracing(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, observation):
        rows = observation.shape[:-1]
        traced = torch.full(rows, torch.compiler.is_compiling(), device=observation.device)
        return observation[..., 2].gt(0).long(), self.bias.expand(rows), traced


def by_tensors():
    """Called with tensors."""
    return TensorDictModule(_Tracing(), ["observation"], ["action", "bias", "traced"])


def by_tensordict():
    """Called with a TensorDict."""
    return ProbabilisticTensorDictSequential(
        by_tensors(),
        TensorDictModule(nn.Linear(4, 2), ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["drawn"], distribution_class=torch.distributions.Categorical),
    )


def batches_of_each_version(collector, policy):
    """A batch with each of some biases, published before it."""
    bias = next(parameter for name, parameter in policy.named_parameters() if name.endswith("bias"))
    with collector:
        for value in (0.0, 3.0, 4.0):
            with torch.no_grad():
                bias.fill_(value)
            collector.update_policy_weights_()
            batch = collector.next()
            assert (batch["bias"] == value).all()
            yield batch
