import pytest
import torch
from torch import nn

from collectx.policy.flat_weights import FlatWeights, device_of, is_on_device


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3, bias=False)
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(3)
        self.strided = nn.Parameter(torch.randn(5, 2).t())
        self.low = nn.Parameter(torch.randn(3, dtype=torch.float16))
        self.register_buffer("flag", torch.tensor(True))


def randomized(seed: int) -> Tied:
    torch.manual_seed(seed)
    module = Tied()
    module.norm.num_batches_tracked.fill_(seed)
    module.norm.running_mean.normal_()
    module.flag.fill_(seed % 2 == 0)
    return module


def written(weights: FlatWeights) -> torch.Tensor:
    buffer = torch.zeros(weights.nbytes, dtype=torch.uint8)
    weights.write(buffer)
    return buffer


@pytest.mark.parametrize("adopt", [(False, False), (True, False), (False, True), (True, True)])
def test_everything_arrives(adopt):
    source, target = randomized(1), randomized(2)
    writer, reader = FlatWeights(source), FlatWeights(target)
    before = dict(target.named_parameters())
    for weights, adopts in zip((writer, reader), adopt, strict=True):
        if adopts:
            weights.adopt()
    assert writer.nbytes == reader.nbytes
    assert writer.nbytes % 64 == 0
    buffer = written(writer)
    with torch.no_grad():
        source.a.weight.zero_()  # the buffer holds a copy
    reader.read(buffer)
    expected = randomized(1).state_dict()
    assert all(torch.equal(expected[key], value) for key, value in target.state_dict().items())
    assert target.b.weight is target.a.weight
    assert all(parameter is before[name] for name, parameter in target.named_parameters())


def test_what_happens_to_the_module_after_adopt_is_seen():
    module = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with torch.inference_mode():
        weights = FlatWeights(module)
        weights.adopt()
    before = written(weights)
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, written(weights))
    module.weight = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    assert written(weights)[:8].view(torch.float32).tolist() == [3.0, 4.0]


@pytest.mark.parametrize("buffer", [torch.zeros(129, dtype=torch.uint8), torch.zeros(128)], ids=["size", "dtype"])
@pytest.mark.parametrize("method", [FlatWeights.write, FlatWeights.read])
def test_wrong_buffer(buffer, method):
    weights = FlatWeights(nn.Linear(2, 2))
    assert weights.nbytes == 128
    with pytest.raises(ValueError, match=r"weights of this module have 128 bytes, but those .* (129|512)\."):
        method(weights, buffer)


def test_where_a_policy_lies():
    here, there = nn.Linear(2, 2), nn.Linear(2, 2, device="meta")
    cpu, meta = torch.device("cpu"), torch.device("meta")
    found = [(module, device) for module in (here, there) for device in (cpu, meta) if is_on_device(module, device)]
    assert found == [(here, cpu), (there, meta)]
    assert is_on_device(here, torch.device("cpu", 0))
    assert is_on_device(len, meta)
    assert not is_on_device(nn.Sequential(here, there), cpu)


def test_what_cannot_be_copied_yet_and_what_is_nowhere():
    with pytest.raises(
        ValueError, match=r"the lazy parameter weight has no shape yet. Call the module once before you pass it"
    ):
        FlatWeights(nn.LazyLinear(2))
    for nothing in (FlatWeights(None), FlatWeights(nn.Identity())):
        nothing.adopt()
        nothing.read(written(nothing))
    FlatWeights(nn.Linear(2, 2, device="meta")).adopt()
    modules = nn.Linear(2, 2), nn.Linear(2, 2, device="meta"), nn.Identity(), len
    assert [device_of(each).type for each in modules] == ["cpu", "meta", "cpu", "cpu"]
