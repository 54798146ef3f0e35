"""What a configuration takes from elsewhere, from the command to the commands that read its folder."""

import json
import shutil
import textwrap

import pytest
from commands import collectx, forked

from collectx.config.interpolation import escaped
from collectx.run import RunFolder

ENV = """
    import os
    import gymnasium
    import numpy as np

    class Env(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, data, text="", token=""):
            assert text in ("", "cd ${HOME} && \\\\${x}"), text
            assert token in ("", "hush-hush"), token
            with open(os.path.join(data, "reward.txt")) as file:
                self.reward = float(file.read())

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(3, np.float32), {}

        def step(self, action):
            self.steps += 1
            return np.zeros(3, np.float32), self.reward, self.steps >= 20, False, {}
"""
RUN = [
    "env=gym",
    "env.entry_point=stored:Env",
    "trainer=meter",
    "policy=random",
    "trainer.digest=true",
    "debug=inline",
    "run.max_batches=2",
]
EVAL = ["episodes=1", "exploration_type=random"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """`place(name)` moves the data of the env to another folder, and the variable `DATA` with them."""
    (tmp_path / "stored.py").write_text(textwrap.dedent(ENV))

    def move(name):
        for old in tmp_path.glob("job*"):
            shutil.rmtree(old)
        (tmp_path / name).mkdir()
        (tmp_path / name / "reward.txt").write_text("1")
        monkeypatch.setenv("DATA", str(tmp_path / name))
        return str(tmp_path / name)

    return move


@pytest.mark.ci
def test_a_chain_of_jobs_finds_its_data_where_each_job_has_them(tmp_path, place):
    place("job1")
    words = [*RUN, "env.kwargs.data=${oc.env:DATA}", "run.resume=auto", "hydra.run.dir=r", "logger=csv"]
    collectx("run", *words, cwd=tmp_path)
    note = "note: the value of env.kwargs.data=${oc.env:DATA} has changed since the run.\n"
    place("job2")
    done = forked("run", *words, "run.max_batches=4", cwd=tmp_path)
    assert note in done.stderr
    assert [each["batches"] for each in RunFolder(tmp_path / "r").read_events() if each["event"] == "resumed"] == [2]
    place("job3")
    done = forked("resume", "r", "run.max_batches=6", cwd=tmp_path)
    assert done.stderr.count(note) == 1
    assert note in forked("eval", "r", *EVAL, cwd=tmp_path).stderr + done.stderr
    assert "identical: all" in forked("reproduce", "r", cwd=tmp_path).stdout
    # Without the variable, no command guesses.
    place("job4")
    refused = forked("resume", "r", "env.kwargs.data=${oc.env:NOTHING}", cwd=tmp_path, status=2)
    assert "the environment variable 'NOTHING' is not set" in refused.stderr


@pytest.mark.ci
def test_data_that_moved_are_named_and_the_move_is_noted(tmp_path, place):
    collectx("run", *RUN, f"env.kwargs.data={place('job1')}", "hydra.run.dir=r", cwd=tmp_path)
    new = place("job2")
    more = ["r", "run.max_batches=4", f"env.kwargs.data={new}"]
    refused = forked("resume", *more, cwd=tmp_path, status=2)
    assert "If only the place of your data is another, add --moved" in refused.stderr
    forked("resume", *more, "--moved", cwd=tmp_path)
    (event,) = [each for each in RunFolder(tmp_path / "r").read_events() if each["event"] == "resumed"]
    assert event["moved"] == [f"env.kwargs.data (was {tmp_path}/job1, now {new})"]
    # The run is still one run.
    assert "identical: all" in forked("reproduce", "r", cwd=tmp_path).stdout
    # A number is no place.
    refused = forked("resume", "r", "env.num_envs=3", "--moved", cwd=tmp_path, status=2)
    assert "env.num_envs (was" in refused.stderr


@pytest.mark.ci
def test_neither_files_nor_loggers_contain_the_value_of_a_variable(tmp_path, place, monkeypatch):
    place("job1")
    monkeypatch.setenv("TOKEN", "hush-hush")
    words = ["env.kwargs={data: '${oc.env:DATA}', token: '${oc.env:TOKEN}'}", "policy.hidden_sizes=[8]", "policy=mlp"]
    logger = "logger=[csv,tensorboard,mlflow]"
    collectx("run", *RUN, *words, logger, "hydra.run.dir=r", cwd=tmp_path)
    forked("report", "r", cwd=tmp_path)
    forked("resume", "r", "run.max_batches=4", cwd=tmp_path)
    forked("eval", "r", *EVAL, cwd=tmp_path)
    forked("export", "r", "format=state_dict", cwd=tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith("stored.")]
    assert len(files) > 10
    assert [path for path in files if b"hush-hush" in path.read_bytes() or b"job1" in path.read_bytes()] == []
    assert "token: ${oc.env:TOKEN}" in (tmp_path / "r/snapshot/config.yaml").read_text()


@pytest.mark.ci
def test_a_text_with_the_signs_of_an_interpolation_stays_as_it_is(tmp_path, place):
    data = place("job1")
    words = [*RUN, f"env.kwargs.data={data}", r"env.kwargs.text='cd \${HOME} && \\\${x}'"]
    collectx("run", *words, "hydra.run.dir=r", cwd=tmp_path)
    for command in (["resume", "r", "run.max_batches=4"], ["eval", "r", *EVAL], ["reproduce", "r"]):
        forked(*command, cwd=tmp_path)
    written = []
    for _ in range(2):  # the points are complete
        forked("run", "-m", *words, "seed=0,1", "hydra.sweep.dir=s", cwd=tmp_path)
        written.append([path.stat().st_mtime_ns for path in sorted(tmp_path.glob("s/*/result.json"))])
    assert written[0] == written[1]
    assert len(written[0]) == 2


@pytest.mark.parametrize("text", ["${x}", r"\${x}", r"\\${x}", r"a\b${oc.env:HOME}\\", "$${x", "${", r"\\", "{$x}"])
def test_a_saved_text_is_read_as_it_was(text):
    from omegaconf import OmegaConf

    assert OmegaConf.to_container(OmegaConf.create(json.loads(json.dumps({"a": escaped(text)}))), resolve=True) == {
        "a": text
    }
