"""What fast calls, compiled ones and CUDA graphs do with the modules of a policy."""

import pytest
import torch
from torch import nn
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode

from collectx.policy.fast_call import _recordable, fast_callable, hooked, structure

NAMES = ("linear", "addmv", "tanh", "tanh_", "relu", "relu_", "sigmoid", "sigmoid_", "silu", "add", "mul", "sin")


class Calls(TorchFunctionMode):
    """Keeps the names of torch's functions that compute."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function.__name__ in NAMES:
            self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


class Tanh(nn.Tanh):
    """A user's layer."""


class Stack(nn.Sequential):
    """A user's sequence."""

    def forward(self, x):
        return super().forward(x) + 1


class Twice(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.none = inner, None

    def forward(self, x):
        return self.inner(self.inner(x))


class Called(nn.Module):
    """Has a `__call__` of its own."""

    def __call__(self, x):
        return x * 3


def own_forward():
    module = nn.Linear(2, 2)
    module.forward = lambda x: x * 5
    return module


def two(*layers):
    return nn.Sequential(nn.Linear(2, 2), *layers)


MODULES = {
    "Linear": nn.Linear(2, 2),
    "Linear without a bias": nn.Linear(2, 2, bias=False),
    "Tanh": nn.Tanh(),
    "in place": nn.ReLU(inplace=True),
    "Identity": nn.Identity(),
    "empty": nn.Sequential(),
    "Linear and Tanh": two(nn.Tanh()),
    "Linear and SiLU": two(nn.SiLU()),
    "Linear and two activations": two(nn.ReLU(), nn.Sigmoid()),
    "activation first": nn.Sequential(nn.Tanh(), nn.Linear(2, 2)),
    "Linear, nested, and Tanh": nn.Sequential(two(), nn.Tanh()),
    "Linear, Identity and Tanh": two(nn.Identity(), nn.Tanh()),
    "Linear and a user's Tanh": two(Tanh()),
    "Dropout": two(nn.Dropout(0.0), nn.Tanh()),
    "a user's sequence": Stack(nn.Linear(2, 2), nn.Tanh()),
    "a user's sequence within": nn.Sequential(Stack(nn.Linear(2, 2), nn.Tanh()), nn.Tanh()),
    "a user's module": Twice(two(nn.Tanh())),
    "a user's module of a user's module": Twice(Twice(nn.Linear(2, 2))),
    "a user's module without networks": Twice(nn.Tanh()),
    "a __call__": Called(),
    "a forward": own_forward(),
    "a forward within": nn.Sequential(own_forward(), nn.Tanh()),
    "a parametrized Linear": nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))),
    "a function": torch.sin,
}


def test_calls_of_torch(expected):
    """The calls act on one row without a batch dimension, on one whose shape is known, and on two rows."""
    table, numbers = {}, torch.tensor([[0.5, -0.25], [1.0, 2.0]])
    for name, module in MODULES.items():
        row = []
        for one_row, x in ((False, numbers[0]), (True, numbers[0]), (True, numbers)):
            given, call = x.clone(), fast_callable(module, one_row)
            with torch.no_grad(), Calls() as calls:
                found = call(given)
            with torch.no_grad():
                torch.testing.assert_close(found, module(x.clone()))
            assert torch.equal(x, given) or name == "in place"
            row.append(" ".join(calls.names))
        table[name] = [fast_callable(module) is module, *row]
    expected("torch", table)


def test_hooks_of_all_modules_are_called():
    module, calls = two(nn.Tanh()), []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: calls.append(1))
    try:
        assert fast_callable(module) is module
    finally:
        handle.remove()
    assert fast_callable(module) is not module


@pytest.mark.parametrize(
    "hook", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", None]
)
def test_a_module_with_hooks_is_seen(hook):
    module = two(nn.Tanh())
    assert not hooked(module)
    before = structure(module)
    assert before == structure(module)
    if hook:
        getattr(module, hook)(lambda *_: None)
    else:
        module.forward = lambda x: x
    assert hooked(module)
    assert (structure(module) != before) == ("forward_" in str(hook))
    module[1] = nn.ReLU()
    assert structure(module) != before


@pytest.mark.parametrize("is_capturing", [False, True])
def test_a_recorded_function_checks_no_arguments_of_distributions(is_capturing, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: is_capturing)
    monkeypatch.setattr(Distribution, "_validate_args", True)
    seen = []

    def function(x):
        seen.append(Distribution._validate_args)
        if x is None:
            raise ValueError("mine")
        return x

    call = _recordable(function)
    assert call(3) == 3
    with pytest.raises(ValueError, match="mine") as raised:
        call(None)
    assert seen == [not is_capturing] * 2
    assert Distribution._validate_args
    notes = getattr(raised.value, "__notes__", [])
    assert [note.partition(" recorded")[0] for note in notes] == ["raised while cudagraph_policy"] * is_capturing
