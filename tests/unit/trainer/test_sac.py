"""SAC takes the steps of Haarnoja et al. 2018, its state can be restored, and squashed actions have the density that is
told."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from composed_overrides import composed
from configurations import through_a_file
from gymnasium import spaces

from collectx import env, policy, trainer
from collectx.batch import TRAJ_IDS, to_tensordict
from collectx.errors import ConfigError, SpaceError
from collectx.policy.exploration import ExplorationType
from collectx.trainer.learners import ALONE

torch.set_num_threads(1)
CPU = torch.device("cpu")
CFG = composed("experiment=pendulum_sac policy.hidden_sizes=[16] trainer.warmup_frames=64")
NORMALIZED = composed("experiment=pendulum_sac policy.normalize_observations=true trainer.warmup_frames=64")
SPEC = env.read_spec(CFG.env)


class Recorded:
    """A `collectx.trainer.base.BatchCollection` of batches that are there already."""

    learners = ALONE

    def __init__(self, batches):
        self.batches = list(batches)
        self.total_frames = sum(batch.numel() for batch in self.batches)
        self.frames, self.num_episodes, self.mean_return, self.scalars = 0, 0, float("nan"), []

    def __iter__(self):
        for batch in self.batches:
            self.frames += batch.numel()
            yield batch

    def publish(self, policy):
        return 0

    def log(self, **scalars):
        self.scalars.append(scalars)


def pushes(num_batches, size=(2, 32)):
    """Yields frames whose reward is higher the more the action pushes; every eighth frame terminates."""
    torch.manual_seed(0)
    for number in range(num_batches):
        action = torch.rand(*size, 1) * 4 - 2
        ends = (torch.arange(size[1]) % 8 == 7).expand(size).unsqueeze(-1)
        tensors = {
            ("observation",): torch.randn(*size, 3),
            ("action",): action,
            ("next", "observation"): torch.randn(*size, 3),
            ("next", "reward"): action / 2,
            TRAJ_IDS: torch.arange(action.numel()).view(size) + number * action.numel(),
            **{("next", name): ends & (name != "truncated") for name in ("terminated", "truncated", "done")},
        }
        yield to_tensordict(tensors, size)


def made(seed=0, cfg=CFG, **fields):
    """Makes a trainer and its policy; `fields` are options of the trainer."""
    module = policy.build(cfg.policy, SPEC, seed)
    return trainer.build(replace(cfg.trainer, **fields), module, SPEC, seed, CPU), module


@pytest.mark.parametrize("entropy_coeff", [None, 0.3], ids=["learned", "fixed"])
def test_the_steps_of_sac_are_those_of_the_paper(entropy_coeff, monkeypatch):
    """Haarnoja et al. 2018, algorithm 1: equations 5 and 6 (critics), 9 (actor), 18 (coefficient), and the soft update
    of the targets. The density of a squashed action is that of torch."""
    fields = {"updates_per_frame": 2 / 64, "batch_size": 8, "target_rate": 0.25, "gamma": 0.9, "learning_rate": 1e-2}
    learner, actor = made(entropy_coeff=entropy_coeff, **fields)
    actor, critic = copy.deepcopy(actor), copy.deepcopy(learner.critic)
    target = copy.deepcopy(critic)
    log_alpha = torch.tensor(math.log(entropy_coeff or 1.0), requires_grad=entropy_coeff is None)
    optimizers = [torch.optim.Adam(each, lr=1e-2) for each in ([*actor.parameters()], [*critic.parameters()])]
    coefficient = torch.optim.Adam([log_alpha], lr=1e-2)
    buffer = learner.replay_buffers["replay"]
    samples, sample = [], buffer.sample
    monkeypatch.setattr(buffer, "sample", lambda size: samples.append(sample(size)) or samples[-1])
    collection = Recorded(pushes(1))
    torch.manual_seed(7)
    learner.train(collection)
    (drawn,) = samples
    torch.manual_seed(7)

    def q(networks, observation, action):
        x = torch.cat((observation, action / 2), -1)  # actions of Pendulum are in [-2, 2]
        return torch.stack([network(x).squeeze(-1) for network in networks.networks])

    def act(observation):
        mean, log_std = actor.out(actor.body(observation)).chunk(2, -1)
        x = mean + torch.randn_like(mean) * log_std.exp()
        normal = torch.distributions.Normal(mean, log_std.exp())
        return 2 * x.tanh(), (normal.log_prob(x) - (1 - x.tanh() ** 2).log()).sum(-1)

    logged = []
    for part in (slice(0, 8), slice(8, 16)):
        seen, following, done = drawn["observation"][part], drawn["next", "observation"][part], drawn["discount"][part]
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            action, log_prob = act(following)
            value = q(target, following, action).min(0).values - alpha * log_prob
            expected = drawn["action"][part, 0] / 2 + done * value
        assert {round(each, 3) for each in done.tolist()} <= {0.0, 0.9}
        values = q(critic, seen, drawn["action"][part])
        critic_loss = sum(((each - expected) ** 2 / 2).mean() for each in values)
        optimizers[1].zero_grad()
        critic_loss.backward()
        optimizers[1].step()
        action, log_prob = act(seen)
        actor_loss = (alpha * log_prob - q(critic, seen, action).min(0).values).mean()
        optimizers[0].zero_grad()
        actor_loss.backward()
        optimizers[0].step()
        if entropy_coeff is None:
            coefficient.zero_grad()
            (-log_alpha.exp() * (log_prob.detach() + -1).mean()).backward()  # the target entropy of one dimension: -1
            coefficient.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                old.mul_(0.75).add_(new, alpha=0.25)
        row = (actor_loss, critic_loss, -log_prob.mean(), alpha, values.mean())
        logged.append(torch.stack([each.detach() for each in row]))
    modules, state = {"policy": actor, "critic": critic, "target": target}, learner.state_dict()
    learned = {"policy": learner.policy.state_dict()} | {name: state[name] for name in ("critic", "target")}
    for name, module in modules.items():
        torch.testing.assert_close(learned[name], module.state_dict(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(learner.state_dict()["log_alpha"], log_alpha.detach(), rtol=1e-4, atol=1e-6)
    means = torch.stack(logged).mean(0).tolist()
    assert [*collection.scalars[0].values()] == pytest.approx(means, rel=1e-3, abs=1e-5)


def test_a_rewarded_action_is_chosen():
    learner, module = made(updates_per_frame=1.0, batch_size=64, learning_rate=1e-2, entropy_coeff=0.01)
    learner.train(Recorded(pushes(3)))
    observation = torch.randn(256, 3)
    assert module.head.mode(module([observation])).mean() > 1


@pytest.mark.parametrize("cfg", [CFG, NORMALIZED], ids=["", "normalised"])
def test_a_restored_trainer_learns_on_as_the_saved_one(cfg, tmp_path):
    batches = list(pushes(6))
    fields = {"updates_per_frame": 0.05}
    (saved, _), (other, _) = made(3, cfg, **fields), made(1, cfg, **fields)
    saved.train(Recorded(batches[:3]))
    other.train(Recorded(batches[:1]))
    other.load_state_dict(through_a_file(saved.state_dict()))
    saved.replay_buffers["replay"].dumps(tmp_path)
    other.replay_buffers["replay"].loads(tmp_path)
    logs = []
    for each in (saved, other):
        collection = Recorded(batches[3:])
        torch.manual_seed(2)
        each.train(collection)
        logs.append(collection.scalars)
    assert logs[0] == logs[1]
    assert logs[0][-1].keys() == {"actor_loss", "critic_loss", "entropy", "entropy_coeff", "value"}
    torch.testing.assert_close(other.state_dict(), saved.state_dict(), rtol=0, atol=0)


def test_without_its_buffer_a_trainer_waits_until_there_are_frames_again():
    learner, _ = made(updates_per_frame=0.05)
    batches = list(pushes(4, (2, 16)))
    collection = Recorded(batches)
    collection.frames = 10_000
    learner.train(collection)
    assert [bool(scalars) for scalars in collection.scalars] == [False, True, True, True]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_squashed_actions_stay_within_their_bounds_and_have_their_density(dtype):
    space = spaces.Box(np.array([-0.1, 3.0], dtype), np.array([0.3, 8.0], dtype), dtype=dtype)
    spec = replace(SPEC, action_space=space, action=(replace(SPEC.action[0], shape=(2,), dtype=getattr(torch, dtype)),))
    module = policy.build(CFG.policy, spec, 0)
    with torch.no_grad():
        module.out.weight.zero_()
        module.out.bias.copy_(torch.tensor([0.5, -0.3, -0.2, 0.1]))
        seen = [torch.zeros(20_000, 3)]
        action, log_prob = policy.make_actor(module, replace(spec, num_envs=20_000), CPU, ExplorationType.RANDOM).act(
            seen
        )
        (mode,) = policy.make_actor(module, spec, CPU, ExplorationType.MEAN).act([seen[0][:1]])
        module.out.bias.copy_(torch.tensor([60.0, -60.0, 1.0, 1.0]))
        extreme, finite = module.rsample(seen)
    assert action.dtype is getattr(torch, dtype)
    assert all(map(space.contains, (*action.numpy(), *mode.numpy(), *extreme.numpy())))
    assert finite.isfinite().all()
    normal = torch.distributions.Normal(torch.tensor([0.5, -0.3]), torch.tensor([-0.2, 0.1]).exp())
    transforms = [
        torch.distributions.TanhTransform(cache_size=1),
        torch.distributions.AffineTransform(torch.tensor([0.1, 5.5]), torch.tensor([0.2, 2.5])),
    ]
    theirs = torch.distributions.TransformedDistribution(normal, transforms).log_prob(action.float()).sum(-1)
    inside = ((action.float() - torch.tensor([0.1, 5.5])) / torch.tensor([0.2, 2.5])).abs().amax(-1) < 0.99
    torch.testing.assert_close(log_prob[inside], theirs[inside].float(), rtol=1e-3, atol=1e-3)
    expected = torch.tensor([0.5, -0.3]).tanh() * torch.tensor([0.2, 2.5]) + torch.tensor([0.1, 5.5])
    torch.testing.assert_close(mode[0].float(), expected)


class Users(torch.nn.Module):
    """A user's policy of two tensors."""

    observation_keys = ("observation",)

    def __init__(self):
        super().__init__()
        self.mean, self.log_std = torch.nn.Linear(3, 1), torch.nn.Parameter(torch.zeros(1))

    def rsample(self, observation):
        normal = torch.distributions.Normal(self.mean(observation[0]), self.log_std.exp())
        x = normal.rsample()
        return 2 * x.tanh(), (normal.log_prob(x) - (2 * (1 - x.tanh() ** 2) + 1e-6).log()).sum(-1)


def test_sac_trains_a_module_with_rsample_and_refuses_others():
    module = Users()
    before = copy.deepcopy(module)
    learner = trainer.build(replace(CFG.trainer, updates_per_frame=0.1), module, SPEC, 0, CPU)
    learner.train(Recorded(pushes(2)))
    assert not torch.equal(before.mean.weight, module.mean.weight)
    with pytest.raises(ConfigError, match=r"trainer=sac cannot train .*rsample"):
        trainer.build(CFG.trainer, torch.nn.Linear(3, 1), SPEC, 0, CPU)
    discrete = replace(SPEC, action_space=spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"trainer=sac needs a Box as action space, but the env's is Discrete\(2\)"):
        trainer.build(CFG.trainer, module, discrete, 0, CPU)


@pytest.mark.parametrize(
    ("space", "advice"),
    [(spaces.Discrete(2), "Use trainer=ppo policy=mlp"), (spaces.Box(-math.inf, 1, (1,)), "such as ClipAction")],
    ids=["discrete", "unbounded"],
)
def test_squashed_policy_refuses_spaces_without_bounds(space, advice):
    with pytest.raises(SpaceError, match=rf"policy=squashed_mlp needs a Box of floats with finite bounds.*{advice}"):
        policy.build(CFG.policy, replace(SPEC, action_space=space), 0)
