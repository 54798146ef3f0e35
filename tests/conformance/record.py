"""Writes golden/: the batches of TorchRL's collectors, a file for each case of `cases.py`, and the signatures of its
classes. What is there is of TorchRL 0.14.1, tensordict 0.14.3, torch 2.13.0, gymnasium 1.4.0, numpy 2.4.6.

    export PYTHONPATH=tests
    python tests/conformance/record.py              everything
    python tests/conformance/record.py NAME ...     some cases
"""

import inspect
import json
import subprocess
import sys
import warnings

import golden
import torch
import torchrl.collectors
import torchrl.collectors.distributed
from cases import CASES, theirs
from tensordict.nn import TensorDictModule

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
    """The public attributes of a collector of each class that was constructed with defaults: the values of plain ones,
    None for others."""
    found = {}
    for name in golden.INSTANCES:
        # In a process of its own, which the end of a remote collector may crash.
        output = subprocess.run([sys.executable, __file__, name], stdout=subprocess.PIPE, text=True, timeout=120).stdout
        found[name] = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    return found


def print_attributes(name):
    module = torchrl.collectors.distributed if name not in golden.LOCAL else torchrl.collectors
    creates, policy = _cartpole if name == "Collector" else [_cartpole] * 2, None
    if name in golden.OVER_TORCH:
        policy = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["action"])
    collector = getattr(module, name)(creates, policy, **golden.SIZES, **golden.INSTANCES[name])
    names = sorted(each for each in {*dir(collector), *vars(collector)} if each[0] != "_")
    values = {each: _attribute(collector, each) for each in names}
    plain = {each: golden.plain(value) for each, value in values.items() if not inspect.isroutine(value)}
    print(f"\n{json.dumps(plain)}", flush=True)
    collector.shutdown()


def _attribute(collector, name):
    try:
        return getattr(collector, name)
    except Exception:  # `worker_idx`, which only a worker's collector has
        return None


def _cartpole():
    from torchrl.envs import GymEnv

    return GymEnv("CartPole-v1")


def _parameters(function):
    if not callable(function):
        return None
    # What `kwargs` passes on is named in the signature of the class above.
    return sorted(set(inspect.signature(function).parameters) - {"self", "args", "kwargs"})


def main(names):
    if names and names[0] in golden.INSTANCES:
        print_attributes(*names)
        return
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
