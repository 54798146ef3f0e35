"""Whole scripts of PPO, with collectx and without it, in turn. Prints the ratios of their times and learning curves.

python -m benchmarks.ppo torchrl --plot docs/images/ppo_torchrl.png    # five seeds of each side
python -m benchmarks.ppo cleanrl --side collectx --seed 0       # one of them, in this process
"""

import argparse
import importlib
import json
import random
import resource
import subprocess
import sys
from statistics import mean, median
from time import perf_counter, process_time

from numpy import nanmean

SCRIPTS = ("torchrl", "cleanrl")
# Batches that a point of a curve averages.
_SMOOTH = 5
Curve = list[tuple[float, float, float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ppo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("script", choices=SCRIPTS, help="a module of benchmarks/scripts")
    parser.add_argument("--side", help="run one side in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each side (5)")
    parser.add_argument("--plot", help="also write the curves to this file, with matplotlib")
    options = parser.parse_args()
    script = importlib.import_module(f"benchmarks.scripts.{options.script}")
    if options.side:
        began = process_time()
        returns = script.train(options.side, options.seed)
        print(json.dumps({"returns": returns, "training": process_time() - began}))
        return
    times: dict[str, dict[str, list[float]]] = {"wall": {}, "processor": {}, "training": {}}
    returns_of: dict[str, list[list[float]]] = {side: [] for side in script.SIDES}
    for seed in range(options.seeds):
        for side in script.SIDES:
            began, used = perf_counter(), _processor_s()
            command = [sys.executable, "-m", __spec__.name, options.script, "--side", side, "--seed", str(seed)]
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            result = json.loads(output.splitlines()[-1])
            each = {"wall": perf_counter() - began, "processor": _processor_s() - used, "training": result["training"]}
            for name, seconds in each.items():
                times[name].setdefault(side, []).append(seconds)
            returns_of[side].append(result["returns"])
            print(
                f"seed {seed}, {side}: {', '.join(f'{name} {value:.1f} s' for name, value in each.items())}", flush=True
            )
    ours, theirs = script.SIDES
    for name, by_side in times.items():
        ratios = [other / our for our, other in zip(by_side[ours], by_side[theirs], strict=True)]
        what = "processor time of training, without imports" if name == "training" else f"{name} time"
        print(
            f"{what}: {theirs} needs {median(ratios):.2f} times that of {ours} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    curves = {side: _curve(returns) for side, returns in returns_of.items()}
    print("frames | " + " | ".join(f"mean return with {side} (95% bootstrap interval)" for side in curves))
    for point in range(_SMOOTH - 1, len(curves[ours]), _SMOOTH):
        cells = [
            f"{mid:.0f} ({low:.0f} to {high:.0f})" for mid, low, high in (curve[point] for curve in curves.values())
        ]
        print(f"{(point + 1) * script.FRAMES_PER_BATCH:,} | " + " | ".join(cells))
    if options.plot:
        _plot(options.plot, f"PPO on CartPole-v1, {options.seeds} seeds", curves, script.FRAMES_PER_BATCH)


def _processor_s() -> float:
    """The processor time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _curve(returns: list[list[float]]) -> Curve:
    """For each batch, the mean over seeds of the mean return of the last batches, and its bootstrap interval."""
    draw = random.Random(0)
    points = []
    for end in range(1, len(returns[0]) + 1):
        # NaN where no episode has ended.
        values = [nanmean(of_seed[max(0, end - _SMOOTH) : end]) for of_seed in returns]
        means = sorted(mean(draw.choices(values, k=len(values))) for _ in range(2_000))
        points.append((mean(values), means[50], means[-51]))
    return points


def _plot(path: str, title: str, curves: dict[str, Curve], frames_per_batch: int) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for side, curve in curves.items():
        frames = [(batch + 1) * frames_per_batch for batch in range(len(curve))]
        mid, low, high = zip(*curve, strict=True)
        axes.plot(frames, mid, label=side)
        axes.fill_between(frames, low, high, alpha=0.25)
    axes.set(title=title, xlabel="frames", ylabel="mean return, 95% bootstrap interval")
    axes.legend()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
