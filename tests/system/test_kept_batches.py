"""A trainer that keeps batches, changes them, or holds a part of each, as typed."""

import pytest
from commands import collectx, result

TRAINER = """
class Keeping:
    def __init__(self, policy=None):
        pass

    def train(self, collection):
        kept, copies = [], []
        for batch in collection:
            kept.append(KEPT)
            copies.append(kept[-1].clone())
            CHANGED
        assert all((batch == copy).all() for batch, copy in zip(kept, copies))
"""


@pytest.mark.sample(2)
@pytest.mark.ci
@pytest.mark.parametrize(
    ("kind", "kept", "changed", "num_notes"),
    [
        ("multi_async", "batch", "pass", 1),
        ("multi_sync", "batch['observation'][0]", "pass", 1),
        ("multi_sync", "batch.clone()", "batch.apply_(lambda tensor: tensor.fill_(1))", 0),
    ],
)
def test_a_trainer_may_keep_and_change_batches(kind, kept, changed, num_notes, tmp_path):
    (tmp_path / "keeping.py").write_text(TRAINER.replace("KEPT", kept).replace("CHANGED", changed))
    words = ["env=cartpole", f"collector={kind}", "collector.frames_per_batch=64", "collector.total_frames=640"]
    run = collectx("run", *words, "trainer=custom", "trainer.target=keeping:Keeping", "hydra.run.dir=run", cwd=tmp_path)
    assert run.stdout.count("the trainer holds several") == num_notes
    assert (tmp_path / "run" / "events.jsonl").read_text().count('"batches_copied"') == num_notes
    assert result(tmp_path / "run")["frames"] == 640
