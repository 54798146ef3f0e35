"""The policy of a run, loaded from its folder. As users do it: tests/system/test_trained.py."""

import copy
import json
import os
import re

import gymnasium
import numpy as np
import onnxruntime
import pytest
import torch
from composed_overrides import composed
from tensordict import TensorDict
from user_code.cartpoles import Drawing
from user_code.faulty import throw
from user_code.torchrlenvs import Goals

import collectx
from collectx import env, policy
from collectx.batch import Leaf
from collectx.cli import export
from collectx.env.base import EnvSpec
from collectx.errors import ConfigError, DamagedFileError, DataError
from collectx.policy.exploration import ExplorationType
from collectx.policy.flat_weights import FlatWeights
from collectx.run import RunFolder, execute
from collectx.run.after import foreign_code
from collectx.run.after.trained import LoadedPolicy, load_weights

_SHORT = "collector=single collector.frames_per_batch=64 collector.total_frames=128 policy.hidden_sizes=[8]"
_CUSTOM = "trainer=meter policy=custom collector=single collector.frames_per_batch=8 collector.total_frames=16"


def run(folder, line):
    assert execute(composed(line), folder, []).status == "completed"
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return run(tmp_path_factory.mktemp("trained") / "run", f"{_SHORT} seed=3")


def test_weights_that_do_not_fit_are_told_by_the_first_difference(trained):
    with pytest.raises(ConfigError, match=r"of the run \((Missing key|Unexpected key)") as error:
        load_weights(RunFolder(trained), torch.nn.Linear(3, 2))
    assert "\n" not in str(error.value)
    wider = policy.build(composed("policy.hidden_sizes=[9]").policy, env.read_spec(composed("env=cartpole").env), 0)
    with pytest.raises(ConfigError, match=r"\(size mismatch for body.0.weight: .*9, 4\]\)\)\.$"):
        load_weights(RunFolder(trained), wider)


def test_it_acts_as_the_trained_module(trained):
    policy = collectx.load_policy(trained)
    state = torch.load(trained / "checkpoints/final.pt", weights_only=True)["policy"]
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    x = torch.from_numpy(observations)
    for layer in ("body.0", "out"):
        x = torch.nn.functional.linear(x, state[f"{layer}.weight"], state[f"{layer}.bias"])
        x = x if layer == "out" else x.tanh()
    expected = x.argmax(-1).tolist()
    assert policy(observations).tolist() == expected
    assert [policy(each) for each in observations] == expected
    assert policy(TensorDict(observation=torch.from_numpy(observations), batch_size=[5])).tolist() == expected
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    env.step(policy(observations[0]))


def test_it_takes_what_an_env_may_return(trained):
    """Views in any order, as cameras return, other byte orders and dtypes, and read-only arrays, without a warning."""
    policy = collectx.load_policy(trained)
    rows = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    frozen = rows.copy()
    frozen.flags.writeable = False
    flipped = rows[::-1, ::-1].copy()[::-1, ::-1]
    assert min(flipped.strides) < 0
    kinds = [frozen, flipped, np.asfortranarray(rows), torch.from_numpy(rows).requires_grad_(), rows.tolist()]
    kinds += [rows.astype(dtype) for dtype in (">f4", object, np.longdouble, np.float64)]
    for each in kinds:
        assert policy(each).tolist() == policy(rows).tolist()
    for wrong in (np.full(4, "a"), np.ones(4, complex)):
        with pytest.raises(DataError, match=r"^observation is an array of .* cannot be converted to torch\.float32"):
            policy(wrong)


def test_a_stochastic_one_samples(trained):
    policy = collectx.load_policy(trained, deterministic=False)
    assert repr(policy) == "<LoadedPolicy: policy StochasticPolicy, observation [4], exploration_type=random, cpu>"
    actions = policy(np.zeros((200, 4), np.float32))
    assert 20 < actions.sum() < 180
    assert len(set(collectx.load_policy(trained)(np.zeros((200, 4), np.float32)))) == 1


def test_without_policy_pt_it_has_the_weights_of_the_newest_checkpoint(trained, tmp_path):
    whole = collectx.load_policy(trained).module.state_dict()
    (trained / "policy.pt").rename(tmp_path / "policy.pt")
    try:
        from_checkpoint = collectx.load_policy(trained).module.state_dict()
    finally:
        (tmp_path / "policy.pt").rename(trained / "policy.pt")
    torch.testing.assert_close(from_checkpoint, whole, rtol=0, atol=0)
    final = torch.load(trained / "checkpoints/final.pt", weights_only=True)["policy"]
    torch.testing.assert_close(final, whole, rtol=0, atol=0)


def test_errors_say_what_to_do(trained, tmp_path, within):
    with pytest.raises(ConfigError, match=r"there is no folder|it does not contain snapshot/config.yaml"):
        collectx.load_policy(tmp_path)
    with pytest.raises(
        DataError, match=r"observation must have shape \[4\], or \[B, 4\] for a batch, but has shape \[3\]"
    ):
        collectx.load_policy(trained)(np.zeros(3, np.float32))
    for device in ("cuda:99", "cpu:1", "gpu"):
        with pytest.raises(ConfigError, match=rf"^device='{device}' cannot be used: .* Use cpu"):
            collectx.load_policy(trained, device=device)
    files = RunFolder(run(tmp_path / "run", f"{_SHORT} checkpoint.keep=1"))
    # Cut off, as by a full disk.
    files.policy.write_bytes(files.policy.read_bytes()[:2000])
    with pytest.raises(DamagedFileError, match=r"It is damaged. Restore it from a copy, or delete it"):
        collectx.load_policy(files.path)
    files.policy.write_bytes(b"no weights")
    with pytest.raises(DamagedFileError, match=r"policy.pt cannot be loaded"):
        collectx.load_policy(files.path)
    files.policy.unlink()
    next(files.checkpoints.glob("[0-9]*/state.pt")).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no checkpoint in .* can be used. Restore the"):
        collectx.load_policy(files.path)
    within(foreign_code, "os", geteuid=lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match=r"belongs to .* trust=True"):
        collectx.load_policy(trained)
    collectx.load_policy(trained, trust=True)


def test_a_recurrent_policy_keeps_its_state(tmp_path):
    policy = collectx.load_policy(run(tmp_path / "run", f"{_CUSTOM} policy.target=user_code.cartpoles:alternating"))
    one = np.zeros(4, np.float32)
    assert [int(policy(one)) for _ in range(4)] == [0, 1, 0, 1]
    policy(one)
    policy.reset()
    assert policy(one) == 0
    two = np.zeros((2, 4), np.float32)
    assert policy(two).tolist() == [0, 0]
    policy.reset([True, False])
    assert policy(two).tolist() == [0, 1]


def test_random_and_dict_spaces(tmp_path, capfd):
    line = f"{_CUSTOM} env.entry_point=user_code.torchrlenvs:Goals env.id=null policy=random"
    policy = collectx.load_policy(run(tmp_path / "run", line))
    assert policy.module is None
    env = Goals()
    observation, _ = env.reset(seed=0)
    assert env.action_space.contains(policy(observation))
    lost, *_ = observation
    with pytest.raises(DataError, match=rf"^the observation lacks '{lost}', a part of its space: "):
        policy({key: value for key, value in observation.items() if key != lost})
    for other in (np.zeros(3), torch.zeros(3)):
        with pytest.raises(DataError, match=rf"^the observation must be a dict with {', '.join(observation)}, but is "):
            policy(other)
    assert "UserWarning" not in capfd.readouterr().err  # torch's, which no filter makes an error


@pytest.mark.parametrize(("reads", "count"), [((), 1), ([("info", "speed")], 2), (["step_count", "observation"], 2)])
def test_a_policy_is_called_with_its_inputs_and_the_keys_that_it_reads(reads, count):
    seen, speed = Leaf(("observation",), (2,), torch.float32), Leaf(("info", "speed"), (), torch.float64)
    steps, action = Leaf(("step_count",), (1,), torch.int64), Leaf(("action",), (), torch.int64)
    box, discrete = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(3)
    spec = EnvSpec(1, (seen, speed, steps), (action,), box, discrete, inputs=(seen,))
    policy = LoadedPolicy(None, spec, ExplorationType.RANDOM, torch.device("cpu"), reads=reads)
    assert policy.leaves == (seen, speed if reads == [("info", "speed")] else steps)[:count]
    examples = policy.example(4)
    assert [(each.shape, each.dtype) for each in examples] == [((4, *leaf.shape), leaf.dtype) for leaf in policy.leaves]


def onnx_session(path):
    session = onnxruntime.InferenceSession(path)
    return lambda *inputs: session.run(
        None, {each.name: x for each, x in zip(session.get_inputs(), inputs, strict=True)}
    )


def graph(path):
    loaded = torch.jit.load(path)
    return lambda *inputs: [each.numpy() for each in loaded(*map(torch.from_numpy, inputs))]


@pytest.mark.sample(1)
@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
@pytest.mark.parametrize(
    ("line", "form"),
    [
        (_SHORT, "torchscript"),
        (f"{_SHORT} env=pendulum", "onnx"),
        (alternating := f"{_CUSTOM} policy.target=user_code.cartpoles:alternating", "torchscript"),
        (alternating, "onnx"),
    ],
    ids=["actions-torchscript", "numbers-onnx", "states-torchscript", "states-onnx"],
)
def test_exported_graphs_act_like_the_policy(tmp_path, line, form, capsys):
    folder = run(tmp_path / "run", line)
    assert export.main([str(folder), f"format={form}"]) == 0
    *_, path = capsys.readouterr().out.split()
    act = {"torchscript": graph, "onnx": onnx_session}[form](path)
    policy = collectx.load_policy(folder)
    states = [np.zeros((7, 1), np.float32) for _ in policy.states]
    generator = np.random.default_rng(0)
    for _ in range(3):
        observation = generator.normal(size=(7, *policy.leaves[0].shape)).astype(np.float32)
        action, *states = act(observation, *states)
        np.testing.assert_allclose(action, policy(observation), rtol=1e-5, atol=1e-6)


@pytest.mark.ci
def test_a_policy_without_a_graph_is_refused_in_four_lines(tmp_path, capsys):
    folder = run(tmp_path / "run", f"{_CUSTOM} policy.target=user_code.cartpoles:Drawing")
    capsys.readouterr()
    assert export.main([str(folder), "format=onnx"]) == 1
    out, err = capsys.readouterr()
    lines = err.splitlines()[-4:]
    assert not out
    assert lines[0].startswith("collectx: export to onnx failed: torch found no graph that fits all observations.")
    assert "use format=torchscript" in lines[1]
    assert lines[2].startswith("  torch.export raised Guard")
    assert lines[3].endswith("return Categorical(logits=self.net(observation), validate_args=True).sample()")
    assert "user_code/cartpoles.py:" in lines[3]
    assert "\x1b" not in err
    assert "def forward" not in err


@pytest.mark.ci
@pytest.mark.parametrize("form", ["state_dict", "torchscript"])
def test_an_error_of_the_users_class_is_told_with_its_place(tmp_path, capsys, monkeypatch, form):
    folder = run(tmp_path / "run", f"{_CUSTOM} policy.target=user_code.cartpoles:Drawing")
    monkeypatch.setattr(Drawing, "forward", lambda self, observation: throw(OSError("no license")))
    assert export.main([str(folder), f"format={form}"]) == 1
    *_, what, place = capsys.readouterr().err.splitlines()
    assert what.startswith("  raised when the policy was called once")
    assert re.fullmatch(r"  raised in .*/user_code/faulty.py:\d+, in throw", place)


def test_an_exported_state_dict_and_wrong_words(trained, tmp_path, capsys):
    assert export.main([str(trained), "format=state_dict", f"output={tmp_path / 'mine.pt'}"]) == 0
    state = torch.load(tmp_path / "mine.pt", weights_only=True)
    torch.testing.assert_close(state, torch.load(trained / "policy.pt", weights_only=True), rtol=0, atol=0)
    assert export.main([str(trained), "format=onx"]) == 2
    assert "export: format=onx is unknown. Did you mean format=onnx?" in capsys.readouterr().err
    assert export.main([str(trained), "format=onnx", "opset=3"]) == 2
    assert "opset is not an option" in capsys.readouterr().err
    assert export.main(["format=onnx"]) == 2
    assert "export: which run?" in capsys.readouterr().err


@pytest.mark.ci
@pytest.mark.parametrize("form", ["state_dict", "torchscript", "onnx"])
def test_an_output_that_cannot_be_written_is_named(trained, tmp_path, capsys, form):
    assert export.main([str(trained), f"format={form}", f"output={tmp_path}"]) == 2
    assert f"export: cannot write to {tmp_path}: Is a directory." in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_the_best_weights_are_those_of_the_best_checkpoint(tmp_path):
    best = "checkpoint.keep_best=mean_return checkpoint.every_batches=1"
    files = RunFolder(run(tmp_path / "run", f"{_SHORT} trainer.anneal=false {best}"))
    for number, score in ((1, 50.0), (2, 20.0)):
        manifest = files.checkpoints / f"{number:09d}" / "manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | {"score": score}))
    best, newest = (collectx.load_policy(files.path, weights=weights).module for weights in ("best", "newest"))
    state = torch.load(files.checkpoints / "000000001" / "state.pt", weights_only=True)["collector"]["weights"]
    FlatWeights(kept := copy.deepcopy(newest)).read(state)
    assert all(map(torch.equal, best.parameters(), kept.parameters()))
    assert not all(map(torch.equal, best.parameters(), newest.parameters()))
    with pytest.raises(ConfigError, match=r"weights='last' is unknown\. .*Valid names: newest, best"):
        collectx.load_policy(files.path, weights="last")
    (files.checkpoints / "000000001" / "state.pt").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"state\.pt is damaged: .*Restore it from a copy, or use weights=newest\."):
        collectx.load_policy(files.path, weights="best")


def test_without_a_best_checkpoint_it_says_how_to_keep_one(trained):
    with pytest.raises(ConfigError, match=r"contains no best checkpoint\. .*checkpoint\.keep_best=mean_return"):
        collectx.load_policy(trained, weights="best")


def test_without_a_best_checkpoint_it_does_not_advise_what_the_run_has_set(tmp_path):
    path = run(tmp_path / "run", f"{_SHORT} checkpoint.keep_best=eval/mean_return eval.every_batches=1000")
    with pytest.raises(ConfigError) as caught:
        collectx.load_policy(path, weights="best")
    assert "no checkpoint with a value of eval/mean_return (checkpoint.keep_best). Use weights=newest." in str(
        caught.value
    )
    assert "To keep a best one" not in str(caught.value)
