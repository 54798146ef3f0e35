"""The numbers that factories, constructors and wrappers of envs may name."""

from functools import partial

import pytest
from library_collectors import make
from torchrl.envs import GymWrapper
from user_code.numbered import Numbered
from ways import GLOO_ASYNC, GLOO_SYNC, INLINE_SYNC, RPC_SYNC, SHARED_ASYNC, SHARED_SYNC, SINGLE, over

from collectx.env.env_indices import EnvNumbers


def seen(batches):
    return {tuple(map(int, row)) for batch in batches for row in batch["observation"].reshape(-1, 3)}


def test_a_configuration_names_numbers_in_strings_and_parameters():
    numbers = EnvNumbers(8, 2).of(3)
    kwargs = {
        "folder": "v/{env_index}-{worker_index}",
        "port": "{env_index}",
        "other": ["{x}", {"gpu": "{worker_index}"}],
    }
    filled = {"folder": "v/11-2", "port": 11, "other": ["{x}", {"gpu": 2}]}
    assert numbers.arguments(lambda env_index, **kwargs: None, kwargs) == filled | {"env_index": 11}
    assert numbers.arguments(dict, {"env_index": 5}) == {"env_index": 5}
    assert numbers.named_by(partial(Numbered, env_index=1)) == {"worker_index": 2}


@over((SINGLE, INLINE_SYNC, SHARED_SYNC, GLOO_SYNC, RPC_SYNC), smoke=True)
def test_every_env_has_its_own_number(way):
    with make(way, Numbered, num_envs=2, frames_per_batch=8) as made:
        first = {(0, 0, 0), (1, 0, 1)}
        assert seen([made.next()]) == (first if way is SINGLE else first | {(2, 1, 2), (3, 1, 3)})


def test_the_envs_that_show_their_spaces_have_numbers_of_no_other():
    """They are made and closed in this process, before those of the workers are made."""
    made = []

    def create(env_index, worker_index):
        made.append((env_index, worker_index))
        return Numbered(env_index, worker_index)

    with make(SINGLE, create, num_envs=3, frames_per_batch=3) as collector:
        collector.next()
        assert made == [(-1, -1), (-2, -1), (-3, -1), (0, 0), (1, 0), (2, 0)]


def torchrls(env_index, worker_index):
    return GymWrapper(Numbered(env_index, worker_index))


@pytest.mark.parametrize("create", [torchrls, lambda env_index, worker_index: Numbered(env_index, worker_index)])
def test_of_any_factory(create):
    with make(SINGLE, create, num_envs=2, frames_per_batch=8) as made:
        assert seen([made.next()]) == {(0, 0, 0), (1, 0, 1)}


@over((SHARED_ASYNC, GLOO_ASYNC), smoke=True)
def test_a_replaced_worker_has_the_numbers_of_the_lost_one(way, tmp_path):
    create = partial(Numbered, killed=str(tmp_path / "killed"))
    counts = dict.fromkeys([(0, 0, 0), (1, 1, 1)], 0)
    with make(way, create, frames_per_batch=8, on_worker_failure="restart") as made:
        # The lost one has delivered one batch.
        while min(counts.values()) < 3:
            (numbers,) = seen([made.next()])
            counts[numbers] += 1
    assert (tmp_path / "killed").exists()


def test_workers_that_are_collectors_number_their_processes():
    with make(GLOO_SYNC, Numbered, num_workers_per_collector=2, frames_per_batch=16) as made:
        assert seen([made.next()]) == {(index, index, index) for index in range(4)}


@over((SHARED_ASYNC, GLOO_ASYNC, RPC_SYNC), smoke=True)
def test_an_error_of_the_constructor_names_env_and_worker(way):
    with (
        pytest.raises(OSError, match="port") as raised,
        make(way, partial(Numbered, broken=True), num_envs=2, frames_per_batch=8) as made,
    ):
        made.next()
    assert "making env 2 of worker 1" in "\n".join(raised.value.__notes__)
