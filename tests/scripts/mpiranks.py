"""Two ranks of one MPI job that make a pair, over a connection of their own: for `test_joining.py`, by mpirun."""

from __future__ import annotations

import os
import tempfile
import time
from multiprocessing.connection import Client, Listener

import torch

from collectx.transport.pair import TRAINER, make_pair

rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
place = os.path.join(tempfile.gettempdir(), os.environ["PMIX_NAMESPACE"].replace("/", "-") + ".socket")
if rank == TRAINER:
    with Listener(place) as listener:
        connection = listener.accept()
else:
    deadline = time.monotonic() + 60
    while True:
        try:
            connection = Client(place)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
pair = make_pair("mpi", connection, rank, "", 60.0, ("cpu", "cpu"), {})
# More than MPI sends without the other end's help.
incoming = [pair.receive(torch.zeros(2_000_000, dtype=torch.uint8)) for _ in range(2)]
pending = pair.receive(torch.zeros(10, dtype=torch.uint8))
outgoing = [pair.send(torch.full((2_000_000,), 10 * rank + index, dtype=torch.uint8)) for index in range(2)]
for message in (*incoming, *outgoing):
    message.wait()
for index, message in enumerate(incoming):
    assert message._buffer.unique().tolist() == [10 * (1 - rank) + index]
assert not pending.done()
pair.close()
print(f"{rank}:ok", flush=True)
