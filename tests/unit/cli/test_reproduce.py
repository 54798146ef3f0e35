"""`collectx reproduce`: from the snapshot, whatever the packaged defaults are; the verdict and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from collectx.cli import reproduce, run

from .conftest import Stub

RUN = ["trainer.digest=true", "trainer.gamma=0.5", "env=pendulum", "env.kwargs.g=1", "hydra.run.dir=old"]


@pytest.fixture
def old(stub: Stub, tmp_path: Path) -> Path:
    assert run.main(RUN) == 0
    return tmp_path / "old"


def test_the_same_configuration_runs_again_and_is_identical(stub: Stub, old: Path, capsys: pytest.CaptureFixture[str]):
    assert reproduce.main(["old"]) == 0
    (first, _, _), (again, folder, argv) = stub.calls
    assert again == first
    assert folder != old
    assert argv == ["collectx", "reproduce", "old"]
    assert "identical: all 3 batches are identical" in capsys.readouterr().out


def test_the_folder_of_a_point_of_a_sweep(stub: Stub, old: Path):
    old.rename("seed=3")
    assert reproduce.main(["seed=3", "trainer.gamma=0.6"]) == 0
    assert stub.calls[-1][0].trainer.gamma == 0.6


def test_packaged_defaults_do_not_leak_in(stub: Stub, old: Path):
    saved = OmegaConf.load(old / "snapshot" / "config.yaml")
    saved.collector.num_slots = 7
    OmegaConf.save(saved, old / "snapshot" / "config.yaml")
    assert reproduce.main(["old", "--config-dir", "."]) == 0
    assert stub.calls[-1][0].collector.num_slots == 7


def test_key_and_group_overrides(stub: Stub, old: Path):
    assert reproduce.main(["old", "launcher=inline", "env.kwargs.g=2", "trainer.gamma=0.6", "hydra.run.dir=new"]) == 0
    cfg, folder, _ = stub.calls[-1]
    assert (cfg.launcher.kind, cfg.env.id, cfg.env.kwargs, cfg.trainer.gamma) == (
        "inline",
        "Pendulum-v1",
        {"g": 2},
        0.6,
    )
    assert folder.name == "new"


def test_a_difference_names_the_first_batch(stub: Stub, old: Path, capsys: pytest.CaptureFixture[str]):
    stub.digests = lambda cfg: ["0-0", "other", "0-2"]
    assert reproduce.main(["old"]) == 1
    assert "batch 1 is the first that differs" in capsys.readouterr().out


def test_the_digest_stays_on_when_the_trainer_is_replaced(stub: Stub, old: Path):
    assert reproduce.main(["old", "trainer=meter"]) == 0
    assert stub.calls[-1][0].trainer.digest is True


def test_a_run_without_digest_runs_again_and_says_so(stub: Stub, capsys: pytest.CaptureFixture[str]):
    assert run.main(["hydra.run.dir=old"]) == 0
    assert reproduce.main(["old"]) == 0
    assert "has no digest" in capsys.readouterr().err


def test_a_failed_reproduction_is_not_compared(stub: Stub, old: Path, capsys: pytest.CaptureFixture[str]):
    stub.status = lambda cfg: "failed"
    assert reproduce.main(["old"]) == 1
    assert "identical" not in capsys.readouterr().out


ASYNC = ["collector=multi_async", "trainer.digest=true", "hydra.run.dir=old"]


def tell_order(folder: Path, workers: list[int]) -> None:
    lines = [
        {"digest": f"0-{index}", "version": index, "workers": [{"worker": worker, "policy_version": index}]}
        for index, worker in enumerate(workers)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_an_async_run_is_delivered_in_the_order_that_it_had(stub: Stub, tmp_path: Path):
    assert run.main(ASYNC) == 0
    tell_order(tmp_path / "old", [0, 1, 1])
    assert reproduce.main(["old"]) == 0
    assert stub.calls[-1][0].collector.order_of == str(tmp_path / "old")


@pytest.mark.parametrize(
    ("overrides", "event", "message"),
    [
        (["collector.refresh=step"], None, "the weights change within a batch"),
        ([], "worker_failed", "a worker was lost"),
        (
            ["collector=multi_sync", "collector.preemptive_threshold=0.5", "trainer=meter"],
            None,
            "they end by who is ready",
        ),
    ],
)
def test_what_no_folder_says_of_an_async_run_is_said(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], event: str, message: str
):
    assert run.main([*ASYNC, *overrides]) == 0
    tell_order(tmp_path / "old", [0, 1, 1])
    if event is not None:
        (tmp_path / "old" / "events.jsonl").write_text(json.dumps({"time": 1.0, "event": event}) + "\n")
    stub.digests = lambda cfg: ["0-0", "other", "0-2"]
    assert reproduce.main(["old"]) == 1
    assert stub.calls[-1][0].collector.order_of is None
    assert message in capsys.readouterr().out


def test_the_order_of_a_run_with_other_workers(stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run.main(ASYNC) == 0
    tell_order(tmp_path / "old", [0, 3, 1])
    assert run.main(["collector=multi_async", "collector.order_of=old"]) == 2
    assert "batches of worker 3, so of at least 4 workers, but collector.num_workers=2" in capsys.readouterr().err
    assert run.main(["collector.order_of=old"]) == 2
    assert "collector=multi_sync is sync" in capsys.readouterr().err
    assert run.main(["collector=multi_async", "collector.order_of=nowhere"]) == 2
    assert "is no folder of a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere"], "is no run folder"),
        ([], "needs one run folder"),
        (["old", "-m"], "collectx run -m"),
        (["old", "trainer.gama=1"], "did you mean trainer.gamma?"),
        (["old", "env=cartpol"], "did you mean cartpole?"),
    ],
)
def test_wrong_usage(stub: Stub, old: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str):
    assert reproduce.main(argv) == 2
    assert message in capsys.readouterr().err
