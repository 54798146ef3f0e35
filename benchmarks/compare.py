"""`make bench-compare REV=...`: this checkout against another revision, in turns, with new processes in every round.

A difference is beyond the noise if the same side is faster in every round: with six rounds, chance does that once in 32
comparisons.
"""

import argparse
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from benchmarks import fresh
from benchmarks.cases import CASES

_ROOT = Path(__file__).parents[1]
_TURNS = 4
# With fewer rounds, one side would win all of them by chance too often.
_LEAST_ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("revision", help="a revision of this repository")
    parser.add_argument("--only", nargs="+", choices=CASES, default=["cartpole_1", "cartpole_32", "cartpole_32_gloo"])
    parser.add_argument("--rounds", type=int, default=6, help="rounds of every comparison (6)")
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds per side and turn (0.5)")
    options = parser.parse_args()
    with _checkout(options.revision) as other:
        print(f"frames/s of this checkout in times of {options.revision}: median (least to most)")
        for name in options.only:
            for kind in CASES[name].kinds:
                try:
                    ratios = [_round(other, name, kind, options.seconds, r % 2 == 0) for r in range(options.rounds)]
                except fresh.Failed as error:
                    print(f"{name} {kind}: failed: {error}", flush=True)
                    continue
                verdict = "no difference beyond the noise"
                if len(ratios) >= _LEAST_ROUNDS and (min(ratios) > 1 or max(ratios) < 1):
                    verdict = "faster" if min(ratios) > 1 else "slower"
                spread = f"({min(ratios):.3f} to {max(ratios):.3f})"
                print(f"{name + ' ' + kind:<40} {median(ratios):6.3f} {spread}  {verdict}", flush=True)


@contextmanager
def _checkout(revision: str) -> Iterator[Path]:
    """A folder with `revision`, whose packages are all found below it."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, revision], cwd=_ROOT, check=True)
        try:
            for name in ("cli", "conf"):
                Path(folder, "collectx", name).symlink_to(f"../{name}")
            yield Path(folder)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=_ROOT, check=True)
            Path(folder).mkdir(exist_ok=True)


def _round(other: Path, name: str, kind: str, seconds: float, begins: bool) -> float:
    """Frames per second of this checkout divided by those of `other`. `begins`: whether it is measured first."""
    cores = fresh.cores()[: CASES[name].num_cores(kind)]
    folders = [_ROOT, other] if begins else [other, _ROOT]
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(fresh.Session("benchmarks.ours", folder=folder, cores=cores, case=name, kind=kind))
            for folder in folders
        ]
        for session in sessions:
            session.wait_until_ready()
        rates = [0.0, 0.0]
        for _ in range(_TURNS):
            for side, session in enumerate(sessions):
                turn = session.turn(seconds)
                rates[side] += turn["frames"] / turn["seconds"]
    return rates[0] / rates[1] if begins else rates[1] / rates[0]


if __name__ == "__main__":
    main()
