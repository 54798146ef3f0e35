"""Several learners with parts of a batch learn what one learner with the whole batch does."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from user_code.equal_learners import ROWS, train

PPO = "trainer=ppo trainer.num_epochs=2 trainer.max_grad_norm=0.1"
LINES = {
    "ppo, one minibatch": f"{PPO} trainer.minibatch_size=100000",
    "ppo, two minibatches": f"{PPO} trainer.minibatch_size={{half}}",
    "ppo, statistics": f"{PPO} trainer.minibatch_size={{half}} trainer.normalize_rewards=true "
    "policy.normalize_observations=true",
    "impala": "trainer=impala collector=multi_async",
}


# Processes that share the imports of torch and collectx.
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(["user_code.equal_learners"])


def trained(line, folder, sizes, num_learners=None):
    """Returns what each of the learners with so many rows each has learned."""
    line = line.format(half=sum(sizes) * 32 // len(sizes) // 2)
    with ProcessPoolExecutor(len(sizes), mp_context=PROCESSES) as processes:
        store = str(folder / f"store-{len(sizes)}")
        ranks = range(len(sizes))
        return [*processes.map(train, *zip(*((line, store, rank, sizes, num_learners) for rank in ranks), strict=True))]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("ppo, one minibatch", (5, 3)),
        ("ppo, two minibatches", (2, 2, 2, 2)),
        ("ppo, statistics", (4, 4)),
        ("impala", (2, 2, 2, 2)),
        ("impala", (5, 3)),
    ],
)
def test_the_weights_are_those_of_one_learner(tmp_path, name, sizes):
    minibatches = len(sizes) if "{half}" in LINES[name] else None
    ((alone, scalars),) = trained(LINES[name], tmp_path, (ROWS,), minibatches)
    learned = trained(LINES[name], tmp_path, sizes)
    for weights, logged in learned:
        assert weights == learned[0][0]
        assert weights == pytest.approx(alone, rel=1e-9, abs=1e-12)
        assert [each["entropy"] for each in logged] == pytest.approx([each["entropy"] for each in scalars], rel=1e-3)
