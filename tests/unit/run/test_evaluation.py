"""`collectx eval`: complete episodes of the trained policy, in this process."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from composed_overrides import composed

from collectx.cli import eval as evaluating
from collectx.config.schema.env import TorchrlEnvConfig
from collectx.env import read_spec
from collectx.errors import EpisodeTooLongError
from collectx.run import execute
from collectx.run.after import evaluation
from collectx.run.after.evaluation import Evaluation
from collectx.trainer.actor_critic import PpoTrainer

_LINE = "collector=single collector.frames_per_batch=64 collector.total_frames=128"


@pytest.fixture
def run(tmp_path):
    def start(line):
        assert execute(composed(line), tmp_path / "run", []).status == "completed"
        return str(tmp_path / "run")

    return start


@pytest.fixture
def evaluate(capsys):
    """`evaluate(*words)` returns the exit status, what is printed and the last line of `evaluations.jsonl`."""

    def call(folder, *words):
        status = evaluating.main([folder, *words])
        printed = capsys.readouterr()
        if status:
            return status, printed.err, None
        return status, printed.out, json.loads(Path(folder, "evaluations.jsonl").read_text().splitlines()[-1])

    return call


def test_the_weights_are_those_that_the_run_has_saved(run, evaluate):
    folder, returns = run(_LINE), []
    weights = torch.load(Path(folder, "policy.pt"), weights_only=True)
    for action in range(2):
        # One action at all times, after which a pole falls soon.
        for name in weights:
            weights[name].zero_()
        (bias,) = (each for name, each in weights.items() if each.shape == (2,) and "bias" in name)
        bias[action] = 100
        torch.save(weights, Path(folder, "policy.pt"))
        status, text, found = evaluate(folder, "episodes=3")
        assert status == 0
        assert len(found["returns"]) == 3
        assert max(found["lengths"]) <= 11
        assert f"mean return {found['mean_return']:.6g} of 3 episodes" in text
        returns.append(found["returns"])
    assert returns[0] != returns[1]


def test_the_first_weights_of_a_failed_run_are_named(tmp_path, monkeypatch, capsys):
    said = "note: the run failed before it published weights (RuntimeError: boom), so these are its first ones"
    for batches in (0, 1):

        def fail(self, collection, batches=batches):
            for index, _ in enumerate(collection):
                if index == batches:
                    raise RuntimeError("boom")
                collection.publish(collection.policy)

        monkeypatch.setattr(PpoTrainer, "train", fail)
        assert execute(composed(_LINE), tmp_path / f"run{batches}", []).status == "failed"
        capsys.readouterr()
        assert evaluating.main([str(tmp_path / f"run{batches}"), "episodes=1"]) == 0
        assert (said in " ".join(capsys.readouterr().err.split())) is (batches == 0)


@pytest.mark.ci
def test_it_is_reproducible_and_greedy_by_default(run, evaluate):
    folder = run(_LINE)
    status, text, first = evaluate(folder, "episodes=4")
    assert status == 0
    low, high = first["interval"]
    assert low <= first["mean_return"] <= high
    assert f"mean return {first['mean_return']:.6g} (95% CI {low:.6g} to {high:.6g}) of 4 episodes" in text
    assert (len(first["returns"]), first["returns"]) == (4, first["lengths"])
    again = evaluate(folder, "episodes=4")[2]
    assert again.pop("time") > first.pop("time")
    assert again == first
    one = evaluate(folder, "exploration_type=random", "eval.episodes=4")[2]
    assert evaluate(folder, "exploration_type=random", "episodes=4")[2] | {"time": one["time"]} == one
    assert one["returns"] != first["returns"]
    assert evaluate(folder, "episodes=4", "eval.seed=7")[2]["returns"] != first["returns"]


@pytest.mark.ci
@pytest.mark.parametrize(
    "env",
    [
        "env=counting env.num_envs=3 env.episode_length=5",
        pytest.param("env=gym_vector env.id=CartPole-v1 env.num_envs=3", marks=pytest.mark.ci),
        "env=gym_vector env.id=CartPole-v1 env.num_envs=3 env.autoreset_mode=next_step",
        pytest.param("env=envpool env.id=CartPole-v1 env.num_envs=3", marks=pytest.mark.ci),
        pytest.param("env=torchrl env.target=user_code.torchrlenvs:serial", marks=pytest.mark.ci),
    ],
)
def test_any_kind_of_env_and_random_actions(run, evaluate, env):
    options = "collector=single collector.frames_per_batch=63 collector.total_frames=63 policy=random trainer=meter"
    folder = run(f"{env} env.num_envs=3 {options}")
    status, text, result = evaluate(folder, "episodes=5")
    assert status == 0, text
    assert len(result["returns"]) == 5
    assert min(result["lengths"]) > 0
    if "counting" in env:
        assert result["lengths"] == [5, 6, 7, 5, 6]


@pytest.mark.ci
def test_short_episodes_are_not_preferred(run, evaluate):
    """Each env contributes equally many episodes, whichever end first."""
    options = f"{_LINE} policy=random trainer=meter env=counting env.num_envs=2 env.episode_length=3"
    assert evaluate(run(options), "episodes=6")[2]["lengths"] == [3, 4] * 3


@pytest.mark.ci
def test_trajectories_are_cut_as_in_the_run(run, evaluate):
    folder = run(f"{_LINE} collector.max_frames_per_traj=5")
    assert evaluate(folder, "episodes=3")[2]["lengths"] == [5, 5, 5]


@pytest.mark.ci
def test_an_evaluation_leaves_out_one_normaliser_and_uses_the_statistics_of_the_other(run, evaluate):
    folder = run(f"{_LINE} env.wrappers=[NormalizeObservation,NormalizeReward]")
    both = evaluate(folder, "episodes=2")[2]
    status, _, found = evaluate(folder, "episodes=2", "eval.env.wrappers=[NormalizeObservation]")
    assert status == 0
    assert found["returns"] == found["lengths"] == both["lengths"]
    assert both["returns"] != both["lengths"]


@pytest.mark.ci
def test_videos(run, evaluate, tmp_path):
    folder = run(_LINE)
    _, text, result = evaluate(folder, "episodes=2", "video=true")
    (where,) = re.findall(r"^videos in .*run/(videos/.+)$", text, re.MULTILINE)
    assert result["videos"] == [f"{where}/eval-episode-{number}.mp4" for number in (0, 1)]
    assert all((tmp_path / "run" / each).stat().st_size > 1000 for each in result["videos"])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            "env=envpool env.id=CartPole-v1",
            "cannot be used with env=envpool, because only single Gymnasium envs render",
        ),
        ("env.id=null env.entry_point=user_code.cartpoles:with_pid", "the env cannot render: TypeError"),
        ("env.id=null env.entry_point=user_code.cartpoles:Unseen", "Unseen has no render(). Write one that returns"),
    ],
)
def test_an_env_that_cannot_render_is_refused_before_anything_runs(run, evaluate, env, message, monkeypatch):
    folder = run(f"{_LINE} {env} policy=random trainer=meter")
    monkeypatch.setattr(evaluation, "evaluate", None)
    status, text, _ = evaluate(folder, "video=true")
    assert status == 2
    assert message in text


@pytest.mark.ci
def test_without_moviepy_the_extra_is_named(run, evaluate, monkeypatch):
    folder = run(_LINE)
    monkeypatch.setattr(evaluation, "find_spec", lambda name: None)
    assert (
        "eval.video=true needs moviepy. Install it: pip install 'collectx[video]'" in evaluate(folder, "video=true")[1]
    )


def counted(num_envs, episodes, shortest=3, limit="null"):
    """Evaluates counters whose episodes in env e end after `shortest` + e frames; returns result and messages."""
    options = "policy=random trainer=meter collector=single collector.frames_per_batch=12"
    sizes = f"env.episode_length={shortest} env.num_envs={num_envs} eval.episodes={episodes}"
    cfg, said = composed(f"env=counting {options} {sizes} eval.max_frames_per_episode={limit}"), []
    try:
        return evaluation.evaluate(cfg, None, read_spec(cfg.env), said.append), said
    except EpisodeTooLongError as error:
        return str(error), said


@pytest.mark.parametrize(("num_envs", "episodes"), [(1, 1), (1, 2), (2, 1), (2, 3), (2, 4), (3, 5)])
def test_each_env_has_as_many_of_the_evaluated_episodes(num_envs, episodes, monkeypatch):
    monkeypatch.setattr(evaluation, "_SAY_S", -1.0)
    found, said = counted(num_envs, episodes)
    assert found.lengths == [3 + each % num_envs for each in range(episodes)]
    assert found.returns == [length * (length + 1) / 2 for length in found.lengths]
    assert said == [f"{episodes} of {episodes} episodes have ended"]


def test_what_only_training_needs_is_not_asked_of_evaluated_envs():
    """A trainer that learns needs one reward; an evaluation sums several."""
    cfg = composed("env=counting trainer=meter policy=random eval.episodes=1 collector.max_frames_per_traj=5")
    cfg.trainer = composed("env=counting trainer=ppo policy=mlp").trainer
    cfg.env = TorchrlEnvConfig(kind="torchrl", num_envs=1, target="user_code.torchrlenvs:TwoRewards")
    assert evaluation.evaluate(cfg, None, read_spec(cfg.env), print).lengths == [5]


def test_what_is_said_of_long_episodes(monkeypatch):
    monkeypatch.setattr(evaluation, "_SAY_S", -1.0)
    assert counted(2, 3, 100, 101)[1] == [
        "0 of 3 episodes have ended; the longest of the others has 64 frames",
        "2 of 3 episodes have ended; the longest of the others has 28 frames",
        "2 of 3 episodes have ended; the longest of the others has 92 frames",
        "3 of 3 episodes have ended",
    ]
    advice = "End episodes after N frames with collector.max_frames_per_traj=N, or raise the limit."
    for num_envs, shortest, limit, words in (
        (2, 100, 100, "2 of 3 episodes have ended, and one has 101 frames"),
        (2, 100, 63, "0 of 3 episodes have ended, and one has 64 frames without an end"),
        (1, 1000, 128, "0 of 3 episodes have ended, and one has 192 frames without an end"),
    ):
        assert counted(num_envs, 3, shortest, limit)[0] == f"{words} (eval.max_frames_per_episode={limit}). {advice}"


@pytest.mark.parametrize(
    ("returns", "metrics", "expected"),
    [
        ([2.0], {}, {"mean_return": 2.0, "interval": None, "mean_length": 1.0}),
        ([3.0, 3.0], {"speed": 0.5}, {"mean_return": 3.0, "interval": None, "mean_length": 1.5}),
        ([3.0] * 4, {}, {"mean_return": 3.0, "interval": (3.0, 3.0), "mean_length": 2.5}),
    ],
)
def test_the_content_of_the_file(returns, metrics, expected):
    lengths = [*range(1, len(returns) + 1)]
    expected = expected | ({"metrics": metrics} if metrics else {}) | {"returns": returns, "lengths": lengths}
    assert Evaluation(returns, lengths, metrics).as_json() == expected


@pytest.mark.nightly
def test_the_interval_covers_the_mean():
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(40):
        low, high = Evaluation([*generator.normal(size=30)], [1] * 30).interval
        covered += low < 0 < high
    assert 34 <= covered <= 39
    assert Evaluation([1.0], [1]).interval is None
