import importlib.metadata
import json
from dataclasses import asdict

from omegaconf import OmegaConf

from collectx.run import snapshot


def test_the_configuration_is_whole_and_the_circumstances_are_told(cfg, folder):
    snapshot.write(cfg, folder, ["run", "seed=3"])
    assert OmegaConf.to_container(OmegaConf.load(folder.config)) == asdict(cfg)
    meta = json.loads(folder.meta.read_text())
    assert meta["argv"] == ["run", "seed=3"]
    assert meta["seeds"] == {"seed": 3}
    assert meta["num_cpus"] == snapshot.num_cpus() >= 1
    installed = {each.name.replace("_", "-").lower(): each.version for each in importlib.metadata.distributions()}
    assert meta["packages"] == {name: version for name, version in installed.items() if name in meta["packages"]}
    assert {"torch", "collectx", "hydra-core"} <= meta["packages"].keys()
