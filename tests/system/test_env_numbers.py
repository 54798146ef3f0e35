"""Numbers of envs in a configuration, as typed."""

import os
from pathlib import Path

import pytest
from commands import collectx, forked, result

LABEL = "env.kwargs.label='{env_index * 2 + 1}'"
ENV = ["env.entry_point=user_code.numbered:Numbered", "env.id=null", "env.num_envs=2", LABEL]
WRAPPED = ["env.wrappers=[{user_code.numbered.Checked: {also: '{env_index}'}}]"]
RUN = ["trainer=record", "trainer.format=parquet", "collector.total_frames=128", "collector.frames_per_batch=64"]


@pytest.mark.sample(1)
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


@pytest.mark.sample(1)
@pytest.mark.ci
@pytest.mark.parametrize("collector", ["multi_sync", "distributed_sync"])
def test_a_restarted_env_has_the_next_restart_count(collector, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
    env = ["env=gym", "env.entry_point=user_code.numbered:Numbered", "env.num_envs=1"]
    env += ["env.kwargs={label: '{restart_count:03d}', killed: killed}", f"collector={collector}"]
    run = [*RUN, "policy=random", "collector.on_worker_failure=restart", "hydra.run.dir=run"]
    collectx("run", *env, *run, cwd=tmp_path)
    from collectx.data import load

    observed = load(tmp_path / "run")["observation"].reshape(-1, 3)
    assert {tuple(row) for row in observed.tolist()} >= {(0, 0, 0), (1, 1, 1)}
    assert [0, 0, 1] not in observed.tolist()


@pytest.mark.ci
def test_the_videos_of_a_resumed_run_are_in_other_folders(tmp_path):
    folder = "{gymnasium.wrappers.RecordVideo: {video_folder: 'videos/{env_index:03d}-{restart_count}'}}"
    env = ["env=gym", "env.id=CartPole-v1", "env.kwargs.render_mode=rgb_array", f"env.wrappers=[{folder}]"]
    run = ["env.num_envs=1", "policy=random", "trainer=meter", "debug=tiny", "collector=single", "hydra.run.dir=run"]
    collectx("run", *env, *run, cwd=tmp_path)
    first = {path: path.stat().st_mtime_ns for path in tmp_path.glob("videos/000-0/*.mp4")}
    assert first
    forked("resume", "run", "collector.total_frames=256", cwd=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("videos/000-0/*.mp4")} == first
    assert [*tmp_path.glob("videos/000-1/*.mp4")] != []


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
    said = f"all 4 envs write to {tmp_path}/videos, so they overwrite each other's files"
    assert (said in done.stdout + done.stderr) == is_said
