"""Observations are normalised by statistics that equal NumPy's over all frames, however these arrive."""

import numpy as np
import pytest
import torch
from configurations import gym

from collectx import env, policy
from collectx.config.schema.policy import MlpPolicyConfig
from collectx.errors import ConfigError
from collectx.policy.exploration import ExplorationType
from collectx.policy.flat_weights import FlatWeights
from collectx.policy.normalize import Moments
from collectx.policy.stochastic import Flatten

CONFIG = MlpPolicyConfig(kind="mlp", normalize_observations=True)
SPEC = env.read_spec(gym(2))


def frames(count, scale=(1.0, 100.0, 1e-2, 5.0), shift=(0.0, 1000.0, 2.0, -7.0)):
    values = np.random.default_rng(0).normal(size=(count, 4)) * scale + shift
    return torch.from_numpy(values.astype(np.float32))


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_statistics_equal_those_of_numpy_for_any_number_of_workers(num_workers):
    rows = frames(1024)
    moments = Moments(4)
    for batch in rows.split(256):
        # Worker w has collected a part of each batch; parts stand one after another.
        moments.add(batch.view(-1, num_workers, 4).transpose(0, 1).reshape(-1, 4))
    assert moments.count == 1024
    values = rows.numpy().astype(np.float64)
    np.testing.assert_allclose(moments.mean, values.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.variance, values.var(0), rtol=1e-12)


def test_a_network_reads_normalised_observations_and_all_copies_have_the_statistics():
    module, copy = (policy.build(CONFIG, SPEC, 0) for _ in range(2))
    rows = frames(512)
    assert torch.equal(module.encode([rows]), rows.clamp(-10, 10))
    module.update_statistics([rows.view(4, 128, 4)])
    seen = module.encode([rows])
    torch.testing.assert_close(seen, (rows - rows.mean(0)) / rows.std(0, correction=0), rtol=1e-3, atol=1e-3)
    # As weights travel to a worker.
    weights = FlatWeights(copy)
    weights.adopt()
    flat = torch.zeros(weights.nbytes, dtype=torch.uint8)
    FlatWeights(module).write(flat)
    weights.read(flat)
    actor = policy.make_actor(copy, SPEC, torch.device("cpu"), ExplorationType.MODE)
    with torch.inference_mode():
        assert torch.equal(actor.act([rows[:2]])[0], module.head.mode(module([rows[:2]])))
    restored = policy.build(CONFIG, SPEC, 1)
    restored.load_state_dict(module.state_dict())
    assert torch.equal(restored([rows]), module([rows]))


def test_a_rare_observation_is_limited_and_a_constant_one_is_zero():
    module = policy.build(CONFIG, SPEC, 0)
    module.update_statistics([torch.tensor([[1.0, 2.0, 3.0, 0.1]] * 64) * torch.tensor([1, 1, 1, 0.0])])
    seen = module.encode([torch.tensor([[1.0, 2.0, 3.1, -1.0]])])
    assert seen.tolist() == [[0.0, 0.0, 10.0, -10.0]]


def test_discrete_parts_stay_one_hot():
    spec = env.read_spec(gym(2, entry_point="user_code.faulty:NotFinite", value=1.0, at=3))
    module = policy.build(CONFIG, spec, 0)
    values = {"count": torch.tensor([0, 1, 1, 2]), "pose": torch.tensor([[1.0, 0], [3, 0], [1, 0], [3, 0]])}
    observation = [values[key] for (key,) in module.observation_keys]
    module.update_statistics(observation)
    seen = module.encode(observation)
    is_one_hot = module.encode.encode.is_one_hot
    assert seen[:, is_one_hot].tolist() == torch.eye(9)[values["count"]].tolist()
    torch.testing.assert_close(seen[:, ~is_one_hot], torch.tensor([[-1.0, 0], [1, 0], [-1, 0], [1, 0]]))
    with pytest.raises(ConfigError, match="already one-hot"):
        policy.build(CONFIG, env.read_spec(gym(id="FrozenLake-v1")), 0)


def test_without_the_option_there_are_no_statistics():
    module = policy.build(MlpPolicyConfig(kind="mlp"), SPEC, 0)
    assert module.update_statistics is None
    assert type(module.encode) is Flatten
