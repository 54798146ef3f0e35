"""An entry for processes of the local launcher that tells what it finds around it."""

import os
import signal
import sys

import torch


def report(connection, name):
    print(f"out of {name}")
    print(f"err of {name}", file=sys.stderr)
    connection.send(
        {
            "name": name,
            "pid": os.getpid(),
            "num_threads": torch.get_num_threads(),
            "omp": os.environ.get("OMP_NUM_THREADS"),
            "cores": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
            "sigint": signal.getsignal(signal.SIGINT),
        }
    )
