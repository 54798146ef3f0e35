"""What trainers do with batches: in which direction they learn, when they stop, their state, what they refuse."""

import copy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from composed_overrides import composed
from configurations import gym, through_a_file

from collectx import env, policy, trainer
from collectx.batch import TRAJ_IDS, to_tensordict
from collectx.config.schema.policy import MlpPolicyConfig
from collectx.config.schema.trainer import CustomTrainerConfig
from collectx.errors import ConfigError, TrainingDivergedError
from collectx.replay import ReplayBuffer
from collectx.trainer.actor_critic import Critic
from collectx.trainer.base import load_moments, present_keys, remaining_fraction
from collectx.trainer.learners import ALONE
from collectx.trainer.optimizer import check_finite
from collectx.user_objects import UserPolicyConfig

# On a busy machine threads wait for one another in every small operation.
torch.set_num_threads(1)
CPU = torch.device("cpu")
OVERRIDES = {
    "ppo": "trainer=ppo",
    "impala": "trainer=impala",
    "dqn": (dqn := "trainer=dqn policy=q_mlp trainer.warmup_frames=64"),
    "uniform dqn": (uniform := f"{dqn} trainer.priority_alpha=null"),
    "normalised ppo": "trainer=ppo policy.normalize_observations=true trainer.normalize_rewards=true",
    "normalised impala": "trainer=impala policy.normalize_observations=true trainer.normalize_rewards=true",
    "normalised dqn": f"{uniform} policy.normalize_observations=true",
}
SPEC = env.read_spec(gym(2))


class Recorded:
    """A `collectx.trainer.base.BatchCollection` of batches that are there already."""

    learners = ALONE

    def __init__(self, batches, num_episodes=0, mean_return=float("nan")):
        self.batches = list(batches)
        self.total_frames = sum(batch.numel() for batch in self.batches)
        self.frames = self.version = 0
        self.num_episodes, self.mean_return = num_episodes, mean_return
        self.scalars = []

    def __iter__(self):
        for batch in self.batches:
            self.frames += batch.numel()
            yield batch

    def publish(self, policy):
        self.version += 1
        return self.version

    def log(self, **scalars):
        self.scalars.append(scalars)


def bandit(num_batches, size=(2, 32)):
    """Yields episodes of one frame at random: action 1 has reward 1, action 0 none."""
    torch.manual_seed(0)
    ends = torch.ones(*size, 1, dtype=torch.bool)
    for number in range(num_batches):
        action = torch.randint(2, size)
        tensors = {
            ("observation",): torch.randn(*size, 4),
            ("action",): action,
            ("action_log_prob",): torch.full(size, 0.5).log(),
            ("next", "observation"): torch.randn(*size, 4),
            ("next", "reward"): action.float().unsqueeze(-1),
            TRAJ_IDS: torch.arange(action.numel()).view(size) + number * action.numel(),
            **{("next", name): ends & (name != "truncated") for name in ("terminated", "truncated", "done")},
        }
        yield to_tensordict(tensors, size)


def config(name):
    return composed(f"env=cartpole {OVERRIDES[name]}")


def made(name, seed=0, **fields):
    """Makes a trainer and its policy; `fields` are options of the trainer."""
    module = policy.build(config(name).policy, SPEC, seed)
    return trainer.build(replace(config(name).trainer, **fields), module, SPEC, seed, CPU), module


def preference(name, module, observation):
    """Tells how much more `module` makes of action 1 than of action 0."""
    if "dqn" in name:
        values = module([observation])
        return (values[:, 1] - values[:, 0]).mean().item()
    one, none = (module.evaluate([observation], torch.full((len(observation),), a))[0] for a in (1, 0))
    return (one - none).mean().item()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OVERRIDES)
def test_a_rewarded_action_becomes_more_likely(name):
    learner, module = made(name, learning_rate=1e-2, anneal=False)
    observation = torch.randn(256, 4, generator=torch.Generator().manual_seed(1))
    before = preference(name, module, observation)
    collection = Recorded(bandit(5))
    learner.train(collection)
    assert preference(name, module, observation) > before + 0.05
    assert collection.version == len(collection.scalars) == 5
    logged = {"actor_loss", "critic_loss", "entropy", "learning_rate"}
    if "dqn" in name:
        logged = {"epsilon", "loss", "value"}
    about_the_update = {"approx_kl", "clip_fraction", "explained_variance"} if "ppo" in name else set()
    assert set(collection.scalars[-1]) == logged | about_the_update


def rows(batch):
    """Returns observation, action, old log-probability and reward of each frame."""
    old = batch["action_log_prob"].flatten()
    return batch["observation"].flatten(0, 1), batch["action"].flatten(), old, batch["next", "reward"].flatten()


def assert_learned(learner, name, modules, steps):
    """Asserts that Adam's `steps`, functions that return a loss, make these copies what the trainer has learned."""
    options = {"lr": config(name).trainer.learning_rate, "eps": config(name).trainer.adam_eps}
    parameters = [weight for module in modules for weight in module.parameters()]
    optimizer = torch.optim.Adam(parameters, **options)
    for loss in steps:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    learned = [learner.policy, *([learner.critic] if len(modules) > 1 else [])]
    for mine, theirs in zip([weight for module in learned for weight in module.parameters()], parameters, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-6)


def trained(name, **fields):
    """Returns a learner after one batch of 64 frames, policy and critic as they were before, and what it trained on."""
    learner, module = made(name, **fields)
    expected, critic = copy.deepcopy(module), copy.deepcopy(learner.critic)
    (batch,) = bandit(1, (4, 16))
    batch["action_log_prob"] = torch.linspace(0.4, 0.6, 64).log().view(4, 16)
    collection = Recorded([batch])
    learner.train(collection)
    return learner, expected, critic, collection, batch


@pytest.mark.parametrize(
    ("num_epochs", "minibatch_size", "is_normalized"), [(1, 64, True), (2, 24, False), (1, 200, True)]
)
def test_the_steps_of_ppo_are_those_of_the_paper(num_epochs, minibatch_size, is_normalized):
    """The expected steps follow the formulas of Schulman et al. 2017, for episodes of one frame."""
    fields = {"num_epochs": num_epochs, "minibatch_size": minibatch_size, "normalize_advantage": is_normalized}
    fields |= {"clip_epsilon": 0.05, "entropy_coeff": 0.1, "critic_coeff": 0.3, "max_grad_norm": 1e9}
    learner, expected, critic, collection, batch = trained("ppo", **fields, anneal=False)
    observation, action, old, reward = rows(batch)
    advantage = reward - critic([observation]).detach()
    generator, logged, update = torch.Generator().manual_seed(0), [], []
    explained = 1 - (advantage.var() / reward.var()).item()

    def loss(index):
        x = [observation[index]]
        log_prob, entropy = expected.evaluate(x, action[index])
        gain = advantage[index]
        if is_normalized:
            gain = (gain - gain.mean()) / gain.var(unbiased=False).sqrt()
        ratio = log_prob.exp() / old[index].exp()
        actor_loss = -torch.minimum(ratio * gain, ratio.clamp(0.95, 1.05) * gain).mean()
        critic_loss = ((critic(x) - reward[index]) ** 2).mean()
        logged.append([actor_loss.item(), critic_loss.item(), entropy.mean().item()])
        clip_fraction = ((ratio < 0.95) | (ratio > 1.05)).double().mean()
        update.append([(ratio - 1 - ratio.log()).mean().item(), clip_fraction.item()])
        return actor_loss + 0.3 * critic_loss - 0.1 * entropy.mean()

    parts = {64: 1, 24: 3, 200: 1}[minibatch_size]
    orders = [torch.randperm(64, generator=generator) for _ in range(num_epochs)]
    minibatches = [part for order in orders for part in order.tensor_split(parts)]
    assert_learned(learner, "ppo", [expected, critic], [partial(loss, part) for part in minibatches])
    means = dict(zip(("actor_loss", "critic_loss", "entropy"), torch.tensor(logged).mean(0).tolist(), strict=True))
    last_epoch = torch.tensor(update[-parts:]).mean(0).tolist()
    means |= dict(zip(("approx_kl", "clip_fraction"), last_epoch, strict=True)) | {"explained_variance": explained}
    means["learning_rate"] = config("ppo").trainer.learning_rate
    assert collection.scalars == [pytest.approx(means, rel=1e-3, abs=1e-6)]


def test_equal_returns_have_no_variance_to_explain():
    learner, _ = made("ppo")
    (batch,) = bandit(1)
    batch["next", "reward"].fill_(0.7)
    collection = Recorded([batch])
    learner.train(collection)
    assert "explained_variance" not in collection.scalars[0]


def test_the_step_of_impala_is_that_of_the_paper():
    """The expected step follows the formulas of Espeholt et al. 2018, for episodes of one frame."""
    fields = {"rho_clip": 1.05, "entropy_coeff": 0.1, "critic_coeff": 0.3, "max_grad_norm": 1e9, "anneal": False}
    learner, expected, critic, collection, batch = trained("impala", **fields)
    observation, action, old, reward = rows(batch)
    logged = {}

    def loss():
        log_prob, entropy = expected.evaluate([observation], action)
        value = critic([observation])
        rho = (log_prob.exp() / old.exp()).clamp(max=1.05).detach()
        gain = rho * (reward - value.detach())
        logged["actor_loss"] = -(log_prob * gain).mean()
        logged["critic_loss"] = ((value - (value.detach() + gain)) ** 2).mean()
        logged["entropy"] = entropy.mean()
        return logged["actor_loss"] + 0.3 * logged["critic_loss"] - 0.1 * logged["entropy"]

    assert_learned(learner, "impala", [expected, critic], [loss])
    means = {name: each.item() for name, each in logged.items()}
    means["learning_rate"] = config("impala").trainer.learning_rate
    assert collection.scalars == [pytest.approx(means, rel=1e-4)]


@pytest.mark.parametrize("name", ["dqn", "uniform dqn"])
def test_the_steps_of_dqn_are_those_of_the_paper(name, monkeypatch):
    """The expected steps follow van Hasselt et al. 2016, with the weights of Schaul et al. 2016."""
    fields = {"updates_per_frame": 2.5 / 64, "batch_size": 8, "max_grad_norm": 1e9, "target_rate": 0.5, "gamma": 0.9}
    learner, module = made(name, **fields, anneal=False)
    expected = copy.deepcopy(module)
    samples, priorities, sample = [], [], ReplayBuffer.sample

    def recorded(buffer, size):
        samples.append(sample(buffer, size))
        return samples[-1]

    monkeypatch.setattr(ReplayBuffer, "sample", recorded)
    monkeypatch.setattr(ReplayBuffer, "update_priority", lambda buffer, *each: priorities.append(each))
    collection = Recorded(bandit(1))
    learner.train(collection)
    (drawn,) = samples
    assert drawn.shape == (16,)
    weight = drawn["priority_weight"] if name == "dqn" else torch.ones(16)
    errors, logged = [], []

    def loss(part):
        # Each episode ends with its first frame, so the target is its reward.
        values = expected([drawn["observation"][part]])
        value = values[torch.arange(8), drawn["action"][part]]
        error = (value - drawn["return"][part]).abs()
        errors.append(error.detach())
        huber = torch.where(error < 1, error**2 / 2, error - 0.5)
        mean = (huber * weight[part]).mean()
        logged.append([mean.item(), value.mean().item()])
        return mean

    assert_learned(learner, name, [expected], [partial(loss, part) for part in (slice(0, 8), slice(8, 16))])
    (scalars,) = collection.scalars
    means = torch.tensor(logged).mean(0).tolist()
    assert [scalars["loss"], scalars["value"]] == pytest.approx(means, rel=1e-4)
    assert len(priorities) == (name == "dqn")
    for index, priority in priorities:
        assert torch.equal(index, drawn["index"])
        torch.testing.assert_close(priority, torch.cat(errors), rtol=1e-4, atol=1e-6)
    assert learner.state_dict()["due_steps"] == 0.5


def test_the_target_network_of_dqn_follows_the_policy():
    learner, module = made("dqn", updates_per_frame=2 / 64, target_rate=0.25, learning_rate=0.1, anneal=False)
    before = learner.state_dict()["target"]
    before = {name: value.clone() for name, value in before.items()}
    learner.train(Recorded(bandit(1)))
    after = learner.state_dict()["target"]
    # Two steps, each a quarter of the way.
    for name, weight in module.named_parameters():
        assert (weight - before[name]).abs().max() > 0.1
        torch.testing.assert_close(after[name], torch.lerp(before[name], weight, 1 - 0.75**2))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OVERRIDES)
def test_observation_keys_may_be_names(name):
    module = policy.build(config(name).policy, SPEC, 0)
    module.observation_keys = ["observation"]
    collection = Recorded(bandit(2))
    trainer.build(config(name).trainer, module, SPEC, 0, CPU).train(collection)
    assert collection.version == 2


def test_the_networks_of_dqn_share_the_statistics_of_all_frames():
    learner, module = made("normalised dqn")
    batches = list(bandit(3))
    learner.train(Recorded(batches))
    seen = torch.cat([batch["observation"].reshape(-1, 4) for batch in batches]).double()
    target = learner.state_dict()["target"]
    for mean, variance in (
        (module.encode.mean, module.encode.variance),
        (target["encode.mean"], target["encode.variance"]),
    ):
        torch.testing.assert_close(mean, seen.mean(0))
        torch.testing.assert_close(variance, seen.var(0, correction=0))


def test_epsilon_falls_to_its_end():
    learner, module = made("dqn", epsilon_frames=128, epsilon_start=0.9, epsilon_end=0.1)
    assert module.epsilon.item() == pytest.approx(0.9)
    collection = Recorded(bandit(4))
    learner.train(collection)
    assert [each["epsilon"] for each in collection.scalars] == pytest.approx([0.5, 0.1, 0.1, 0.1])


@pytest.mark.parametrize(
    ("frames", "total", "left"), [(0, 8, 1), (2, 8, 0.75), (8, 8, 0), (9, 8, 0), (9, -1, 1), (9, 0, 1)]
)
def test_a_learning_rate_falls_with_the_frames_that_are_left(frames, total, left):
    assert remaining_fraction(SimpleNamespace(frames=frames, total_frames=total)) == left


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("num_episodes", "mean_return", "ends"), [(100, 20.0, True), (99, 20.0, False), (100, 19.9, False)]
)
@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_the_target_ends_a_run(name, num_episodes, mean_return, ends):
    # Batches of one env, which have no dimension for it.
    collection = Recorded(bandit(2, (64,)), num_episodes, mean_return)
    reason = made(name, target_return=20.0)[0].train(collection)
    assert collection.version == (0 if ends else 2)
    said = "reached trainer.target_return=20: the mean return of the last 100 episodes is 20"
    assert reason == (said if ends else None)


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_diverged_trainer_stops_before_it_publishes(name):
    fields = {"learning_rate": 1e38, "anneal": False}
    collection = Recorded(bandit(3))
    what = r"(loss|value|(critic|policy)\.\S+) .*(nan|inf) in gradient step [12]"
    words = rf"{what} of trainer=\w+: .*trainer.learning_rate \(now 1e\+38\)"
    with pytest.raises(TrainingDivergedError, match=words):
        made(name, **fields)[0].train(collection)
    assert collection.version == len(collection.scalars) == 0
    if name != "dqn":  # a prioritised buffer refuses NaN
        made(name, **fields, check_finite=False)[0].train(collection)
        assert collection.version == 3


def test_the_first_value_that_is_not_finite_is_named_with_its_step():
    """One of the modules had gradients in fewer steps."""
    cfg = config("ppo").trainer
    modules = {"policy": torch.nn.Linear(1, 1), "critic": torch.nn.Linear(1, 1, bias=False)}
    optimizer = torch.optim.Adam([weight for module in modules.values() for weight in module.parameters()])
    for step in range(5):
        optimizer.zero_grad()
        modules["policy"](torch.ones(1)).sum().backward()
        if step == 0:
            modules["critic"](torch.ones(1)).sum().backward()
        optimizer.step()
    losses, check = torch.zeros(3, 2), partial(check_finite, cfg, ["actor_loss", "critic_loss"])
    check(losses, modules, optimizer)
    losses[1, 1] = losses[2, 0] = torch.nan
    with pytest.raises(TrainingDivergedError, match="critic_loss is nan in gradient step 4 of trainer=ppo:"):
        check(losses, modules, optimizer)
    modules["critic"].weight.data[0] = torch.inf
    check = partial(check, torch.zeros(3, 2), modules, optimizer)
    with pytest.raises(
        TrainingDivergedError, match=r"the weight critic\.weight contains inf in gradient step 5 of trainer=ppo:"
    ):
        check()


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OVERRIDES)
def test_the_same_seed_learns_the_same_and_its_state_can_be_put_back(name):
    (first, module), (second, same), (third, restored) = (made(name, seed, anneal=False) for seed in (3, 3, 1))
    first.train(Recorded(bandit(3)))
    second.train(Recorded(bandit(3)))
    third.load_state_dict(first.state_dict())
    for other in (same, restored):
        torch.testing.assert_close(other.state_dict(), module.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(third.state_dict(), first.state_dict(), rtol=0, atol=0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OVERRIDES)
def test_a_restored_trainer_learns_on_as_the_saved_one(name, tmp_path):
    # A fraction of a step of DQN is due after each batch.
    fields = {"updates_per_frame": 0.02} if "dqn" in name else {}
    batches = list(bandit(6))
    (saved, _), (other, _) = made(name, seed=3, **fields), made(name, seed=1, **fields)
    saved.train(Recorded(batches[:3]))
    other.train(Recorded(batches[:1]))
    other.load_state_dict(through_a_file(saved.state_dict()))
    for key, buffer in getattr(saved, "replay_buffers", {}).items():
        buffer.dumps(tmp_path / key)
        other.replay_buffers[key].loads(tmp_path / key)
    logs = []
    for each in (saved, other):
        collection = Recorded(batches[3:])
        each.train(collection)
        logs.append(collection.scalars)
    assert logs[0] == logs[1] != []
    torch.testing.assert_close(other.state_dict(), saved.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", OVERRIDES)
@pytest.mark.parametrize("module", [None, torch.nn.Linear(4, 2)], ids=["random", "custom"])
def test_untrainable_policy(name, module):
    with pytest.raises(ConfigError, match="cannot train"):
        trainer.build(config(name).trainer, module, SPEC, 0, CPU)


def test_custom(monkeypatch):
    def build(target):
        return trainer.build(
            CustomTrainerConfig(kind="custom", digest=False, target=target, kwargs={}), None, SPEC, 0, CPU
        )

    assert hasattr(build("collectx.trainer.base:MeterTrainer"), "train")
    with pytest.raises(ConfigError, match="without a method train"):
        build("builtins:dict")
    with pytest.raises(ConfigError, match="is a function of the collection, but it must make a trainer"):
        build(f"{__name__}:trains")
    given = "trainer.kwargs.env is not set, .* or take what collectx passes: policy, spec, seed, device"
    with pytest.raises(ConfigError, match=given):
        build(f"{__name__}:OfAnEnv")
    with pytest.raises(ConfigError, match=r"Take spec, which collectx passes, and read spec\.action_space\.$"):
        build(f"{__name__}:OfASpace")
    monkeypatch.setattr("collectx.trainer.base.MeterTrainer.train", lambda self: None)
    with pytest.raises(ConfigError, match="its method train must take one argument, the batches"):
        build("collectx.trainer.base:MeterTrainer")
    for method, word in (("generates", "yield"), ("awaits", "async")):
        monkeypatch.setattr("collectx.trainer.base.MeterTrainer.train", globals()[method])
        with pytest.raises(ConfigError, match=f"contains `{word}`, so a call of it trains nothing"):
            build("collectx.trainer.base:MeterTrainer")


class OfAnEnv:
    def __init__(self, policy, env):
        self.env = env


class OfASpace:
    def __init__(self, action_space):
        self.action_space = action_space


def trains(collection, learning_rate=0.1):
    list(collection)


def generates(self, collection):
    yield from collection


async def awaits(self, collection):
    list(collection)


def test_initial_weights_do_not_depend_on_the_number_of_threads():
    weights = []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        actor = policy.build(MlpPolicyConfig(kind="mlp", hidden_sizes=[64, 64], activation="tanh"), SPEC, 0)
        modules = (
            actor,
            Critic(actor, SPEC, 0),
            policy.build(UserPolicyConfig(kind="python", policy=None, factory=orthogonal), SPEC, 0),
        )
        assert torch.get_num_threads() == threads
        weights.append([parameter for module in modules for parameter in module.parameters()])
    assert all(map(torch.equal, *weights))


def orthogonal():
    layer = torch.nn.Linear(64, 64)
    torch.nn.init.orthogonal_(layer.weight, generator=torch.Generator().manual_seed(0))
    torch.nn.init.zeros_(layer.bias)
    return layer


def test_dqn_expects_the_best_legal_action_and_nothing_after_an_end():
    """The network values the actions 0, 1, 2, 3, 4, whatever it observes."""
    spec = env.read_spec(gym(2, entry_point="worlds.masked:MaskedEnv"))
    module = policy.build(config("dqn").policy, spec, 0)
    with torch.no_grad():
        module.out.weight.zero_()
        module.out.bias.copy_(torch.arange(5.0))
    dqn = trainer.build(config("dqn").trainer, module, spec, 0, CPU)
    frames = {
        ("return",): torch.ones(3),
        ("discount",): torch.tensor([0.5, 0.5, 0.0]),
        ("next", "observation"): torch.zeros(3, 3),
        ("next", "action_mask"): torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0] * 5], dtype=torch.int8),
    }
    assert dqn._td_target(to_tensordict(frames, (3,))).tolist() == [3.0, 2.0, 1.0]


def test_a_restored_optimiser_keeps_the_learning_rate_that_a_resume_changed():
    weights = torch.nn.Parameter(torch.ones(2))
    saved = torch.optim.Adam([weights], lr=0.1)
    weights.sum().backward()
    saved.step()
    restored = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))], lr=0.7)
    load_moments(restored, saved.state_dict())
    assert restored.param_groups[0]["lr"] == 0.7
    (moments,) = restored.state_dict()["state"].values()
    assert torch.equal(moments["exp_avg"], saved.state_dict()["state"][0]["exp_avg"])


@pytest.mark.parametrize(
    ("keys", "found", "missing"),
    [
        (["observation"], [("observation",)], None),
        ([("nest", "a")], [("nest", "a")], None),
        (["observation", "nest"], [("observation",), ("nest",)], None),
        (["state"], None, "state"),
        (["observation", "last", ("nest", "b")], None, "last, nest.b"),
    ],
)
def test_keys_that_a_batch_has_for_each_frame_and_the_next(keys, found, missing):
    """`state` is there for the frames alone, `last` for the next ones."""
    column = torch.zeros(2, 1)
    nested = {("nest", "a"): column, ("next", "nest", "a"): column, ("next", "reward"): column}
    flat = {("observation",): column, ("next", "observation"): column, ("state",): column, ("next", "last"): column}
    batch = to_tensordict(flat | nested, (2,))
    if missing is None:
        assert present_keys(batch, keys) == found
        return
    with pytest.raises(ConfigError) as error:
        present_keys(batch, keys)
    text = str(error.value)
    assert text.startswith(f"the policy's observation_keys name {missing}, but the batches contain no such key")
    assert text.endswith("for each frame and the next: observation, nest.a.")
