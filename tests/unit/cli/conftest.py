"""A stand-in for `collectx.run.execute`: writes what a run leaves, in no time. Real runs are in test_command.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakecluster import FakeSlurm
from omegaconf import OmegaConf

import collectx.run
from collectx.config import RunConfig


class Stub:
    """Records every call. `status` maps a configuration to how its run ends; `digests` to what it delivers."""

    def __init__(self) -> None:
        self.calls: list[tuple[RunConfig, Path, list[str]]] = []
        self.status: Callable[[RunConfig], str] = lambda cfg: "completed"
        self.digests: Callable[[RunConfig], list[str]] = lambda cfg: [f"{cfg.seed}-{index}" for index in range(3)]

    def execute(self, cfg: RunConfig, folder: Path, argv: list[str]) -> SimpleNamespace:
        self.calls.append((cfg, folder, argv))
        status = self.status(cfg)
        (folder / "snapshot").mkdir(parents=True, exist_ok=True)
        OmegaConf.save(OmegaConf.create(asdict(cfg)), folder / "snapshot" / "config.yaml")
        digest = getattr(cfg.trainer, "digest", False)
        lines = [json.dumps({"digest": text} if digest else {}) + "\n" for text in self.digests(cfg)]
        (folder / "metrics.jsonl").write_text("".join(lines))
        result = {"status": status, "frames": 512, "frames_per_s": 1000.0, "wall_s": 0.5, "mean_return": None}
        (folder / "result.json").write_text(json.dumps(result | {"digest": "d" if digest else None}))
        return SimpleNamespace(status=collectx.run.Status(status), folder=folder)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stub:
    """Takes the place of the run layer; the working directory is `tmp_path`."""
    stub = Stub()
    monkeypatch.setattr(collectx.run, "execute", stub.execute, raising=False)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.chdir(tmp_path)
    return stub


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A stand-in for SLURM on PATH; the working directory is `tmp_path`."""
    cluster = FakeSlurm(tmp_path / "slurm", monkeypatch)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.chdir(tmp_path)
    yield cluster
    cluster.close()
