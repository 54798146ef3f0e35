"""Trainers and a user's policy over several observations: actor, critic and trainer agree on their order, and an error
names the observations."""

import json
import subprocess
import sys

import pytest
from commands import forked

# Episodes of one frame, whose reward is `heat`. In another order, `heat` would be a category that is always 0.
OWN = """
import gymnasium
import torch
from gymnasium import spaces
from torch import nn
from torch.distributions import Categorical

class Oven(gymnasium.Env):
    action_space = spaces.Discrete(2)
    observation_space = spaces.Dict(
        goal=spaces.Discrete(2), heat=spaces.Box(0, 1, ()), view=spaces.Dict(far=spaces.Box(0, 1, (2, 3)))
    )
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = {"goal": 1, "heat": self.np_random.random(), "view": {"far": self.np_random.random((2, 3))}}
        return self.seen, {"hour": 7.0}
    def step(self, action):
        return self.seen, float(self.seen["heat"]), True, False, {"hour": 7.0}

class Cook(nn.Module):
    def __init__(self, keys):
        super().__init__()
        self.observation_keys = [key if isinstance(key, str) else tuple(key) for key in keys]
        self.logits = nn.Parameter(torch.zeros(2))
    def forward(self, tensordict):
        parts = [tensordict[key] for key in self.observation_keys if key != "goals"]
        choice = Categorical(logits=self.logits.expand(*tensordict.shape, 2))
        action = choice.sample()
        return tensordict.update({"action": action, "action_log_prob": choice.log_prob(action)})
    def evaluate(self, observation, action):
        assert len(observation) == len(self.observation_keys)
        choice = Categorical(logits=self.logits.expand(*action.shape, 2))
        return choice.log_prob(action), choice.entropy()
"""
RUN = [
    *["env.id=null", "env.entry_point=own:Oven", "env.info_keys=[hour]", "policy=custom", "policy.target=own:Cook"],
    "trainer.learning_rate=0.01",
]
PPO = ["collector.total_frames=8192"]
IMPALA = ["collector=multi_async", "trainer=impala", "collector.total_frames=65536"]
ORDERS = ["[heat,goal]", "[view,[info,hour],heat]"]
LOAD = "import collectx; print([leaf.key for leaf in collectx.load_policy('{}').leaves])"


def last_critic_loss(folder):
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["scalars"]["critic_loss"]


@pytest.mark.parametrize(
    ("words", "orders"),
    [
        pytest.param(PPO, ORDERS, id="ppo"),
        pytest.param(IMPALA, ORDERS[:1], id="impala", marks=pytest.mark.nightly),
    ],
)
def test_the_critic_learns_in_every_order_of_keys(tmp_path, words, orders):
    (tmp_path / "own.py").write_text(OWN)
    keys = f"policy.kwargs.keys={','.join(orders)}"
    forked("run", "-m", *RUN, *words, keys, "hydra.sweep.dir=runs", cwd=tmp_path)
    points = [file.parent for file in (tmp_path / "runs").glob("*/result.json")]
    assert len(points) == len(orders)
    for point in points:
        assert last_critic_loss(point) < 0.02, point  # the variance of the reward is 0.083
        if "hour" in point.name:
            loaded = subprocess.check_output([sys.executable, "-c", LOAD.format(point)], cwd=tmp_path, text=True)
            assert "('info', 'hour')" in loaded


def test_a_key_that_no_batch_has_is_named(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    done = forked("run", *RUN, *PPO, "policy.kwargs.keys=[heat,goals]", "hydra.run.dir=run", cwd=tmp_path, status=1)
    assert "the policy's observation_keys name goals, but" in done.stderr
    assert "goal, heat" in done.stderr


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ([], "too. To see how: collectx docs your-policy"),
        (["collector.exploration_type=mode"], "too, or use collector.exploration_type=random, if it"),
    ],
)
def test_a_policy_that_writes_no_log_probability_is_refused_at_the_start(tmp_path, words, advice):
    text = OWN.replace(', "action_log_prob": choice.log_prob(action)', "")
    (tmp_path / "own.py").write_text(text)
    words = [*RUN, *PPO, "policy.kwargs.keys=[heat]", *words, "hydra.run.dir=run"]
    done = forked("run", *words, cwd=tmp_path, status=2)
    assert "trainer=ppo needs action_log_prob, but the policy Cook writes only action. Let it" in done.stderr
    assert advice in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("key", "note"),
    [
        ("'observation'", "observation has these parts: batch['goal'] and batch['heat'] and batch['view', 'far']\n"),
        ("'next', 'observation'", "observation has these parts: batch['goal'] and"),
        ("'rewards'", 'batch["next", "reward"]'),
        ("'reward'", 'what a step returns is below "next", as in TorchRL: batch["next", "reward"]'),
        ("'hours'", None),
    ],
)
def test_a_trainer_that_looks_for_a_key_that_no_batch_has_is_told_the_keys(tmp_path, key, note):
    trainer = f"class Trainer:\n    def train(self, batches):\n        next(batches)[{key}]\n"
    (tmp_path / "own.py").write_text(OWN + trainer)
    words = [*RUN[:-1], "policy.kwargs.keys=[heat]", "trainer=custom", "trainer.target=own:Trainer", "debug=tiny"]
    err = forked("run", *words, "hydra.run.dir=run", cwd=tmp_path, status=1).stderr
    assert f"KeyError: key {key.split()[-1].replace(chr(39), chr(34))} not found" in err
    assert note in err if note is not None else "parts" not in err and "below" not in err
