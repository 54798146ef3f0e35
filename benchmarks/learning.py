"""Learning curves of the built-in trainers: five seeds of each case, with the published return of the same
hyperparameters where there is one.

python -m benchmarks.learning                    # all cases (several nights on two cores)
python -m benchmarks.learning --only ppo_cartpole dqn_cartpole

A case is a sweep over seeds in `outputs/learning/CASE`; repeating the command runs what is missing. Writes
`benchmarks/learning.json`, from which `python -m benchmarks.tables` makes the table, and one figure for each case.

Imports neither torch nor collectx before a case has run.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

_ROOT = Path(__file__).parents[1]
RESULTS = _ROOT / "benchmarks" / "learning.json"
_FOLDER = Path("outputs/learning")
_FIGURES = _ROOT / "docs" / "images"
_SEEDS = "seed=0,1,2,3,4"
# The hyperparameters of CleanRL's ppo.py.
_PPO = [
    *("trainer=ppo", "trainer.learning_rate=2.5e-4", "trainer.gamma=0.99", "trainer.gae_lambda=0.95"),
    *("trainer.num_epochs=4", "trainer.minibatch_size=128", "trainer.entropy_coeff=0.01", "env.num_envs=2"),
    *("collector.num_workers=2", "collector.frames_per_batch=512", "collector.total_frames=500_000"),
]


@dataclass(frozen=True)
class Case:
    """One learning curve.

    Attributes:
        overrides: of `collectx run`.
        published: the mean return, and its spread, that others have published for these frames; "" if there is none.
        source: of `published`, and what differs there.
    """

    overrides: list[str]
    published: str = ""
    source: str = ""


CASES = {
    "ppo_cartpole": Case(["env=cartpole", *_PPO], "490.04 ± 6.12", "CleanRL, ppo.py (clips the critic's loss too)"),
    "ppo_cartpole_2_learners": Case(["env=cartpole", *_PPO, "trainer.num_learners=2"]),
    "ppo_acrobot": Case(
        ["env=gym", "env.id=Acrobot-v1", *_PPO], "-86.36 ± 1.32", "CleanRL, ppo.py (clips the critic's loss too)"
    ),
    "ppo_halfcheetah": Case(
        ["experiment=halfcheetah_ppo"],
        "1442.64 ± 46.03",
        "CleanRL, ppo_continuous_action.py on HalfCheetah-v4 (minibatches of 64, scaled rewards); all five of our "
        "seeds found the slower of two gaits, see below",
    ),
    "ppo_pong": Case(["experiment=pong_ppo"]),
    "impala_cartpole": Case(["experiment=cartpole_impala", "trainer.target_return=null"]),
    "impala_pong": Case(["experiment=pong_impala"]),
    "sac_pendulum": Case(["experiment=pendulum_sac"]),
    "sac_halfcheetah": Case(
        ["experiment=halfcheetah_sac"],
        "9634.89 ± 1423.73",
        "CleanRL, sac_continuous_action.py on HalfCheetah-v2 (critics learn with 1e-3)",
    ),
    "dqn_cartpole": Case(
        ["experiment=cartpole_dqn", "trainer.target_return=null"], "488.69 ± 16.11", "CleanRL, dqn.py, 500,000 frames"
    ),
}


def main() -> int:
    """Returns the exit status: 1 if a sweep failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    failed = False
    for name in parser.parse_args().only:
        folder = _FOLDER / name
        command = ["collectx", "run", "-m", *CASES[name].overrides, _SEEDS, f"hydra.sweep.dir={folder}"]
        print(" ".join(command), flush=True)
        if subprocess.run([sys.executable, "-m", *command], check=False).returncode:
            failed = True
        else:
            _add(name, folder, " ".join(command))
    return int(failed)


def _add(name: str, folder: Path, command: str) -> None:
    """Adds the result of a case to the file of results, and draws its figure."""
    from collectx.report import draw, read

    (group,) = read.groups_of(read.read_runs([folder]))
    returns = group.values("mean_return")
    low, high = read.interval(returns[:, None])
    results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    results[name] = {
        "command": command,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "seeds": len(returns),
        "frames": int(group.values("frames").mean()),
        "minutes": round(group.values("wall_s").mean() / 60, 1),
        "return": round(float(read.centre(returns)), 1),
        "interval": [round(float(low[0]), 1), round(float(high[0]), 1)],
    }
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    plot = next(each for each in draw.sections_of([group], "mean_return")["Learning"] if each.name == "return_frames")
    replace(plot, name=f"learning_{name}").write(_FIGURES, ["png"])


if __name__ == "__main__":
    sys.exit(main())
