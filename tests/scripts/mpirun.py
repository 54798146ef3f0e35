"""A worker of one run over backend=mpi is killed and replaced, as a process of its own, for
`contract/test_joining.py`. Prints the frames and the names of the events."""

from dataclasses import replace

import ways
from losing_workers import survive

way = replace(ways.GLOO_ASYNC, transport="mpi")
frames, log = survive(way, "killed", num_batches=70, num_workers=2, backend="mpi")
print(frames, *(name for name, _ in log.lines))
