"""The batches that a trainer gets where YAML asks for others than all frames of all workers."""

import pytest
from composed_overrides import composed
from library_collectors import make
from ways import INLINE_SYNC, SINGLE

from collectx.run import RunFolder, Status, execute

CARTPOLE = (
    "env=cartpole env.num_envs=1 policy=random trainer=meter trainer.digest=true launcher=inline "
    "collector.num_workers=2 collector.frames_per_batch=40 collector.total_frames=400"
)


@pytest.fixture
def run(train_with, tmp_path):
    """Runs CartPole with these overrides; the batches, and the lines of `metrics.jsonl`."""

    def start(line):
        trainer = train_with()
        assert execute(composed(f"{CARTPOLE} {line}"), tmp_path, ["run"]).status is Status.COMPLETED
        return trainer.batches, list(RunFolder(tmp_path).read_metrics())

    return start


@pytest.mark.sample(1)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_batch_has_the_dimensions_of_its_envs_for_any_number(run, num_envs):
    batches, _ = run(f"env.num_envs={num_envs} collector=multi_sync")
    assert {batch.shape for batch in batches} == {(2, num_envs, 20 // num_envs)}


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("way", "size", "keywords"),
    [
        (INLINE_SYNC, 40, {"trajs_per_batch": 3, "traj_format": "padded"}),
        (INLINE_SYNC, 40, {"trajs_per_batch": 3, "traj_format": "cat"}),
        (INLINE_SYNC, 21, {"trajs_per_batch": 2, "traj_format": "cat", "preemptive_threshold": 0.5}),
        (INLINE_SYNC, 21, {"preemptive_threshold": 0.5}),
        (SINGLE, 40, {"compact_obs": True}),
    ],
    ids=["padded", "cat", "cat_cut_short", "cut_short", "compact"],
)
def test_batches_are_those_of_the_python_classes(run, way, size, keywords):
    values = {"num_workers": way.num_workers} | keywords
    batches, lines = run(f"collector={way.kind} " + " ".join(f"collector.{key}={values[key]}" for key in values))
    with make(way, frames_per_batch=40, total_frames=400, num_envs=1, **keywords) as collector:
        expected = list(collector)
    assert len(batches) == len(expected) > 0
    for mine, other in zip(batches, expected, strict=True):
        assert mine.names == other.names
        assert {*mine.keys(True, True)} == {*other.keys(True, True)}
        assert (mine == other).all()
    # What is counted are the collector's batches.
    assert [line.frames for line in lines] == list(range(size, lines[-1].frames + 1, size))
    assert 400 <= lines[-1].frames < 400 + size
