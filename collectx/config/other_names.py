"""What other libraries call the options of collectx, for the end of messages: "Did you mean ...?". The names are in the
table `other_names.md`, which is also part of the documentation.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path

from collectx.config.problem import page
from collectx.config.schema.run import LoggerConfig

TABLE = Path(__file__).with_name("other_names.md")
# What users call options and choices that no library calls so, as they write them.
_PATHS = {
    **{each.name: f"logger={each.name}" for each in dataclasses.fields(LoggerConfig) if each.default is None},
    **dict.fromkeys(("name", "run.dir", "run.name"), "hydra.run.dir"),
    **dict.fromkeys(("checkpoint.freq", "checkpoint.interval"), "checkpoint.every_batches"),
    "checkpoint.every": "checkpoint.every_batches or checkpoint.every_min",
    "checkpoint.path": "policy.init_from=RUN_DIR or collectx resume RUN_DIR",
    **dict.fromkeys(("seeds", "num_seeds", "n_seeds"), "-m 'seed=range(5)'"),
    **dict.fromkeys(("eval.freq", "eval.interval"), "eval.every_batches"),
    **dict.fromkeys(("debug=true", "debug=1"), "debug=tiny"),
    "collector=sync": "collector=multi_sync",
    "best": "eval.weights=best",
    "env.name": "env.id",
    "eval.num_envs": "eval.env.num_envs",
    "device=cpu": "devices=cpu",
    "device=cuda": "devices=cuda",
    **dict.fromkeys(("devices=cuda:0", "device=cuda:0"), "devices=cuda devices.device=cuda:0"),
    "logger.entity": "logger.wandb.entity",
    "framework": "Leave it out, because collectx uses PyTorch.",
    "optimizer": "The trainers of collectx use Adam. For another one, write a trainer of your own (trainer=custom).",
    "n": "collector.num_workers",
    **dict.fromkeys(("eval.n", "eval.eps"), "eval.episodes"),
    **dict.fromkeys(("no_cuda", "no_gpu"), "devices=cpu"),
    **dict.fromkeys(("WANDB_MODE", "wandb_mode"), "logger.wandb.mode"),
    "logger.project": "logger.wandb.project",
    "sweep.dir": "hydra.sweep.dir",
    "run.time_limit": "run.max_minutes",
}


@functools.cache
def _rows() -> dict[str, list[str]]:
    """Returns, per name in the table, what the first column says: options, or how to write something of one's own."""
    rows: dict[str, list[str]] = {}
    for line in TABLE.read_text().splitlines()[2:]:
        _, first, *names, _, _ = line.split("|")
        meant = re.findall(r"`([^`]+)`", first) or [
            re.sub(r" (.+), see \[.+\]\(.*/(.+)\.md\) ", lambda each: f"To write {each[1]}: {page(each[2])}", first)
        ]
        for name in dict.fromkeys(re.findall(r"`([^`]+)`", "|".join(names).lower())):
            rows.setdefault(name, []).extend(meant)
    return rows


@functools.cache
def _counts() -> dict[str, str]:
    """Returns what each option of the table counts, if others count something else: "counts ..."."""
    return {
        option: f"counts {differs}"
        for line in TABLE.read_text().splitlines()[2:]
        for option in re.findall(r"`([^`]+)`", line.split("|")[1])
        for differs in re.findall(r"\| Counts (.*) \|$", line)
    }


def meant(path: str, value: object = None) -> list[str]:
    """Returns what users mean by an unknown option or choice, such as "trainer.lr": options, choices or commands, or a
    sentence about writing one; empty if nothing is known. Dashes, as in flags, count as underscores. `value` is what
    the user gave the option, if known."""
    path = path.replace("-", "_")
    if f"{path}={value}" in _PATHS:
        path = f"{path}={value}"
    if path in _PATHS:
        return _PATHS[path].split(" or ")
    # The last part that is known: net_arch of policy_kwargs.net_arch, env_config of env_config.gravity.
    return next(filter(None, map(_rows().get, reversed(path.lower().split(".")))), [])


def hint(meant: list[str]) -> str:
    """Returns the end of a message about an unknown name, from what `meant` returns."""
    *near, last = meant
    if last[0].isupper():
        return f"The nearest is {' or '.join(near)}. {last}" if near else last
    counts = f" It {_counts()[last]}" if meant == [last] and last in _counts() else ""
    return f"Did you mean {' or '.join(meant)}?{counts}"
