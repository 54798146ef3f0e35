"""Compares `hydra/sweeper=halving` with Optuna's sweeper without pruning, at equal numbers of frames.

    python -m benchmarks.halving [--repetitions N]

Both search learning rate, entropy coefficient and batch size of PPO on CartPole-v1. Prints for each repetition the
return of the best point at the last rung, and the frames that were collected.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

RUNGS = (4_096, 12_288, 36_864)
DRAWS = 27
# The frames of halving, a third of the points at each rung, as full runs.
TRIALS = (DRAWS * RUNGS[0] + DRAWS // 3 * (RUNGS[1] - RUNGS[0]) + DRAWS // 9 * (RUNGS[2] - RUNGS[1])) // RUNGS[2]
SPACE = [
    "trainer.learning_rate=tag(log,interval(1e-5,1e-1))",
    "trainer.entropy_coeff=tag(log,interval(1e-5,1e-1))",
    "collector.frames_per_batch=choice(256,512,1024)",
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.halving", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    returns: dict[str, list[float]] = {"halving": [], "optuna": []}
    for repetition in range(parser.parse_args().repetitions):
        for name, options in _sweepers(repetition).items():
            with tempfile.TemporaryDirectory() as folder:
                best, frames = _search([*options, f"hydra.sweep.dir={folder}", f"seed={repetition}"], Path(folder))
            returns[name].append(best)
            print(f"{repetition} {name}: best return {best:.1f} after {frames:,} frames", flush=True)
    for name, values in returns.items():
        print(f"{name}: mean {mean(values):.1f}, least {min(values):.1f}")


def _sweepers(repetition: int) -> dict[str, list[str]]:
    halving = ["hydra/sweeper=halving", f"sweep.draws={DRAWS}", f"sweep.rungs={[*RUNGS]}".replace(" ", "")]
    optuna = ["hydra/sweeper=optuna", "hydra.sweeper.direction=maximize", f"hydra.sweeper.n_trials={TRIALS}"]
    return {
        "halving": [*halving, f"sweep.seed={repetition}"],
        "optuna": [*optuna, "hydra.sweeper.n_jobs=1", f"hydra.sweeper.sampler.seed={repetition}"],
    }


def _search(options: list[str], folder: Path) -> tuple[float, int]:
    """Returns the best return of a point that ran to the last rung, and the frames of all points."""
    command = [sys.executable, "-m", "collectx", "run", "-m", *SPACE, f"collector.total_frames={RUNGS[-1]}", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    results = [json.loads(path.read_text()) for path in folder.glob("*/result.json")]
    full = [each["mean_return"] for each in results if each["frames"] >= RUNGS[-1]]
    return max(full), sum(each["frames"] for each in results)


if __name__ == "__main__":
    main()
