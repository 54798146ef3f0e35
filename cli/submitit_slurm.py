"""Translates `hydra/launcher=submitit_slurm`, the launcher of hydra-submitit-launcher, into `launcher=slurm` with the
same resources.

    -m hydra/launcher=submitit_slurm hydra.launcher.timeout_min=60      launcher=slurm launcher.time=60

Called with the words of a command line, before the composition.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectx.config.problem import did_you_mean

_GROUP, _PREFIX = "hydra/launcher", "hydra.launcher."
# Keys of submitit_slurm, and of launcher=slurm.
_KEYS = {
    "timeout_min": "time",
    "gpus_per_node": "gpus",
    "array_parallelism": "max_parallel",
    "additional_parameters": "sbatch",
    "name": "sbatch.job-name",
    **{key: key for key in ("partition", "qos", "account", "constraint", "cpus_per_task", "nodes", "setup")},
    **{key: f"sbatch.{key}" for key in ("comment", "exclude", "gres", "cpus_per_gpu", "gpus_per_task")},
    **{key: f"sbatch.{key}" for key in ("mem_per_gpu", "mem_per_cpu")},
}
# Keys without a counterpart, and what replaces them.
_OTHERS = {
    "tasks_per_node": "the tasks are the trainer and collector.num_workers workers; launcher.nodes spreads them.",
    "signal_delay_s": "launcher.sbatch.signal is SLURM's option for a signal.",
    "max_num_timeout": "launcher.requeue=true continues a job after its time limit, launcher.max_requeues times.",
    "stderr_to_stdout": "logs/job.log of the run folder has both.",
    "submitit_folder": "jobs/ and logs/ of the run folder have scripts and logs.",
}


def translated(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The translated words, and a problem for each word that cannot be translated."""
    chosen = [word.partition("=")[2] for word in words if word.lstrip("+").startswith(f"{_GROUP}=")]
    if not chosen or chosen[-1] == "points":
        return list(words), []
    if chosen[-1] != "submitit_slurm":
        where = "where runs and workers are started is a choice of the group launcher: `collectx list launcher`"
        return list(words), [f"{_GROUP}={chosen[-1]}: {where}."]
    ours: list[str] = []
    problems = [
        f"{word} and {_GROUP}=submitit_slurm both say where the run is started: use one of them."
        for word in words
        if word.startswith("launcher=") and word != "launcher=slurm"
    ]
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        if key == _GROUP:
            ours.append("launcher=slurm")
        elif not key.startswith(_PREFIX):
            ours.append(word)
        elif (name := key.removeprefix(_PREFIX)) == "mem_gb":
            ours.append(f"launcher.mem={value if value == 'null' else f'{value}G'}")
        elif (first := name.partition(".")[0]) in _KEYS:
            ours.append(f"launcher.{_KEYS[first]}{name[len(first) :]}={value}")
        elif word.lstrip("+") == f"{_PREFIX}tasks_per_node=1":
            pass  # the default of hydra-submitit-launcher: one process runs the function
        elif name in _OTHERS:
            problems.append(f"{word}: launcher=slurm has no such key: {_OTHERS[name]}")
        else:
            problems.append(f"{word}: no such key{did_you_mean(name, [*_KEYS, 'mem_gb'], prefix=_PREFIX)}")
    return ours, problems
