import importlib.metadata
import json

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
    assert meta["num_cpus"] == snapshot.num_cpus() >= 1
    installed = {each.name.replace("_", "-").lower(): each.version for each in importlib.metadata.distributions()}
    assert meta["packages"] == {name: version for name, version in installed.items() if name in meta["packages"]}
    assert {"torch", "collectx", "hydra-core"} <= meta["packages"].keys()
