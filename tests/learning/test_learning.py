"""Each learning trainer learns CartPole-v1, from a collection in this process."""

import pytest
import torch

from collectx import trainer
from collectx.config import (
    CustomTrainerConfig,
    DqnTrainerConfig,
    ImpalaTrainerConfig,
    MeterTrainerConfig,
    MlpPolicyConfig,
    PpoTrainerConfig,
    QMlpPolicyConfig,
)
from collectx.errors import ConfigError
from collectx.policy import build

CPU = torch.device("cpu")
COMMON = {
    "digest": False,
    "learning_rate": 1e-3,
    "anneal": True,
    "gamma": 0.98,
    "critic_coeff": 0.5,
    "max_grad_norm": 0.5,
}


def ppo(target_return):
    return PpoTrainerConfig(
        kind="ppo",
        gae_lambda=0.8,
        num_epochs=10,
        minibatch_size=256,
        clip_epsilon=0.2,
        entropy_coeff=0.0,
        normalize_advantage=True,
        target_return=target_return,
        **COMMON,
    )


def impala(target_return):
    return ImpalaTrainerConfig(
        kind="impala", rho_clip=1.0, c_clip=1.0, entropy_coeff=0.01, target_return=target_return, **COMMON
    )


def dqn(target_return, priority_alpha=None, warmup_frames=1000):
    return DqnTrainerConfig(
        kind="dqn",
        digest=False,
        learning_rate=1e-3,
        anneal=True,
        gamma=0.99,
        num_steps=10,
        buffer_frames=50_000,
        warmup_frames=warmup_frames,
        batch_size=64,
        updates_per_frame=0.25,
        target_rate=0.02,
        epsilon_start=1.0,
        epsilon_end=0.01,
        epsilon_frames=8000,
        priority_alpha=priority_alpha,
        priority_beta=0.4,
        max_grad_norm=10.0,
        target_return=target_return,
    )


def policy_for(spec, seed, kind="ppo"):
    if kind == "dqn":
        return build(QMlpPolicyConfig("q_mlp", [128, 128], "relu"), spec, seed)
    return build(MlpPolicyConfig("mlp", [64, 64], "tanh"), spec, seed)


@pytest.fixture(autouse=True)
def one_thread():
    """As in a run; the few threads of a small machine would only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def learn(cfg, in_process, spec_of, rows, steps, total_frames, seed=0, lag=0):
    spec = spec_of(rows)
    policy = policy_for(spec, seed, cfg.kind)
    collection = in_process(policy, spec, steps, total_frames, seed, lag)
    trainer.build(cfg, policy, spec, seed, CPU).train(collection)
    return collection


def test_ppo_learns(in_process, spec_of):
    collection = learn(ppo(100.0), in_process, spec_of, 32, 32, 200_000)
    assert collection.mean_return >= 100
    assert collection.frames < 100_000
    assert set(collection.losses[0]) == {"actor_loss", "critic_loss", "entropy"}
    assert collection.versions == len(collection.losses)


def test_impala_learns_with_lag(in_process, spec_of):
    collection = learn(impala(70.0), in_process, spec_of, 16, 16, 300_000, lag=2)
    assert collection.mean_return >= 70
    assert collection.frames < 150_000


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "priority_alpha", [pytest.param(None, id="uniform", marks=pytest.mark.ci), pytest.param(0.6, id="prioritized")]
)
def test_dqn_learns_with_lag(in_process, spec_of, priority_alpha):
    """Random actions give 22, and with epsilon still high in the first frames no policy is near the target."""
    collection = learn(dqn(100.0, priority_alpha), in_process, spec_of, 8, 32, 48_000, lag=2)
    assert collection.mean_return >= 100
    assert collection.frames < 40_000
    assert set(collection.losses[-1]) == {"epsilon", "loss", "value"}
    assert collection.losses[0]["epsilon"] > 0.95
    assert collection.losses[-1]["epsilon"] == pytest.approx(0.01)


@pytest.mark.ci
@pytest.mark.timeout(900)  # 20 to 40 s of processor time
@pytest.mark.parametrize("seed", range(3))
def test_dqn_solves(in_process, spec_of, seed):
    assert learn(dqn(475.0, 0.6), in_process, spec_of, 8, 32, 200_000, seed, lag=2).mean_return >= 475


@pytest.mark.ci
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_ppo_solves(in_process, spec_of, seed):
    assert learn(ppo(475.0), in_process, spec_of, 32, 32, 200_000, seed).mean_return >= 475


@pytest.mark.ci
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
def test_impala_solves(in_process, spec_of, seed):
    assert learn(impala(475.0), in_process, spec_of, 16, 16, 600_000, seed, lag=2).mean_return >= 475


def test_rows_without_env_dimension_and_state(in_process, spec_of):
    spec = spec_of(1)
    policy = policy_for(spec, 0)
    first = trainer.build(ppo(None), policy, spec, 0, CPU)
    first.train(in_process(policy, spec, 64, 128, 0))
    state = first.state_dict()
    other = policy_for(spec, 1)
    second = trainer.build(ppo(None), other, spec, 1, CPU)
    second.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), other.parameters(), strict=True))


def test_dqn_goes_on_from_its_state(in_process, spec_of):
    spec = spec_of(1)
    cfg = dqn(None, 0.6, warmup_frames=32)
    policy = policy_for(spec, 0, "dqn")
    first = trainer.build(cfg, policy, spec, 0, CPU)
    first.train(in_process(policy, spec, 32, 128, 0))
    other = policy_for(spec, 1, "dqn")
    second = trainer.build(cfg, other, spec, 1, CPU)
    second.load_state_dict(first.state_dict())
    assert torch.equal(policy.epsilon, other.epsilon)
    for one, two in zip(policy.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    state = second.state_dict()["target"]
    assert all(torch.equal(state[key], value) for key, value in first.state_dict()["target"].items())


@pytest.mark.parametrize("cfg", [ppo(None), dqn(None, 0.6, warmup_frames=32)], ids=["ppo", "dqn"])
def test_same_seed_same_weights(cfg, in_process, spec_of):
    def weights():
        spec = spec_of(2)
        policy = policy_for(spec, 3, cfg.kind)
        trainer.build(cfg, policy, spec, 3, CPU).train(in_process(policy, spec, 16, 64, 3))
        return list(policy.parameters())

    assert all(torch.equal(a, b) for a, b in zip(weights(), weights(), strict=True))


def test_meter_takes_everything(in_process, spec_of):
    spec = spec_of(2)
    collection = in_process(policy_for(spec, 0), spec, 8, 64, 0)
    meter = trainer.build(MeterTrainerConfig("meter", False), None, spec, 0, CPU)
    meter.train(collection)
    assert collection.frames == 64
    assert meter.state_dict() == {}


@pytest.mark.parametrize("cfg", [ppo(None), impala(None), dqn(None)], ids=["ppo", "impala", "dqn"])
@pytest.mark.parametrize("policy", [None, torch.nn.Linear(4, 2)], ids=["random", "custom"])
def test_untrainable_policy(cfg, policy, spec_of):
    with pytest.raises(ConfigError, match="cannot train"):
        trainer.build(cfg, policy, spec_of(1), 0, CPU)


def test_custom(spec_of):
    cfg = CustomTrainerConfig("custom", False, "collectx.trainer.meter:MeterTrainer", {})
    assert hasattr(trainer.build(cfg, None, spec_of(1), 0, CPU), "train")
    with pytest.raises(ConfigError, match="no train"):
        trainer.build(CustomTrainerConfig("custom", False, "builtins:dict", {}), None, spec_of(1), 0, CPU)
