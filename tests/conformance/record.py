"""Writes golden/: the batches of TorchRL's collectors, a file for each case of `cases.py`, and the signatures of its
classes. What is there is of TorchRL 0.14.1, tensordict 0.14.3, torch 2.13.0, gymnasium 1.4.0, numpy 2.4.6.

    export PYTHONPATH=tests
    python tests/conformance/record.py              everything
    python tests/conformance/record.py NAME ...     some cases
"""

import inspect
import json
import sys
import warnings

import golden
import torch
import torchrl.collectors
import torchrl.collectors.distributed
from cases import CASES, theirs

import collectx


def signatures():
    """Keywords of TorchRL's collectors that are here too, and their public methods' parameters; a property has None."""
    classes = {
        name: getattr(module, name)
        for module in (torchrl.collectors, torchrl.collectors.distributed)
        for name in dir(module)
        if name.endswith("Collector") and hasattr(collectx, name) and name != "BaseCollector"
    }
    return {
        name: {
            "keywords": _parameters(cls.__init__),
            "methods": {each: _parameters(getattr(cls, each)) for each in sorted(dir(cls)) if each[0] != "_"},
        }
        for name, cls in sorted(classes.items())
    }


def names():
    """The public names of TorchRL's modules of collectors, without those of modules."""
    return {
        module.__name__: [
            name for name in dir(module) if name[0] != "_" and not inspect.ismodule(getattr(module, name))
        ]
        for module in (torchrl.collectors, torchrl.collectors.distributed)
    }


def attributes():
    """The public attributes of a collector of each class on this machine that was constructed with defaults: the values
    of plain ones, None for others."""
    found = {}
    for name in golden.INSTANCES:
        cls = getattr(torchrl.collectors, name)
        collector = cls(_cartpole if name == "Collector" else [_cartpole] * 2, None, **golden.SIZES)
        try:
            names = sorted(each for each in {*dir(collector), *vars(collector)} if each[0] != "_")
            values = {each: getattr(collector, each, None) for each in names}
            found[name] = {each: golden.plain(value) for each, value in values.items() if not inspect.isroutine(value)}
        finally:
            collector.shutdown()
    return found


def _cartpole():
    from torchrl.envs import GymEnv

    return GymEnv("CartPole-v1")


def _parameters(function):
    if not callable(function):
        return None
    # What `kwargs` passes on is named in the signature of the class above.
    return sorted(set(inspect.signature(function).parameters) - {"self", "args", "kwargs"})


def main(names):
    for name in names or CASES:
        golden.save(golden.FOLDER / f"{name}.npz", theirs(CASES[name]))
        print(name, flush=True)
    if not names:
        for function in (signatures, names, attributes):
            (golden.FOLDER / f"{function.__name__}.json").write_text(json.dumps(function(), indent=1) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(sys.argv[1:])
