"""`collectx run` up to the run layer, in this process: what it is handed, and the exit status."""

from __future__ import annotations

import pytest

from collectx.cli import run
from collectx.errors import ConfigError


def test_the_run_layer_gets_the_typed_configuration_folder_and_command_line(stub, tmp_path):
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "mine.yaml").write_text("defaults: [gym, _self_]\nid: Mine-v0\n")
    line = ["--config-dir", "conf", "env=mine", "hydra.run.dir=here", "env.kwargs.g=1"]
    assert run.main(line) == 0
    ((cfg, folder, argv),) = stub.calls
    assert (cfg.env.id, cfg.env.kwargs) == ("Mine-v0", {"g": 1})
    assert folder == tmp_path / "here"
    assert (folder / ".hydra" / "config.yaml").is_file()
    assert argv == ["collectx", "run", *line]


def test_run_folders_of_the_same_second_differ_and_advice_is_a_note(stub, capsys):
    stub.status = lambda cfg: "interrupted"
    assert run.main(["collector=multi_async"]) == run.main(["collector=multi_async"]) == 130
    assert len({folder for _, folder, _ in stub.calls}) == 2
    assert capsys.readouterr().err.startswith("note: trainer=ppo collector=multi_async")


def test_an_interruption_then_a_failure_outweighs_what_completed():
    statuses = ["completed", "completed", "failed", "interrupted", "completed"]
    assert [run.exit_status(statuses[:count]) for count in range(6)] == [0, 0, 0, 1, 130, 130]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            ["colector=x", "seed=-1"],
            ["2 problems in the configuration, no worker was started:\n", "  - colector=x: ", "  - seed=-1: "],
        ),
        (["seed=1,2"], ["seed=1,2: several values are a sweep: add -m"]),
    ],
)
def test_a_wrong_configuration_starts_nothing_and_leaves_nothing(stub, tmp_path, capsys, line, words):
    assert run.main(line) == 2
    err = capsys.readouterr().err
    assert [word for word in words if word not in err] == []
    assert (stub.calls, [*tmp_path.iterdir()]) == ([], [])


def test_what_only_the_run_finds_wrong_is_a_configuration_error(stub, capsys):
    def refuse(cfg):
        raise ConfigError(["env.id=X: no such env."])

    stub.status = refuse
    assert run.main([]) == 2
    assert capsys.readouterr().err.endswith("  - env.id=X: no such env.\n")


def test_cfg_explains_without_running(stub, capsys):
    assert run.main(["--cfg", "job", "env=envpool"]) == 0
    assert "id: ???" in capsys.readouterr().out
    assert stub.calls == []
