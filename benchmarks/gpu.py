"""What only a machine with a GPU can show, in nine minutes: `benchmarks/gpu.sh` sets up such a machine and runs this.

    python -m benchmarks.gpu RESULTS [--device cpu] [--only tests nccl] [--minutes 9]

Each part is a process with a time limit of its own, the most important part first. A part appends every figure to
`RESULTS/results.jsonl` as soon as it has it, so a part that is killed loses only the figure in progress. Output goes to
`RESULTS/log.txt`. `--device cpu` rehearses the parts on a machine without a GPU. Their limits grow with `--minutes`.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.cases import CASES, SERVER, Case, env_config, policy_config, run_config

# How long a killed part may take to end.
_KILL_S = 5.0
_MINUTES = 9.0
# Per measured side of a comparison.
_SECONDS, _TURNS = 2.0, 3


@dataclass(frozen=True)
class Context:
    """What a part needs to know.

    Attributes:
        device: of policies: "cuda", or "cpu" in a rehearsal.
        record: writes one row of `results.jsonl`.
    """

    device: str
    folder: Path
    record: Callable[..., None]


@dataclass(frozen=True)
class Part:
    """One part: its function, and the seconds after which its processes are killed."""

    run: Callable[[Context], None]
    limit_s: float


def tests(context: Context) -> None:
    """The GPU tests of the project."""
    variables = os.environ | {"COLLECTX_TEST_DEVICE": context.device}
    command = [sys.executable, "-m", "pytest", "--tier=all", "tests/contract/test_on_gpu.py"]
    context.record(status=subprocess.run(command, env=variables, stdin=subprocess.DEVNULL).returncode)


def doctor(context: Context) -> None:
    """What `collectx doctor` finds."""
    context.record(status=_call("collectx", "doctor"))


def training(context: Context) -> None:
    """PPO with networks on the device and on the CPU: frames/s, and the share of the time that the trainer learns."""
    pong = ["env=pong", "policy=cnn", "trainer=ppo", "collector.num_workers=8", "collector.frames_per_batch=2048"]
    for name, overrides, frames in (
        ("cartpole_ppo", ["experiment=cartpole_ppo", "trainer.target_return=null"], 40_960),
        ("pong_ppo", pong, 8_192),
    ):
        for device in dict.fromkeys((context.device, "cpu")):
            folder = context.folder / f"{name}_{device}"
            overrides_of_run = [f"devices={device}", f"collector.total_frames={frames}", f"hydra.run.dir={folder}"]
            status = _call("collectx", "run", *overrides, *overrides_of_run)
            context.record(case=name, device=device, status=status, **_rates(folder))


def _rates(folder: Path) -> dict[str, float]:
    """Frames/s, and the share of the time in which the trainer did not wait for batches; without the first batch."""
    with contextlib.suppress(FileNotFoundError, IndexError):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        first, last = lines[0], lines[-1]
        elapsed_s = last["time"] - first["time"]
        waited_s = sum(line["waited_s"] for line in lines[1:])
        frames = last["frames"] - first["frames"]
        return {"frames_per_s": frames / elapsed_s, "trainer_share": 1.0 - waited_s / elapsed_s}
    return {}


def processes(context: Context) -> None:
    """Two and fourteen workers whose policies act on one GPU, with batches there, and how long publishing takes."""
    case = CASES["cartpole_32"]
    for kind in ("multi_async", "multi_sync", "distributed"):
        for num_workers in (2, 14):
            for device in dict.fromkeys((context.device, "cpu")):
                with _collector(replace(case, workers=num_workers), kind, device) as collector:
                    rate = _frames_per_s(collector)
                    on_device = next(collector)["observation"].device.type == device
                context.record(
                    case="cartpole_32",
                    kind=kind,
                    workers=num_workers,
                    device=device,
                    frames_per_s=rate,
                    batches_on_device=on_device,
                )
    for kind in ("multi_async", "distributed"):
        for megabytes in (1.0, 100.0, 400.0):
            _publishing(context, kind, megabytes)


def _publishing(context: Context, kind: str, megabytes: float) -> None:
    from benchmarks.cases import ballast_config, counting_config

    cfg = run_config(counting_config(), ballast_config(megabytes), kind, 1, 1)
    with _built(cfg, context.device) as (collector, policy):
        times: list[float] = []
        for _ in range(6):
            began = perf_counter()
            version = collector.publish(policy)
            published_s = perf_counter() - began
            next(collector)
            while collector.delivery.parts[0].report.policy_version != version:
                next(collector)
            times.append(perf_counter() - began)
    context.record(
        case="publish", kind=kind, megabytes=megabytes, publish_ms=1e3 * published_s, use_ms=1e3 * median(times)
    )


def inference(context: Context) -> None:
    """Central inference on the device, policies in every worker on the device and on the CPU, in turn; TorchRL's
    `AsyncBatchedCollector` beside them."""
    import importlib.util

    from benchmarks import fresh

    wide = replace(CASES["cartpole_1x8_wide"], policy="wider")
    for name, case in (("pong_1x8_cnn", CASES["pong_1x8_cnn"]), ("cartpole_1x8_wider", wide)):
        if case.env_id.startswith("ALE/") and importlib.util.find_spec("ale_py") is None:
            context.record(case=name, status="ale-py is missing")
            continue
        for num_workers in (8, 14):
            group = replace(case, workers=num_workers)
            sides = {
                f"server_{context.device}": ("multi_async" + SERVER, context.device),
                f"local_{context.device}": ("multi_async", context.device),
                "local_cpu": ("multi_async", "cpu"),
            }
            rates = {side: [] for side in sides}
            for _turn in range(_TURNS):
                for side, (kind, device) in sides.items():
                    with _collector(group, kind, device) as collector:
                        rates[side].append(_frames_per_s(collector))
            row = {side: median(values) for side, values in rates.items()}
            context.record(case=name, workers=num_workers, frames_per_s=row)
        if importlib.util.find_spec("torchrl") is not None and name in CASES:
            with contextlib.suppress(fresh.Failed):
                kind = "multi_async" + SERVER
                with fresh.Session("benchmarks.peer", timeout_s=40.0, case=name, kind=kind) as session:
                    turn = session.turn(_SECONDS)
                context.record(case=name, torchrl=turn["frames"] / turn["seconds"], device="cpu")


def acceleration(context: Context) -> None:
    """`cudagraph_policy` and `compile_policy` of `Collector`, relative to neither."""
    from tensordict.nn import TensorDictModule
    from torch import nn

    from collectx import Collector

    layers = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2))
    policy = TensorDictModule(_Argmax(layers), in_keys=["observation"], out_keys=["action"])
    options: dict[str, dict[str, Any]] = {"neither": {}, "compile_policy": {"compile_policy": True}}
    if context.device == "cuda":
        options["cudagraph_policy"] = {"cudagraph_policy": True}
        options["both"] = {"compile_policy": True, "cudagraph_policy": True}
    for name, keywords in options.items():
        keywords |= {"policy_device": context.device, "num_envs": 32, "frames_per_batch": 2048, "total_frames": -1}
        with Collector(partial(_gym, "CartPole-v1"), policy, **keywords) as collector:
            iterator = iter(collector)
            next(iterator)
            context.record(case=name, device=context.device, frames_per_s=_frames_per_s(iterator))


def nccl(context: Context) -> None:
    """Two NCCL ranks on one GPU are refused before a process starts."""
    overrides = ["backend=nccl", "collector=distributed_sync", "devices=cuda", "debug=tiny", "trainer=meter"]
    run = subprocess.run(["collectx", "run", *overrides], capture_output=True, text=True)
    context.record(status=run.returncode, message=(run.stdout + run.stderr)[-2000:])


PARTS = {
    "tests": Part(tests, 150),
    "doctor": Part(doctor, 20),
    "training": Part(training, 110),
    "processes": Part(processes, 120),
    "inference": Part(inference, 120),
    "acceleration": Part(acceleration, 60),
    "nccl": Part(nccl, 20),
}


@contextlib.contextmanager
def _built(cfg: Any, device: str) -> Iterator[Any]:
    """The collector of `cfg` with policies and batches on `device`, and the trainer's policy."""
    import torch

    from collectx import env as envs
    from collectx import policy as policies
    from collectx.collector import build
    from collectx.config.schema.launcher import DevicesConfig

    cfg = replace(cfg, devices=DevicesConfig(device=device, storing_device=None, policy_device=None, env_device="cpu"))
    spec = envs.read_spec(cfg.env)
    policy = policies.build(cfg.policy, spec, cfg.seed).to(torch.device(device))
    with build(cfg, policy, spec) as collector:
        yield collector, policy


@contextlib.contextmanager
def _collector(case: Case, kind: str, device: str) -> Iterator[Any]:
    frames = case.frames_per_batch(kind)
    cfg = run_config(env_config(case), policy_config(case), kind, case.num_workers(kind), frames)
    with _built(cfg, device) as (collector, _):
        next(collector)
        yield collector


def _frames_per_s(batches: Iterator[Any]) -> float:
    frames, began = 0, perf_counter()
    while (elapsed_s := perf_counter() - began) < _SECONDS:
        frames += next(batches).numel()
    return frames / elapsed_s


def _gym(env_id: str) -> Any:
    import gymnasium

    return gymnasium.make(env_id)


def _Argmax(layers: Any) -> Any:
    from torch import nn

    class Argmax(nn.Module):
        """Takes the most likely action."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, observation: Any) -> Any:
            return self.layers(observation).argmax(-1)

    return Argmax()


def _call(*command: str) -> int:
    """Runs a command, with its output in the part's; returns its exit status."""
    print("$", *command, flush=True)
    return subprocess.run(command, stdin=subprocess.DEVNULL).returncode


def _recorder(folder: Path, part: str) -> Callable[..., None]:
    def record(**row: Any) -> None:
        with open(folder / "results.jsonl", "a") as file:
            file.write(json.dumps({"part": part} | row) + "\n")
        print(part, row, flush=True)

    return record


def _run_part(name: str, arguments: argparse.Namespace, seconds: float) -> None:
    """Runs a part in a process group of its own, which is killed after `seconds`."""
    command = [sys.executable, "-m", "benchmarks.gpu", str(arguments.results), "--device", arguments.device]
    began = time.monotonic()
    with open(arguments.results / "log.txt", "a") as log:
        print(f"== {name}, at most {seconds:.0f} s", file=log, flush=True)
        process = subprocess.Popen([*command, "--part", name], stdout=log, stderr=log, start_new_session=True)
        try:
            status: Any = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"killed after {seconds:.0f} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_KILL_S)
    _recorder(arguments.results, name)(ended=status, seconds=round(time.monotonic() - began, 1))


def main() -> None:
    """The command; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--minutes", type=float, default=_MINUTES)
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        runs = arguments.results / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        PARTS[arguments.part].run(Context(arguments.device, runs, _recorder(arguments.results, arguments.part)))
        return
    shutil.rmtree(arguments.results, ignore_errors=True)
    arguments.results.mkdir(parents=True)
    end = time.monotonic() + 60.0 * arguments.minutes
    for name in arguments.only:
        left_s = end - time.monotonic() - _KILL_S
        if left_s < 10.0:
            _recorder(arguments.results, name)(ended="not run: no time left")
            continue
        _run_part(name, arguments, min(left_s, PARTS[name].limit_s * arguments.minutes / _MINUTES))


if __name__ == "__main__":
    main()
