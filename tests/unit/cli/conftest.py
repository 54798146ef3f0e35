"""A stand-in, in this process, for `collectx.run.execute`. Real processes are in tests/system."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from batch_lines import batch_line, write_lines
from stand_in_slurm import write_result

import collectx.run
from collectx.checkpoints import FORMAT
from collectx.config.schema.run import RunConfig
from collectx.run import RunFolder
from collectx.run.folder import snapshot
from collectx.run.folder.batch_line import WorkerEntry


class Stub:
    """Records every run and writes what it leaves: batches with these digests, from these workers. `status` maps a
    configuration to how its run ends, `mean_return` to its result's."""

    def __init__(self) -> None:
        self.calls: list[tuple[RunConfig, Path, list[str]]] = []
        self.status: Callable[[RunConfig], str] = lambda cfg: "completed"
        self.mean_return: Callable[[RunConfig], float | None] = lambda cfg: None
        self.digests, self.workers = ["0", "1", "2"], [0, 1, 1]
        self.packages: dict[str, str] = {}

    def execute(self, cfg: RunConfig, folder: Path, argv: list[str], *others: object) -> SimpleNamespace:
        self.calls.append((cfg, folder, argv))
        status, files = self.status(cfg), RunFolder(folder)
        files.begin()
        snapshot.write_config(cfg, files.config)
        numerics = {"torch threads of the trainer": len(self.calls)}
        meta = {"format": FORMAT, "id": "0", "numerics": numerics, "packages": self.packages}
        files.meta.write_text(json.dumps(meta))
        for index, (digest, worker) in enumerate(zip(self.digests, self.workers, strict=True)):
            values = {"digest": digest} if cfg.trainer.digest else {}
            write_lines(files.metrics, [batch_line(index, workers=[WorkerEntry(worker, index)], **values)], "a")
        fields = {"digest": "d" if cfg.trainer.digest else None, "mean_return": self.mean_return(cfg)}
        write_result(folder, status, **fields)
        return SimpleNamespace(status=collectx.run.Status(status), folder=folder)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stub:
    """Takes the place of the run layer; the working directory is `tmp_path`."""
    stub = Stub()
    monkeypatch.setattr(collectx.run, "execute", stub.execute)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    monkeypatch.chdir(tmp_path)
    return stub
