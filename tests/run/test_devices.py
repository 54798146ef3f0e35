import pytest
import torch

from collectx.config import DevicesConfig
from collectx.errors import ConfigError
from collectx.run.devices import training_device


def test_the_trainer_learns_where_the_policy_acts():
    assert training_device(DevicesConfig("cpu", None, None, None)) == torch.device("cpu")
    assert training_device(DevicesConfig(None, None, None, None)) == torch.device("cpu")
    assert training_device(DevicesConfig("cpu", None, "meta", None)) == torch.device("meta")


def test_every_device_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError) as caught:
        training_device(DevicesConfig("cuda", "gpu", None, "cpu"))
    first, second = caught.value.problems
    assert first == "devices.device=cuda: torch sees no GPU on this machine: use devices=cpu."
    assert second.startswith("devices.storing_device=gpu is no device of torch")


def test_a_gpu_too_many(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert training_device(DevicesConfig("cuda:1", None, None, None)) == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="cuda:0 to cuda:1"):
        training_device(DevicesConfig("cuda:2", None, None, None))
