"""What only a machine with a GPU can show, in nine minutes: `benchmarks/gpu.sh` sets up such a machine and runs this.

    python -m benchmarks.gpu RESULTS [--device cpu] [--only tests nccl] [--minutes 9]

Each part is a process with a time limit of its own, the most important part first. A part appends every figure to
`RESULTS/results.jsonl` as soon as it has it, so a part that is killed loses only the figure in progress, and a row that
fails has its error. Output goes to `RESULTS/log.txt`, with the logs of runs that fail. `--device cpu` rehearses the
parts on a machine without a GPU. Their limits grow with `--minutes`.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
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
# Per measured side of a comparison, after a warm-up.
_SECONDS, _WARM_UP_S, _TURNS = 2.0, 0.5, 2


@dataclass(frozen=True)
class Context:
    """What a part needs to know.

    Attributes:
        device: of policies: "cuda", or "cpu" in a rehearsal.
        folder: for the folders of runs.
        record: writes one row of `results.jsonl`.
        patience: how much longer everything may take than on a machine for which the limits were made.
    """

    device: str
    folder: Path
    record: Callable[..., None]
    patience: float

    @property
    def devices(self) -> list[str]:
        """The device, and the CPU beside it."""
        return [*dict.fromkeys((self.device, "cpu"))]

    @contextlib.contextmanager
    def row(self, **row: Any) -> Iterator[dict[str, Any]]:
        """Records `row` with what the block adds to the dict that it gets, and its error; the next block runs."""
        found: dict[str, Any] = {}
        try:
            yield found
        except Exception as error:
            traceback.print_exc()
            found["error"] = f"{type(error).__name__}: {error}"[:1000]
        self.record(**row, **found)


@dataclass(frozen=True)
class Part:
    """One part: its function, and the seconds after which its processes are killed."""

    run: Callable[[Context], None]
    limit_s: float


def tests(context: Context) -> None:
    """The GPU tests of the project, each on a line of the log when it has ended."""
    variables = os.environ | {"COLLECTX_TEST_DEVICE": context.device}
    processes = str(max(1, (os.cpu_count() or 1) // 4))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-vv",
        "--tier=all",
        "-n",
        processes,
        "--dist=load",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:benchmark",  # warns that it does nothing beside xdist, and warnings are errors
    ]
    command += ["--durations=10", f"--timeout={100 * context.patience:.0f}", "tests/contract/test_on_gpu.py"]
    context.record(status=subprocess.run(command, env=variables, stdin=subprocess.DEVNULL).returncode)


def doctor(context: Context) -> None:
    """What `collectx doctor` finds, and the card and the versions, for the tables."""
    import torch

    with context.row(case="machine", torch=torch.__version__, cuda=torch.version.cuda, cores=os.cpu_count()) as found:
        if context.device == "cuda":
            properties = torch.cuda.get_device_properties(0)
            found |= {"gpu": properties.name, "memory_gb": round(properties.total_memory / 1e9, 1)}
    with context.row(case="doctor") as found:
        found["status"] = _call("collectx", "doctor")


def training(context: Context) -> None:
    """PPO with networks on the device and on the CPU: frames/s, and the share of the time that the trainer learns."""
    pong = ["env=pong", "policy=cnn", "trainer=ppo", "collector.num_workers=8", "collector.frames_per_batch=1024"]
    limits = [f"collector.{name}={60 * context.patience:.0f}" for name in ("start_timeout_s", "worker_timeout_s")]
    for name, overrides, frames in (
        ("cartpole_ppo", ["experiment=cartpole_ppo", "trainer.target_return=null"], 40_960),
        ("pong_ppo", [*pong, *limits], 5_120),
    ):
        for device in context.devices:
            folder = context.folder / f"{name}_{device}"
            overrides_of_run = [f"devices={device}", f"collector.total_frames={frames}", f"hydra.run.dir={folder}"]
            with context.row(case=name, device=device) as found:
                found["status"] = _call("collectx", "run", *overrides, *overrides_of_run)
                if found["status"]:
                    _print_logs(folder)
                found |= _rates(folder)


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


def inference(context: Context) -> None:
    """Central inference on the device, policies in every worker on the device and on the CPU, in turn; TorchRL's
    `AsyncBatchedCollector` beside them."""
    import importlib.util

    wide = replace(CASES["cartpole_1x8_wide"], policy="wider")
    for name, case in (("pong_1x8_cnn", CASES["pong_1x8_cnn"]), ("cartpole_1x8_wider", wide)):
        if case.env_id.startswith("ALE/") and importlib.util.find_spec("ale_py") is None:
            context.record(case=name, error="ale-py is missing")
            continue
        for num_workers in (8, 14):
            group = replace(case, workers=num_workers)
            sides = {f"server_{context.device}": ("multi_async" + SERVER, context.device)}
            sides |= {f"local_{device}": ("multi_async", device) for device in context.devices}
            with context.row(case=name, workers=num_workers) as found, contextlib.ExitStack() as stack:
                # All sides start at once. Workers idle when the slots are full, while another side is measured.
                built = {
                    side: stack.enter_context(_built(_config(context, group, kind), device))[0]
                    for side, (kind, device) in sides.items()
                }
                turns: dict[str, list[float]] = {side: [] for side in sides}
                found["turns"] = turns
                for side, collector in _TURNS * [*built.items()]:
                    turns[side].append(_frames_per_s(collector, context.device))
                found["frames_per_s"] = {side: median(rates) for side, rates in turns.items()}
    for device in context.devices if importlib.util.find_spec("torchrl") is not None else ():
        with context.row(case="pong_1x8_cnn", workers=8, side="torchrl", device=device) as found:
            found["frames_per_s"] = _peer(context, "pong_1x8_cnn", device)


def _peer(context: Context, case: str, device: str) -> float:
    from benchmarks import fresh

    arguments = {"case": case, "kind": "multi_async" + SERVER, "device": device}
    with fresh.Session("benchmarks.peer", timeout_s=40.0 * context.patience, **arguments) as session:
        turn = session.turn(_SECONDS)
    return turn["frames"] / turn["seconds"]


def tensor_envs(context: Context) -> None:
    """Frames/s of vector envs that return tensors on the device, in `Collector` and in a loop that stores nothing, and
    the bytes per frame that leave the device."""
    import torch

    from benchmarks.tensor_envs import Pendulums, bare_rate, bytes_to_host, collector_of

    torch.set_num_threads(1)  # for a rehearsal on cores that others use too
    for num_envs in (64, 4096):
        with context.row(case="pendulum", envs=num_envs, device=context.device) as found:
            found["bare"] = bare_rate(Pendulums(num_envs, context.device), _SECONDS)
            with collector_of(num_envs, context.device) as collector:
                found["frames_per_s"] = _frames_per_s(collector, context.device)
                found["share"] = found["frames_per_s"] / found["bare"]
                found["bytes_to_host_per_frame"] = bytes_to_host(collector, context.folder / "trace.json")


def processes(context: Context) -> None:
    """Two and fourteen workers whose policies act on one GPU, with batches there, and how long publishing takes."""
    case = CASES["cartpole_32"]
    for kind in ("multi_async", "distributed", "multi_sync"):
        for num_workers in (2, 14):
            for device in context.devices:
                with context.row(case="cartpole_32", kind=kind, workers=num_workers, device=device) as found:
                    cfg = _config(context, replace(case, workers=num_workers), kind)
                    with _built(cfg, device) as (collector, _):
                        found["frames_per_s"] = _frames_per_s(collector, device)
                        found["batches_on_device"] = next(collector)["observation"].device.type == device
    for megabytes in (1.0, 100.0, 400.0):
        for kind in ("multi_async", "distributed"):
            with context.row(case="publish", kind=kind, megabytes=megabytes) as found:
                found |= _publishing(context, kind, megabytes)


def _publishing(context: Context, kind: str, megabytes: float) -> dict[str, float]:
    from benchmarks.cases import ballast_config, counting_config

    cfg = run_config(counting_config(), ballast_config(megabytes), kind, 1, 1)
    with _built(cfg, context.device) as (collector, policy):
        next(collector)
        published, used = [], []
        for _ in range(6):
            _wait_for(context.device)
            began = perf_counter()
            version = collector.publish(policy)
            published.append(perf_counter() - began)
            next(collector)
            while collector.last_batch_info.parts[0].report.policy_version != version:
                next(collector)
            used.append(perf_counter() - began)
    return {"publish_ms": 1e3 * median(published), "use_ms": 1e3 * median(used)}


def acceleration(context: Context) -> None:
    """`cudagraph_policy` and `compile_policy` of `Collector`, relative to neither."""
    from tensordict.nn import TensorDictModule
    from torch import nn

    from benchmarks.tensor_envs import Argmax
    from collectx import Collector

    options: dict[str, dict[str, Any]] = {"neither": {}}
    if context.device == "cuda":
        options["cudagraph_policy"] = {"cudagraph_policy": True}
    options["compile_policy"] = {"compile_policy": True}
    if context.device == "cuda":
        options["both"] = {"compile_policy": True, "cudagraph_policy": True}
    for name, keywords in options.items():
        keywords |= {"policy_device": context.device, "num_envs": 32, "frames_per_batch": 2048, "total_frames": -1}
        with context.row(case=name, device=context.device) as found:
            layers = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2))
            policy = TensorDictModule(Argmax(layers), in_keys=["observation"], out_keys=["action"])
            with Collector(partial(_gym, "CartPole-v1"), policy, **keywords) as collector:
                found["frames_per_s"] = _frames_per_s(iter(collector), context.device)


def nccl(context: Context) -> None:
    """Two NCCL ranks on one GPU are refused before a process starts; what NCCL itself says to them."""
    from collectx.transport.network import nccl as pair

    overrides = ["backend=nccl", "collector=distributed_sync", "devices=cuda", "debug=tiny", "trainer=meter"]
    with context.row(case="command") as found:
        run = subprocess.run(["collectx", "run", *overrides], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        found |= {"status": run.returncode, "message": (run.stdout + run.stderr)[-2000:]}
    with context.row(case="why_not") as found:
        found["message"] = pair.why_not()
    if context.device == "cuda":
        with context.row(case="two ranks on one GPU") as found:
            found["messages"] = _two_ranks()


def _two_ranks() -> list[str]:
    """What making a pair on one GPU ends with, at both ends."""
    import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    ends, answers = spawn.Pipe(), spawn.Pipe(duplex=False)
    ranks = [spawn.Process(target=_make_pair, args=(end, rank, answers[1])) for rank, end in enumerate(ends)]
    for rank in ranks:
        rank.start()
    try:
        return [answers[0].recv() if answers[0].poll(15.0) else "no answer after 15 s" for _ in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def _make_pair(connection: Any, rank: int, answer: Any) -> None:
    from collectx.transport.network.p2p import PairConfig

    try:
        PairConfig(10.0, "nccl", ("cuda:0", "cuda:0")).make_pair(connection, rank, "127.0.0.1")
        answer.send(f"rank {rank}: made")
    except Exception as error:
        answer.send(f"rank {rank}: {type(error).__name__}: {error}"[:500])


PARTS = {
    "doctor": Part(doctor, 20),
    "nccl": Part(nccl, 30),
    "tests": Part(tests, 120),
    "training": Part(training, 90),
    "inference": Part(inference, 150),
    "tensor_envs": Part(tensor_envs, 25),
    "processes": Part(processes, 80),
    "acceleration": Part(acceleration, 60),
}


@contextlib.contextmanager
def _built(cfg: Any, device: str) -> Iterator[Any]:
    """The collector of `cfg` with policies and batches on `device`, and the trainer's policy."""
    import torch

    from collectx import env as envs
    from collectx import policy as policies
    from collectx.collector import start_collector
    from collectx.config.schema.launcher import DevicesConfig

    cfg = replace(cfg, devices=DevicesConfig(device=device, storing_device=None, policy_device=None, env_device="cpu"))
    spec = envs.read_spec(cfg.env)
    policy = policies.build(cfg.policy, spec, cfg.seed).to(torch.device(device))
    with start_collector(cfg, policy, spec) as collector:
        yield collector, policy


def _config(context: Context, case: Case, kind: str) -> Any:
    frames, limit_s = case.frames_per_batch(kind), 60.0 * context.patience
    limits = {"start_timeout_s": limit_s, "worker_timeout_s": limit_s}
    return run_config(env_config(case), policy_config(case), kind, case.num_workers(kind), frames, **limits)


def _frames_per_s(batches: Iterator[Any], device: str) -> float:
    """Frames/s of `_SECONDS`, after the first batch and a warm-up, in which batches that were ready before go."""
    next(batches)
    _count(batches, _WARM_UP_S)
    _wait_for(device)
    began = perf_counter()
    frames = _count(batches, _SECONDS)
    _wait_for(device)
    return frames / (perf_counter() - began)


def _count(batches: Iterator[Any], seconds: float) -> int:
    frames, end = 0, perf_counter() + seconds
    while perf_counter() < end:
        frames += next(batches).numel()
    return frames


def _wait_for(device: str) -> None:
    """Waits until the device has done what is queued."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def _gym(env_id: str) -> Any:
    import gymnasium

    return gymnasium.make(env_id)


def _print_logs(folder: Path) -> None:
    for path in sorted((folder / "logs").glob("*.log")):
        print(f"-- {path.name}", path.read_text(errors="replace")[-4000:], sep="\n", flush=True)


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
    command += ["--minutes", str(arguments.minutes)]
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
    patience = max(1.0, arguments.minutes / _MINUTES)
    if arguments.part:
        # Not among the results, of which a machine that is lent may give back a few files only.
        with tempfile.TemporaryDirectory() as folder:
            record = _recorder(arguments.results, arguments.part)
            PARTS[arguments.part].run(Context(arguments.device, Path(folder), record, patience))
        return
    arguments.results.mkdir(parents=True, exist_ok=True)
    for name in ("results.jsonl", "log.txt"):
        (arguments.results / name).unlink(missing_ok=True)
    end = time.monotonic() + 60.0 * arguments.minutes
    for name in arguments.only:
        left_s = end - time.monotonic() - _KILL_S
        if left_s < 10.0:
            _recorder(arguments.results, name)(ended="not run: no time left")
            continue
        _run_part(name, arguments, min(left_s, PARTS[name].limit_s * arguments.minutes / _MINUTES))


if __name__ == "__main__":
    main()
