"""The comparisons that speed claims rest on: `python -m benchmarks` (or `make bench`).

    __main__.py   what is run, in which order, and the report
    cases.py      envs, policies, batch sizes; what every side of a comparison is told
    greedy.py     the policy as a plain module
    bare.py       the loop that no collector can beat
    ours.py       the same with collectx
    peer.py       the same with TorchRL
    speed.py      shares and ratios: pairs of the three above, in turn
    startup.py    time to the first batch
    memory.py     resident memory over many batches, and what is left behind
    overhead.py   the trainer's cost of a batch; from publish to use
    fresh.py      every measurement runs in a new process of its own

Only ratios taken within one run mean anything: absolute figures change with the machine and with what else it does.
"""
