"""What one environment with everything in it does not show: other Pythons, and an installation without extras. Not
collected by pytest.

    python tests/installs.py [--python 3.12 3.13 3.14]

For each Python that is on the path or that pyenv has: the wheel in an environment of its own, and `make test` in
another. In one that has no extra: the command works, and what needs an extra gives one message that names it; then
Stable-Baselines3 is installed, and its models act in a collector; then the wheel, with which the README's loop passes
`mypy --strict`. With the newest Hydra 1.4, also a pre-release, which `pyproject.toml` does not allow yet: Hydra's
features, and a sweep. With LeRobot, whose requirements exclude the versions of constraints.txt: its reader of data
sets.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE

ROOT = Path(__file__).resolve().parents[1]
# An extra, and a command that needs it.
NEEDS = [
    ("mujoco", "run env=halfcheetah"),
    ("atari", "run env=pong"),
    ("envpool", "run env=envpool env.id=CartPole-v1"),
    ("minigrid", "run env=minigrid"),
    ("torchrl", "run env=torchrl env.target=torchrl.envs:GymEnv"),
    ("mpi", "run collector=distributed backend=mpi"),
    ("ray", "run collector=ray launcher=ray"),
]
# What LeRobot's reader imports of the packages that LeRobot requires, as its other ones are for robots; the newest
# release that has Python 3.11.
LEROBOT = "lerobot==0.4.4"
LEROBOT_NEEDS = [
    "accelerate",
    "av<16",
    "datasets<5",
    "deepdiff",
    "draccus==0.10.0",
    "einops",
    "huggingface-hub<0.36",
    "jsonlines",
    "termcolor",
    "torchvision",
]
# Hydra 1.4 refuses `hydra.mode` in an experiment file, and warns of each `_target_` in a configuration.
CHANGED = ["-k", "not sweeping", "-W", "ignore:hydra.utils.instantiate:UserWarning"]
PPO = "run experiment=cartpole_ppo run.max_batches=2 hydra.run.dir=run"
TINY = "debug=tiny trainer=meter policy=random hydra.run.dir=run"


def runs(python: Path, words: str) -> tuple[int, str]:
    """Exit status and output of the command that is installed beside `python`, in a folder of its own."""
    command = [python.with_name("collectx"), *words.split()]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, stdout=PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def works(python: Path) -> list[str]:
    """Runs the commands that need no extra; returns those that fail."""
    outcomes = {words: runs(python, words) for words in ("list", "--version", f"run {TINY} env=cartpole", PPO)}
    return [f"collectx {words}: exit status {status}\n{text}" for words, (status, text) in outcomes.items() if status]


def refuses(python: Path, extra: str, words: str) -> list[str]:
    """Returns what is wrong with the message of a command that needs an extra."""
    status, text = runs(python, f"{words} {TINY}")
    problems = [line for line in text.splitlines() if line.startswith("  - ")]
    is_good = status == 2 and len(problems) == 1 and f"pip install 'collectx[{extra}]'" in problems[0]
    return [] if is_good and "Traceback" not in text else [f"{words}: exit status {status}\n{text}"]


def install(python: Path, *words: str) -> None:
    """Installs packages beside `python`, of the versions in constraints.txt."""
    pip = [python, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt"]
    subprocess.run([*pip, *words], cwd=ROOT, check=True)


def fails(python: Path, *words: str | Path, cwd: Path = ROOT, env: Mapping[str, str | Path] | None = None) -> list[str]:
    """Returns what went wrong when `python` ran with these arguments; None if nothing did."""
    done = subprocess.run([python, *words], cwd=cwd, env=env, stdout=PIPE, stderr=subprocess.STDOUT, text=True)
    return [f"{' '.join(map(str, words))}: exit status {done.returncode}\n{done.stdout}"] if done.returncode else []


def works_as_a_wheel(base: str, folder: Path) -> list[str]:
    """Installs the wheel into a new environment of the Python `base`. What fails of that which needs no extra."""
    subprocess.run([base, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    install(python, ".")
    return works(python)


def acts_for_stable_baselines3(python: Path) -> list[str]:
    """Installs the package beside `python`. What fails of `scripts/sb3.py`."""
    install(python, "stable-baselines3")
    return fails(python, "tests/scripts/sb3.py")


def is_typed(python: Path) -> list[str]:
    """Installs mypy and, in place of what is there, the wheel beside `python`. What mypy finds in the README's loop."""
    install(python, "mypy")
    install(python, "--force-reinstall", "--no-deps", ".")
    # From another folder, where mypy sees the installed package alone.
    return fails(python, "-m", "mypy", "--strict", ROOT / "tests/scripts/typed_loop.py", cwd=python.parent)


def works_with_hydra_1_4(folder: Path) -> list[str]:
    """Installs Hydra 1.4 and what it needs into `folder`. What fails with it of Hydra's features and of a sweep."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--pre", "--target", folder]
    subprocess.run([*pip, "hydra-core>=1.4.0.dev0,<1.5"], check=True)
    python, env = Path(sys.executable), {**os.environ, "PYTHONPATH": folder}
    check = "import hydra; assert hydra.__version__.startswith('1.4.'), hydra.__version__"
    sweep = f"run {TINY.replace('hydra.run.dir', 'hydra.sweep.dir')} -m seed=0,1".split()
    with tempfile.TemporaryDirectory() as cwd:
        return [
            *fails(python, "-c", check, env=env),
            *fails(python, "-m", "pytest", "tests/unit/cli/test_hydra_features.py", "--tier=all", *CHANGED, env=env),
            *fails(python, "-m", "collectx", *sweep, cwd=Path(cwd), env=env),
        ]


def is_read_by_lerobot(folder: Path) -> list[str]:
    """Installs LeRobot and what its reader needs into `folder`. What fails of the data sets that it reads."""
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder]
    subprocess.run([*pip, torch, *LEROBOT_NEEDS], check=True)
    subprocess.run([*pip, "--no-deps", LEROBOT], check=True)
    env = {**os.environ, "PYTHONPATH": folder, "HF_HUB_OFFLINE": "1", "HF_HOME": folder / "cache"}
    python, tests = Path(sys.executable), "tests/contract/test_data_contract.py"
    return [
        *fails(python, "-c", "import lerobot", env=env),
        *fails(python, "-m", "pytest", tests, "-k", "lerobot", "--tier=all", env=env),
    ]


def find_python(version: str) -> str | None:
    """The path of a Python of that version; None: there is none."""
    path = shutil.which(f"python{version}")
    # pyenv has shims of all its versions on the path, of which only the chosen ones run.
    if path is not None and subprocess.run([path, "-c", "import venv"], capture_output=True).returncode:
        chosen = {**os.environ, "PYENV_VERSION": output("pyenv", "latest", version)}
        path = output("pyenv", "which", f"python{version}", env=chosen)
    return path


def output(*command: str, env: Mapping[str, str] | None = None) -> str:
    """The output of a command."""
    return subprocess.run(command, stdout=PIPE, text=True, check=True, env=env).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys() - {
        "dev",
        "docs",
    }
    parser.add_argument("--python", nargs="*", default=("3.12", "3.13", "3.14"), metavar="VERSION")
    options = parser.parse_args()
    failures = [f"no run here needs the extra {extra}" for extra in extras - {extra for extra, _ in NEEDS}]

    def report(what: str, problems: list[str]) -> None:
        print(f"{what}: {'failed' if problems else 'passed'}", flush=True)
        failures.extend(f"{what}: {problem}" for problem in problems)

    with tempfile.TemporaryDirectory(prefix="collectx-installs-") as name:
        folder = Path(name)
        python = folder / "fresh" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", folder / "fresh"], check=True)
        install(python, "--editable", ".")
        refused = [text for extra, words in NEEDS for text in refuses(python, extra, words)]
        report("a fresh environment without extras", works(python) + refused)
        report("Stable-Baselines3", acts_for_stable_baselines3(python))
        report("mypy --strict with the wheel", is_typed(python) + works(python))
        report("Hydra 1.4", works_with_hydra_1_4(folder / "hydra"))
        report("LeRobot", is_read_by_lerobot(folder / "lerobot"))
        for version in options.python:
            path = find_python(version)
            if path is None:
                print(f"Python {version}: not on this machine, skipped")
                continue
            report(f"the wheel in Python {version}", works_as_a_wheel(path, folder / f"wheel-{version}"))
            variables = [f"PYTHON={path}", f"VENV={folder / version}"]
            status = subprocess.run(["make", "--silent", "test", *variables], cwd=ROOT).returncode
            report(f"Python {version}", [f"make test: exit status {status}"] if status else [])
    print(*failures, sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
