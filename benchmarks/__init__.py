"""The comparisons behind all statements about speed: `python -m benchmarks` (or `make bench`).

    __main__.py   the order of measurements, and the report
    cases.py      envs, policies, batch sizes: what all sides of a comparison have in common
    greedy.py     the policy as a plain module
    bare.py       the bare loop, an upper bound for any collector
    ours.py       the same with collectx
    peer.py       the same with TorchRL
    peers/        beside other libraries, which have environments of their own: `make bench-peers`
    speed.py      shares and ratios: the three above in turns
    compare.py    this checkout and another revision in turns: `make bench-compare REV=...`
    learning.py   learning curves of the built-in trainers
    tables.py     the tables and the plot of the documentation, from results.json and learning.json
    replay.py     replay buffers beside those of other libraries: `make bench-replay`
    printing.py   command, machine, date; medians with their spread
    many.py       hundreds of worker processes over gloo
    instrumented.py  a run that shows and records everything, and the collector alone, in turns
    sizes.py      shares for growing observations, times from publish to use for growing weights, with their limits
    startup.py    time to the first batch
    short.py      shares with short batches, through the command
    slurm.py      time from the command to the first batch of a job
    memory.py     resident memory over many batches, and remaining processes and files
    handover.py   time from publish to use over gloo, and one raw gloo send
    leases.py     large observations, by who owns a batch
    updates.py    processor time of one gradient step of the built-in trainers, and of one written by hand
    learners.py   PPO with one learner and with two, in collectx and in RLlib
    ppo.py        whole scripts of PPO with collectx, CleanRL and TorchRL
    overhead.py   the trainer's cost per batch; time from publish to use
    fresh.py      runs every measurement in a new process
    gpu.py        what only a machine with a GPU can show, by gpu.sh
    tensor_envs.py  a vector env that returns tensors on a device, for gpu.py
    walks.py      files and lines that run for a frame, a publish, a lost worker, a checkpoint, a resume (no speed)

Compare only ratios within one run: absolute figures depend on the machine and its other load.
"""
