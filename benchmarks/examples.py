"""The curves of the scripts in `examples/`, one run of each: return or success against frames.

python -m benchmarks.examples --plot docs/images/examples.png
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / "examples"
_SCRIPTS = "ppo_from_scratch", "recurrent", "impala_cluster", "sac_replay_buffer", "multi_agent", "her_post_traj"
_LINE = re.compile(r"^ *(\d+) frames  (return|success) +(-?[\d.]+)", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.examples", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", required=True, help="write the curves to this file, with matplotlib")
    options = parser.parse_args()
    curves = {}
    for script in _SCRIPTS:
        command = [sys.executable, str(_FOLDER / f"{script}.py")]
        curves[script] = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        print(script, curves[script].splitlines()[-1], sep=": ", flush=True)
    _plot(options.plot, curves)


def _plot(path: str, outputs: dict[str, str]) -> None:
    from matplotlib.figure import Figure

    figure = Figure((9, 4.8), layout="constrained")
    for axes, (script, output) in zip(figure.subplots(2, 3).flat, outputs.items(), strict=True):
        lines = _LINE.findall(output)
        axes.plot([int(frames) for frames, _, _ in lines], [float(value) for *_, value in lines], lw=1.6)
        axes.set_title(f"{script}.py", fontsize="medium")
        axes.set_ylabel("success (%)" if lines[0][1] == "success" else "mean return")
        axes.set_xlabel("frames")
        axes.grid(alpha=0.3)
        axes.ticklabel_format(style="plain")
        axes.locator_params(axis="x", nbins=4)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
