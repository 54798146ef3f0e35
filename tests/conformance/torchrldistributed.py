"""TorchRL's distributed collectors in a process of their own, as they may hang when it ends:

    python torchrldistributed.py sync|async PORT FILE

writes three batches of 40 frames, of two workers with an env of their own each, to FILE.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import torch
from conforming import collect, policy, seeded, seeds
from torchrl.collectors.distributed import DistributedCollector, DistributedSyncCollector
from worlds import torchrlenvs

MAKES = [partial(torchrlenvs.primed, float(worker)) for worker in range(2)]
FRAMES = {"frames_per_batch": 40, "total_frames": 120}

if __name__ == "__main__":
    torch.set_num_threads(1)
    cls = DistributedSyncCollector if sys.argv[1] == "sync" else DistributedCollector
    creates = [seeded(make, seeds("cartpole", worker)) for worker, make in enumerate(MAKES)]
    collector = cls(creates, policy("cartpole"), launcher="mp", tcp_port=int(sys.argv[2]), **FRAMES)
    torch.save(collect(collector), sys.argv[3])
    os._exit(0)
