"""A long run: after 10^5 batches, the other 9 * 10^5 change neither memory nor descriptors nor threads."""

import os

import psutil
import pytest
from commands import COUNTING, collectx, result, start

BATCHES = int(os.environ.get("COLLECTX_SOAK_BATCHES", "1000000"))
MOST = {"memory_mb": 12.0, "descriptors": 2, "threads": 1}
# Of a line of metrics.jsonl; with the times of the worker in every line it would be more.
MOST_BYTES = 420
SMALLEST = [*COUNTING, "collector=single", "launcher=inline", "env.num_envs=1", "collector.frames_per_batch=1"]


def _usage(process):
    return {
        "memory_mb": process.memory_info().rss / 1e6,
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
    }


def _batches(folder):
    """Returns the number of batches of the newest checkpoint."""
    return int(max((path.name for path in folder.glob("checkpoints/[0-9]*")), default="0"))


@pytest.mark.nightly
@pytest.mark.timeout(9 * 3600)
def test_a_million_batches_need_no_more_than_the_first_tenth(tmp_path, wait_until):
    folder, found = tmp_path / "run", []
    size = [f"collector.total_frames={BATCHES}", f"checkpoint.every_batches={BATCHES // 20}", "hydra.run.dir=run"]
    command = start("run", *SMALLEST, *size, cwd=tmp_path)
    process = psutil.Process(command.pid)
    for share in (0.1, 0.9):
        wait_until(
            lambda share=share: _batches(folder) >= share * BATCHES or command.poll() is not None,
            4 * 3600,
            f"{share:.0%} of the batches",
        )
        assert command.poll() is None, (tmp_path / "said.txt").read_text()
        found.append(_usage(process))
    assert command.wait(1200) == 0, (tmp_path / "said.txt").read_text()
    growth = {name: found[1][name] - found[0][name] for name in MOST}
    print(found, result(folder), *((folder / name).stat().st_size for name in ("metrics.jsonl", "events.jsonl")))
    assert all(growth[name] <= most for name, most in MOST.items()), found
    assert result(folder)["batches"] == BATCHES
    assert (folder / "metrics.jsonl").stat().st_size <= MOST_BYTES * BATCHES
    assert (folder / "events.jsonl").stat().st_size <= 10_000
    assert "completed" in collectx("status", "run", cwd=tmp_path).stdout
