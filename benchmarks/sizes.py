"""How fast collectors are with large observations and large weights, each beside its physical limit.

    python -m benchmarks.sizes [--plot FOLDER]

observations  share of two bare loops at once: shared memory (`multi_async`) and gloo on loopback (`distributed`). The
              limit: each observation of a batch is also copied once (one memcpy of the batch, on the core that steps),
              or sent once over loopback, which takes both cores
weights       time from publishing to the delivery of the first batch in which the new weights acted. The limit: one
              memcpy of the weights, or one raw gloo send over loopback
"""

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np

from benchmarks import fresh, speed
from benchmarks.cases import CASES, SIZES
from benchmarks.many import plot

_MEGABYTES = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
_TURNS = 3


class Sized(gymnasium.Env):
    """Every step makes a new observation of `size` bytes and fills it, as an env that renders does."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size: int):
        self.observation_space = gymnasium.spaces.Box(0, 255, (size,), np.uint8)
        self._size, self._steps = size, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        return np.zeros(self._size, np.uint8), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._steps = (self._steps + 1) % 256
        return np.full(self._size, self._steps, np.uint8), 0.0, False, False, {}


gymnasium.register("Sized-v0", Sized, disable_env_checker=True, order_enforce=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=__doc__)
    parser.add_argument("--plot", type=Path, help="the folder of the two plots, sizes.png and weights.png")
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement (2)")
    options = parser.parse_args()
    shares, weights = _observations(options.seconds), _weights(options.seconds)
    if options.plot:
        plot(options.plot / "sizes.png", shares, "bytes of an observation", "share of the bare loop", y_scale="linear")
        plot(options.plot / "weights.png", weights, "megabytes of weights", "ms from publish to use")


def _observations(seconds: float) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for size in SIZES:
        rates = speed.rates_of(f"size_{size}", [], _TURNS, seconds / _TURNS, print)
        step_s = 2 / median(rates["bare_2"])
        steps = CASES[f"size_{size}"].steps
        copies = fresh.run("benchmarks.handover", seconds=seconds / _TURNS, megabytes=max(size * steps, 1000) / 1e6)
        memcpy_s, send_s = (copies[name] / 1e3 / steps for name in ("memcpy_ms", "raw_ms"))
        shares = {
            "shared memory": _share(rates, "multi_async"),
            "its limit: memcpy": step_s / (step_s + memcpy_s),
            "gloo": _share(rates, "distributed"),
            "its limit: loopback": step_s / (step_s + 2 * send_s),
        }
        print(f"{size:>10,} bytes, step {1e6 * step_s:,.1f} us: ", ", ".join(f"{k} {v:.3g}" for k, v in shares.items()))
        for name, share in shares.items():
            lines.setdefault(name, []).append((size, share))
    return lines


def _share(rates: dict[str, list[float]], side: str) -> float:
    return median(ours / bare for ours, bare in zip(rates[side], rates["bare_2"], strict=True))


def _weights(seconds: float) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for megabytes in _MEGABYTES:
        local = fresh.run("benchmarks.overhead", timeout_s=300.0, part="publish", seconds=seconds, megabytes=megabytes)
        network = fresh.run("benchmarks.handover", timeout_s=300.0, seconds=seconds, megabytes=megabytes)
        times = {
            "shared memory": local["publish_ms"] + local["use_ms"],
            "memcpy": local["memcpy_ms"],
            "gloo": network["use_ms"],
            "one raw gloo send": network["raw_ms"],
        }
        print(f"{megabytes:>8g} MB: ", ", ".join(f"{name} {ms:.3g} ms" for name, ms in times.items()))
        for name, ms in times.items():
            lines.setdefault(name, []).append((megabytes, ms))
    return lines


if __name__ == "__main__":
    main()
