"""`policy.init_from`: a run begins with the weights of another run or of a file, and needs neither afterwards."""

import json
import shutil

import pytest
import torch
from commands import collectx, forked

from collectx.run import RunFolder

SMALL = ["launcher=inline", "collector=single", "collector.frames_per_batch=128", "collector.total_frames=512"]
# So small that float32 weights stay as they are.
STILL = ["trainer.learning_rate=1e-30", "trainer.anneal=false"]
KINDS = {
    "ppo": [],
    "dqn": ["trainer=dqn", "policy=q_mlp", "trainer.warmup_frames=128"],
    "sac": ["env=pendulum", "trainer=sac", "policy=squashed_mlp", "trainer.warmup_frames=128", "trainer.batch_size=8"],
    "users": ["policy=custom", "policy.target=linear:Policy", "trainer=meter"],
}
POLICY = """
import torch

class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, observation):
        return self.layer(observation).argmax(-1)
"""


def weights(path):
    content = torch.load(path, weights_only=True)
    return {name: value for name, value in content.items() if name != "head.epsilon"}


def is_equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.ci] * (kind != "ppo")) for kind in KINDS])
def test_a_run_begins_with_the_weights_of_a_run_that_it_does_not_need_afterwards(tmp_path, kind):
    (tmp_path / "linear.py").write_text(POLICY)
    words = [*SMALL, *KINDS[kind]]
    forked("run", *words, "hydra.run.dir=old", cwd=tmp_path)
    old, new = RunFolder(tmp_path / "old"), RunFolder(tmp_path / "new")
    still = [] if kind == "users" else STILL
    more = ["policy.init_from=old", "seed=1", "trainer.digest=true", "run.max_batches=2", "hydra.run.dir=new"]
    said = collectx("run", *words, *still, *more, cwd=tmp_path).stdout
    has_critic = kind in ("ppo", "sac")
    assert f"the policy {'and the critic begin' if has_critic else 'begins'} with weights of {old.path}" in said
    assert is_equal(weights(old.policy), weights(new.policy))
    if has_critic:
        before, after = (torch.load(each.final_checkpoint, weights_only=True)["critic"] for each in (old, new))
        assert is_equal(before, after)
    facts = new.read_meta()["init_from"]
    assert (facts["path"], facts["frames"], facts["left_out"]) == (str(old.path), 512, [])
    shutil.rmtree(old.path)
    repeated = forked("reproduce", "new", "hydra.run.dir=repeated", cwd=tmp_path)
    assert "identical: all 2 batches are identical" in repeated.stdout
    forked("eval", "new", "eval.episodes=1", cwd=tmp_path)
    forked("resume", "new", "run.max_batches=3", cwd=tmp_path)
    assert json.loads(new.result.read_text())["batches"] == 3


def test_weights_that_do_not_fit_are_refused_or_those_that_fit_are_loaded(tmp_path):
    forked("run", *SMALL, "hydra.run.dir=old", cwd=tmp_path)
    words = [*SMALL, *STILL, "env=gym", "env.id=Acrobot-v1", "policy.init_from=old", "hydra.run.dir=new"]
    refused = forked("run", *words, cwd=tmp_path, status=2).stderr
    assert "policy.body.0.weight has shape [64, 4] there, [64, 6] here" in refused
    assert "policy.init_strict=false to load only what fits (3 tensors)" in refused
    assert not (tmp_path / "new").exists()
    said = forked("run", *words, "policy.init_strict=false", cwd=tmp_path).stdout
    assert "not loaded" in said
    assert "policy.out.weight has shape [2, 64] there, [3, 64] here" in said
    old, new = (weights(RunFolder(tmp_path / name).policy) for name in ("old", "new"))
    assert [name for name in old if torch.equal(old[name], new[name])] == [
        "body.0.bias",
        "body.2.weight",
        "body.2.bias",
    ]


def test_a_file_or_the_best_checkpoint_are_sources_too_and_other_paths_are_refused(tmp_path):
    best = ["checkpoint.keep_best=mean_return", "checkpoint.every_batches=1"]
    forked("run", *SMALL, *best, "hydra.run.dir=old", cwd=tmp_path)
    old = RunFolder(tmp_path / "old")
    meter = [*SMALL, "trainer=meter", "run.max_batches=1"]
    for name, words in {"file": ["policy.init_from=old/policy.pt"], "best": ["policy.init_from=old"]}.items():
        some = ["policy.init_weights=best"] if name == "best" else []
        forked("run", *meter, *words, *some, f"hydra.run.dir={name}", cwd=tmp_path)
    scores = {
        float(json.loads(path.read_text())["score"] or 0): path.parent
        for path in old.checkpoints.glob("*/manifest.json")
    }
    state = torch.load(scores[max(scores)] / "state.pt", weights_only=True)
    assert is_equal(weights(old.policy), weights(tmp_path / "file" / "policy.pt"))
    assert is_equal(state["trainer"]["policy"], weights(tmp_path / "best" / "policy.pt"))
    wrong = {
        "policy.init_from=nowhere": "does not exist. Name a run folder",
        "policy.init_from=old/result.json": "cannot be loaded as weights",
        "policy.init_from=file policy.init_weights=best": "contains no best checkpoint",
        "policy.init_from=old/policy.pt policy.init_weights=best": "needs a run folder",
    }
    for words, text in wrong.items():
        said = forked("run", *meter, *words.split(), "hydra.run.dir=x", cwd=tmp_path, status=2)
        assert text in said.stderr
