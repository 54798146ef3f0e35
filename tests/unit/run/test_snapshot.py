import json
import subprocess

from omegaconf import OmegaConf

from collectx.run import snapshot


def test_the_configuration_is_whole(cfg, folder):
    snapshot.write(cfg, folder, ["run", "seed=3"])
    saved = OmegaConf.to_container(OmegaConf.load(folder.config))
    assert saved["env"] == {
        "kind": "counting",
        "num_envs": 2,
        "episode_length": 5,
        "observation_size": 3,
        "step_s": 0.0,
    }
    assert saved["devices"]["storing_device"] is None
    assert saved["seed"] == 3


def test_the_circumstances(cfg, folder):
    snapshot.write(cfg, folder, ["run", "seed=3"])
    meta = json.loads(folder.meta.read_text())
    assert meta["argv"] == ["run", "seed=3"]
    assert meta["seeds"] == {"seed": 3}
    assert meta["packages"]["torch"].startswith("2.")
    assert meta["packages"]["collectx"]
    assert meta["num_cpus"] >= 1


def test_git_state(tmp_path):
    def git(*words):
        who = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    assert snapshot.git_state(tmp_path / "missing") is None
    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "one")
    state = snapshot.git_state(tmp_path)
    assert len(state["commit"]) == 40
    assert not state["dirty"]
    (tmp_path / "file").write_text("2")
    assert snapshot.git_state(tmp_path)["dirty"]
