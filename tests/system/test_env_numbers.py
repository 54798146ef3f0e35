"""Numbers of envs in a configuration, as typed."""

import os
from pathlib import Path

import pytest
from commands import collectx, result

LABEL = "env.kwargs.label='{env_index * 2 + 1}'"
ENV = ["env.entry_point=user_code.numbered:Numbered", "env.id=null", "env.num_envs=2", LABEL]
WRAPPED = ["env.wrappers=[{user_code.numbered.Checked: {also: '{env_index}'}}]"]
RUN = ["trainer=record", "trainer.format=parquet", "collector.total_frames=128", "collector.frames_per_batch=64"]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "words",
    [
        ["env=gym", *ENV, *WRAPPED],
        ["env=gym", *ENV, *WRAPPED, "collector=distributed_sync"],
        ["env=gym_vector", "env.vectorization_mode=async", "env.id=user_code.numbered:Numbered-v0", *ENV[2:], *WRAPPED],
    ],
    ids=["local", "gloo", "vector_async"],
)
def test_a_configuration_names_the_numbers(words, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    collectx("run", *words, *RUN, "policy=random", "hydra.run.dir=run", cwd=tmp_path)
    assert result(tmp_path / "run")["frames"] == 128
    from collectx.data import load

    observed = load(tmp_path / "run")["observation"].reshape(-1, 3)
    assert {tuple(row) for row in observed.tolist()} == {(e, e // 2, 2 * e + 1) for e in range(4)}


RECORDED = """
import gymnasium
from gymnasium.wrappers import RecordVideo

def make(folder="videos"):
    return RecordVideo(gymnasium.make("CartPole-v1", render_mode="rgb_array"), folder, lambda episode: False)

def numbered(env_index):
    return make(f"videos/{env_index}")
"""


@pytest.mark.parametrize(("entry_point", "is_said"), [("make", True), ("numbered", False)])
def test_a_note_says_that_an_entry_point_gives_all_envs_one_folder(tmp_path, entry_point, is_said):
    (tmp_path / "recorded.py").write_text(RECORDED)
    words = ["env=gym", f"env.entry_point=recorded:{entry_point}", "policy=random", "trainer=meter", "debug=tiny"]
    done = collectx("run", *words, "hydra.run.dir=run", cwd=tmp_path)
    said = f"all 4 envs write to {tmp_path}/videos, and overwrite each other's files"
    assert (said in done.stdout + done.stderr) == is_said
