"""Several processes on one buffer: no frame is torn, mixed or lost, and nobody waits for a killed one."""

import signal

import pytest
import torch
from user_code.countedframes import LARGE, SIZE, Stream, check_whole, die, write

from collectx import ReplayBuffer
from collectx.place.local_launcher import LocalLauncher
from collectx.replay import PrioritizedSampler, SliceSampler, UniformSampler
from collectx.replay import buffer as replay_buffer

pytestmark = [pytest.mark.ci, pytest.mark.timeout(400)]
SAMPLERS = {
    "uniform": lambda: UniformSampler(0),
    "prioritized": lambda: PrioritizedSampler(seed=0),
    "slices": lambda: SliceSampler(4, seed=0),
}
WRITERS, BATCHES, FRAMES, SAMPLES = 3, 60, 16, 100
PATIENCE_S = 180  # on a machine that has much else to do


def start(target, *arguments):
    launcher = LocalLauncher(1)
    return launcher.start(0, (target, arguments))


def finish(process) -> int:
    process.join(PATIENCE_S)
    assert process.exitcode is not None, f"still running after {PATIENCE_S} s"
    return process.exitcode


def nightly(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.mark.parametrize("kind", [nightly("uniform"), "prioritized", nightly("slices")])
def test_samples_are_whole_while_others_write_and_after_they_are_killed(kind, wait_until):
    """The ring is small, so that what is read is just being overwritten."""
    buffer = ReplayBuffer(100, sampler=SAMPLERS[kind]())
    writers = [start(write, buffer, 2 * w, 10**9) for w in range(WRITERS)]
    seen = 0
    for _ in range(SAMPLES):
        # A reader that never waits would keep the lock from the writers.
        wait_until(lambda seen=seen: buffer.write_count > seen, PATIENCE_S, "more frames")
        seen = buffer.write_count
        sample = buffer.sample(64)
        check_whole(sample)
        if kind == "prioritized":
            buffer.update_priority(sample["index"], torch.rand(64))
    for writer in writers:
        writer.kill()
        assert finish(writer) == -signal.SIGKILL
        check_whole(buffer.sample(200))
        buffer.extend(Stream(1).take(10))


def test_every_frame_is_there_once():
    buffer = ReplayBuffer(WRITERS * BATCHES * FRAMES)
    writers = [start(write, buffer, 2 * w, BATCHES) for w in range(WRITERS)]
    assert [finish(writer) for writer in writers] == [0] * WRITERS
    everything = buffer[torch.arange(buffer.write_count)]
    check_whole(everything)
    for env in range(2 * WRITERS):
        mine = everything[everything["observation"][:, 0] == env]
        expected = Stream(1, env).take(BATCHES * FRAMES // 2)[0]
        assert torch.equal(mine["observation"], expected["observation"])


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("uniform", "write"),
        *(("prioritized", where) for where in ("written", "update")),
        ("slices", "dropped"),
        ("uniform", "shared"),
        *(nightly("prioritized", where) for where in ("write", "dropped")),
        *(nightly("slices", where) for where in ("write", "written")),
    ],
)
def test_a_writer_that_is_killed_in_the_midst(kind, where):
    buffer = ReplayBuffer(40, sampler=SAMPLERS[kind]())
    stream = Stream(1, 5, size=LARGE if where == "shared" else SIZE)
    buffer.extend(stream.take(50))
    assert finish(start(die, buffer, where)) == -signal.SIGKILL
    lost = {"dropped": 16, "write": 16, "shared": 16}.get(where, 0)
    assert len(buffer) == 40 - lost
    assert buffer.write_count == 50 + (16 if where == "written" else 0)
    check_whole(buffer.sample(400))
    if kind != "slices":  # which are not of every frame
        numbers = buffer.sample(2000)["index"].unique().tolist()
        assert numbers == list(range(buffer.write_count - len(buffer), buffer.write_count))
    buffer.extend(stream.take(50))
    assert len(buffer) == 40
    check_whole(buffer.sample(400))
    if where == "shared":
        # The killed writer has kept no place: the 40 frames have 41 observations, and one more for each new episode.
        assert len(buffer.state_dict()["pools"]["values"]["observation"]) < 50


@pytest.mark.parametrize(
    ("kind", "capacity"), [("prioritized", 40), ("uniform", 16), nightly("uniform", 40), nightly("slices", 40)]
)
def test_a_writer_that_is_killed_while_others_sample(kind, capacity, monkeypatch):
    """The buffer has room for one batch only, so no earlier frame is left."""
    buffer = ReplayBuffer(capacity, sampler=SAMPLERS[kind]())
    buffer.extend(Stream(1, 5).take(50))
    barrier = replay_buffer.barrier

    def meanwhile():
        monkeypatch.setattr(replay_buffer, "barrier", barrier)
        assert finish(start(die, buffer, "write")) == -signal.SIGKILL

    monkeypatch.setattr(replay_buffer, "barrier", meanwhile)
    if capacity == 16:
        with pytest.raises(ValueError, match="the buffer is empty"):
            buffer.sample(400)
        return
    sample = buffer.sample(400)
    check_whole(sample)
    assert set(sample["index"].reshape(-1).tolist()) <= set(range(26, 50))
