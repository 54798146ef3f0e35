"""Workers that come at the wrong time: dead before they have joined, or when nobody waits for them any more."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from worlds import toyworker
from worlds.toyworker import arrive, lose, slab_spec, writer

from collectx.errors import WorkerDied, WorkerTimeout
from collectx.launcher.local import LocalLauncher
from collectx.transport.base import Arrival, Joined
from collectx.transport.distributed import DistributedTransport
from collectx.transport.switchboard import Switchboard


class Trainer:
    """A transport that tells worker 0, in its first life, its task only when it is let, and waits for it no longer than
    `patience_s`."""

    def __init__(self, num_workers, patience_s=60.0):
        self.spec = slab_spec(num_workers, num_slots=1)
        self.lives = []
        self.is_greeted, self.may_be_told, self.is_refused = threading.Event(), threading.Event(), threading.Event()
        self._launcher = LocalLauncher(1)
        limits = [patience_s] + [60.0] * num_workers
        board = Switchboard(
            60.0, 60.0, 1.0, self._launcher.describe, lambda worker: ("collector.start_timeout_s", limits[worker])
        )
        self.transport = DistributedTransport(
            self.spec, board, ("127.0.0.1",), 0, b"secret", self._task, 60.0, lambda *_, **__: self.is_refused.set()
        )
        self.transport.publish(writer(1))

    def _task(self, worker, life):
        if worker == 0:
            self.lives.append(life)
            if life == 0:
                self.is_greeted.set()
                assert self.may_be_told.wait(60)
        return {}

    def start(self, worker, is_watched=True):
        arguments = (self.transport.meeting, worker, self.spec)
        handle = self._launcher.start(toyworker.serve_remote, arguments, worker)
        if is_watched:
            self.transport.attach(worker, handle)
        self.transport.grant(worker, 0)
        return handle


@pytest.fixture
def trainer():
    made = []

    def trainer(*args):
        made.append(Trainer(*args))
        return made[-1]

    yield trainer
    for each in made:
        each.may_be_told.set()
        each.transport.close()


def test_the_life_of_a_worker_that_died_while_it_joined_is_not_lived_again(trainer):
    trainer = trainer(1)
    first = trainer.start(0)
    assert trainer.is_greeted.wait(60)
    os.kill(first.pid, signal.SIGKILL)
    assert isinstance(lose(trainer.transport), WorkerDied)
    trainer.transport.expect(0, 1)
    trainer.may_be_told.set()
    assert trainer.is_refused.wait(60)
    trainer.start(0)
    assert isinstance(arrive(trainer.transport), Arrival)
    assert trainer.lives == [0, 1]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_who_joins_after_it_was_given_up_is_turned_away(trainer, is_replaced):
    trainer = trainer(2, 2.0)
    late = trainer.start(0, is_watched=False)
    try:
        assert trainer.is_greeted.wait(60)
        assert isinstance(lose(trainer.transport), WorkerTimeout)
        if is_replaced:
            trainer.transport.expect(0, 1)
        trainer.start(1)
        trainer.may_be_told.set()
        deadline = time.monotonic() + 60
        while late.is_alive() and time.monotonic() < deadline:
            event = trainer.transport.receive()
            assert event.worker == 1, event
            if not isinstance(event, Joined):
                time.sleep(0.01)
                trainer.transport.grant(1, 0)
        assert late.exitcode == 0
    finally:
        late.kill()
        late.join()
