"""`collectx run` up to the run layer, in this process: what it is handed, and the exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectx.cli import run
from collectx.errors import ConfigError

from .conftest import Stub


def test_the_run_layer_gets_the_typed_configuration_folder_and_command_line(stub: Stub, tmp_path: Path):
    assert run.main(["env=pendulum", "hydra.run.dir=here", "env.kwargs.g=1"]) == 0
    ((cfg, folder, argv),) = stub.calls
    assert (cfg.env.id, cfg.env.kwargs) == ("Pendulum-v1", {"g": 1})
    assert folder == tmp_path / "here"
    assert (folder / ".hydra" / "config.yaml").is_file()
    assert argv == ["collectx", "run", "env=pendulum", "hydra.run.dir=here", "env.kwargs.g=1"]


def test_run_folders_of_the_same_second_differ(stub: Stub):
    assert run.main([]) == run.main([]) == 0
    assert len({folder for _, folder, _ in stub.calls}) == 2


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1), ("interrupted", 130)])
def test_exit_status(stub: Stub, status: str, code: int):
    stub.status = lambda cfg: status
    assert run.main([]) == code


def test_wrong_configuration_starts_nothing_and_leaves_nothing(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run.main(["colector=x", "seed=-1"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("2 problems in the configuration, no worker was started:\n  - colector=x: no such group")
    assert stub.calls == []
    assert list(tmp_path.iterdir()) == []


def test_several_values_need_m(stub: Stub, capsys: pytest.CaptureFixture[str]):
    assert run.main(["seed=1,2"]) == 2
    assert "seed=1,2: several values are a sweep: add -m" in capsys.readouterr().err


def test_what_only_the_run_finds_wrong_is_a_configuration_error(stub: Stub, capsys: pytest.CaptureFixture[str]):
    def refuse(cfg: object) -> str:
        raise ConfigError(["env.id=X: no such env."])

    stub.status = refuse  # type: ignore[assignment]
    assert run.main([]) == 2
    assert capsys.readouterr().err.endswith("  - env.id=X: no such env.\n")


def test_cfg_explains_without_running(stub: Stub, capsys: pytest.CaptureFixture[str]):
    assert run.main(["--cfg", "job", "env=envpool"]) == 0
    assert "id: ???" in capsys.readouterr().out
    assert stub.calls == []


def test_advice_is_a_note(stub: Stub, capsys: pytest.CaptureFixture[str]):
    assert run.main(["collector=multi_async"]) == 0
    assert capsys.readouterr().err.startswith("note: trainer=ppo collector=multi_async")


def test_own_choices_through_config_dir(stub: Stub, tmp_path: Path):
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "mine.yaml").write_text("defaults: [gym, _self_]\nid: Mine-v0\n")
    assert run.main(["--config-dir", "conf", "env=mine"]) == 0
    assert stub.calls[0][0].env.id == "Mine-v0"
