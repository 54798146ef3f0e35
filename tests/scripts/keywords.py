"""Every value of every keyword of a collector, in one script: `python keywords.py MultiSyncCollector`.

Right is: as many frames as asked, or a `ValueError` or `TypeError` that names the keyword. The values are those that
`matrix.py` makes from the type and the limits of the option that a keyword sets; of keywords of Python alone, those of
bools and numbers.
"""

import faulthandler
import math
import sys
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import yaml
from tensordict.nn import TensorDictModule

import collectx
from collectx.library import keywords

sys.path.insert(0, str(Path(__file__).parents[1]))
import matrix

FRAMES, BATCH = 128, 64
# Their batches have other numbers of frames.
UNCOUNTED = ("trajs_per_batch", "split_trajs", "preemptive_threshold")
# Values that TorchRL takes for others, or that reach beyond this machine.
SKIPPED = [
    *(("max_frames_per_traj", 0), ("init_random_frames", -1)),
    *(("backend", name) for name in ("ray", "rpc", "distributed", "submitit")),
    *(("launcher", name) for name in ("submitit", "submitit_delayed")),
]
HANG_S = 120


def make_env():
    return gymnasium.make("CartPole-v1")


policy = TensorDictModule(lambda observation: (observation[..., 0] > 0).long(), ["observation"], ["action"])


# The keywords of each class, and those that it needs on this machine.
CLASSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "Collector": (keywords.SingleKeywords, {}),
    "MultiSyncCollector": (keywords.MultiSyncKeywords, {}),
    "MultiAsyncCollector": (keywords.MultiAsyncKeywords, {}),
    "AsyncBatchedCollector": (keywords.AsyncBatchedKeywords, {"policy": policy}),
    "DistributedCollector": (keywords.DistributedKeywords, {"launcher": "mp"}),
    "DistributedSyncCollector": (keywords.DistributedSyncKeywords, {"launcher": "mp"}),
    "RPCCollector": (keywords.RpcKeywords, {"launcher": "mp"}),
}


def parsed(text: str) -> Any:
    return float(text) if text in ("nan", "inf", "1e-09") else yaml.safe_load(text)


def values(name: str) -> list[tuple[str, Any, bool]]:
    """Keyword, value, and whether the type and the limits allow it."""
    cls, _ = CLASSES[name]
    hints = typing.get_type_hints(cls)
    found = []
    for each in fields(cls):
        kinds = [kind for kind in matrix._members(hints[each.name]) if kind is not type(None)]
        if len(kinds) != 1 or kinds[0] not in (bool, int, float, str):
            continue
        if kinds[0] is str and "choices" not in each.metadata:
            continue
        right, wrong = matrix._of(hints[each.name], each.metadata, each.default)
        found += [(each.name, parsed(text), True) for text in right if len(text) < 16]
        # None stands for the default in many keywords of TorchRL, and no number of workers is so large.
        found += [(each.name, parsed(text), False) for text in wrong if text != "null" and len(text) < 16]
    return [each for each in found if each[:2] not in SKIPPED]


def frames_of(collector: Any) -> int:
    count = 0
    for batch in collector:
        count += batch.numel()
        if count >= FRAMES:
            break
    return count


def problem(cls: str, name: str, value: Any, is_right: bool) -> str | None:
    """Returns what is wrong with one value; None if nothing is."""
    given = {"frames_per_batch": BATCH, "total_frames": FRAMES} | CLASSES[cls][1] | {name: value}
    envs = make_env if cls == "Collector" or name == "num_workers" else [make_env] * 2
    try:
        collector = getattr(collectx, cls)(envs, **given)
        try:
            count = frames_of(collector)
        finally:
            collector.shutdown()
    except (ValueError, TypeError) as error:
        return None if name in str(error) else f"{type(error).__name__} without its name: {error}"
    except Exception as error:
        is_late = "timeout" in name and name in str(error)
        return None if is_late else f"{type(error).__name__}: {error}"
    if not is_right:
        return "is accepted, although its limits do not allow it"
    if name in UNCOUNTED:
        return None
    batch, total = given["frames_per_batch"], given["total_frames"]
    asked = FRAMES if total in (None, -1) else min(total, FRAMES)
    if count != math.ceil(asked / batch) * batch:
        return f"delivers {count} frames of {asked}"
    return None


def main() -> int:
    (name,) = sys.argv[1:]
    faults = 0
    for keyword, value, is_right in values(name):
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        if (what := problem(name, keyword, value, is_right)) is not None:
            faults += 1
            print(f"FAULT {name}({keyword}={value!r}): {what}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(f"{len(values(name))} values, {faults} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
