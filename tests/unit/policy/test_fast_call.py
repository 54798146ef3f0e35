import pytest
import torch
from torch import nn

from collectx.policy.fast_call import fast_callable


def network():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2))


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.last = network(), nn.Linear(2, 2)

    def forward(self, observation):
        return self.last(self.net(observation)) + self.net[0].weight.sum()


MODULES = {
    "network": network(),
    "custom": Custom(),
    "in_place": nn.Sequential(nn.ReLU(), nn.Dropout(0.0), nn.Linear(4, 1)),
    "parametrized": nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))),
    "function": torch.tanh,
}


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_same_result(module):
    x = torch.randn(3, 4)
    kept = x.clone()
    assert torch.equal(fast_callable(module)(x), module(x))
    assert torch.equal(x, kept)


def test_one_row_without_a_batch_dimension():
    x = torch.randn(4)
    for module in (network(), nn.Sequential(nn.Linear(4, 2, bias=False))):
        torch.testing.assert_close(fast_callable(module, one_row=True)(x), module(x))
        assert torch.equal(fast_callable(module, one_row=True)(x[None]), module(x[None]))


@pytest.mark.parametrize("place", [lambda m: m, lambda m: m[0], lambda m: m[2][1]], ids=["root", "child", "nested"])
def test_hooks_are_called(place):
    called = []
    module = network()
    place(module).register_forward_hook(lambda *_: called.append(1))
    fast_callable(module)(torch.randn(1, 4))
    assert called == [1]


def test_changed_and_replaced_parameters_are_seen():
    module = Custom()
    forward = fast_callable(module)
    x = torch.randn(3, 4)
    with torch.no_grad():
        module.net[0].weight.mul_(2)
    module.net[3].weight = nn.Parameter(torch.randn(2, 8))
    assert torch.equal(forward(x), module(x))
    assert type(module.net) is nn.Sequential, "the module itself stays as it was"
    assert type(module.last) is nn.Linear
