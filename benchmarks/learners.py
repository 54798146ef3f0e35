"""PPO with one learner and with two, in collectx and in RLlib: frames per second, and the gain of the second one.

    [chrt -r 1] python -m benchmarks.learners [--turns 5]

CartPole, two workers of eight envs, networks of 512 x 512, batches of 8,192 frames, five epochs with minibatches of
4,096, one thread each. All sides are measured in turn, each in a new process, for five batches, of which the first one
is not counted. On a busy machine, use `chrt -r 1` as root: several learners get a larger share of the cores than one.

RLlib runs in `.bench/rllib`, which `make bench-peers` makes; 0 learners are one in its main process. Sample Factory is
missing: it has one learner for each policy.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks import fresh, printing

_FRAMES, _MINIBATCH, _EPOCHS = 8192, 4096, 5
_HIDDEN = [512, 512]
# How many batches are taken, and how many of these are not measured.
_BATCHES, _WARM = 5, 1
# Library and learners.
SIDES = [("collectx", 1), ("collectx", 2), ("rllib", 0), ("rllib", 1), ("rllib", 2)]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learners", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rllib", type=int, help="measure RLlib with so many learners in this process")
    options = parser.parse_args()
    if options.rllib is not None:
        print(json.dumps(_rllib(options.rllib)))
        return
    printing.say_about("benchmarks.learners", "collectx")
    rates: dict[tuple[str, int], list[float]] = {side: [] for side in SIDES}
    for turn in range(options.turns):
        for library, learners in SIDES:
            measure = _ours if library == "collectx" else _theirs
            rates[library, learners].append(rate := measure(learners))
            load = os.getloadavg()[0]
            print(f"turn {turn}, {library}, {learners} learners: {rate:,.0f} frames/s, load {load:.1f}", flush=True)
    print("\n| library | learners | frames/s | speed / one learner | speed / collectx |\n|---|---|---|---|---|")
    for (library, learners), each in rates.items():
        one = max((rates[side] for side in rates if side[0] == library and side[1] < 2), key=median)
        ours = rates["collectx", max(learners, 1)]
        ratios = (printing.spread(printing.ratios(each, other)) for other in (one, ours))
        print(f"| {library} | {learners} | {median(each):,.0f} | {' | '.join(ratios)} |")
    print(f"\nload average {os.getloadavg()[0]:.1f} at the end")


def _rate(times: list[tuple[float, int]]) -> float:
    """Frames per second after the first batches, of the time and the frames so far at the end of each batch."""
    (begin_s, before), (end_s, after) = times[_WARM - 1], times[-1]
    return (after - before) / (end_s - begin_s)


def _ours(learners: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = [
            *("env=cartpole", "trainer=ppo", "collector=multi_sync", "collector.num_workers=2", "env.num_envs=8"),
            *(f"collector.frames_per_batch={_FRAMES}", f"trainer.minibatch_size={_MINIBATCH}"),
            *(f"trainer.num_epochs={_EPOCHS}", f"policy.hidden_sizes={_HIDDEN}", "collector.total_frames=-1"),
            *(f"trainer.num_learners={learners}", "trainer.digest=false", f"hydra.run.dir={folder}/run"),
            f"run.max_batches={_BATCHES}",
        ]
        command = [str(Path(sys.executable).with_name("collectx")), "run", *words]
        _run(command)
        lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    return _rate([(line["time"], line["frames"]) for line in lines])


def _theirs(learners: int) -> float:
    command = [fresh.python_of("rllib"), "-m", "benchmarks.learners", "--rllib", str(learners)]
    return json.loads(_run(command).splitlines()[-1])


def _run(command: list[str]) -> str:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def _rllib(learners: int) -> float:
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    # More than there are, so that every process starts.
    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
    num = max(learners, 1)
    model = DefaultModelConfig(fcnet_hiddens=_HIDDEN, fcnet_activation="tanh", vf_share_layers=False)
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config=model)
    config = config.env_runners(num_env_runners=2, num_envs_per_env_runner=8)
    config = config.learners(num_learners=learners, num_cpus_per_learner=1)
    config = config.training(
        train_batch_size_per_learner=_FRAMES // num,
        minibatch_size=_MINIBATCH // num,
        num_epochs=_EPOCHS,
        use_kl_loss=False,
    )
    algorithm, times = config.build_algo(), list[tuple[float, int]]()
    while len(times) < _BATCHES:
        result = algorithm.train()
        times.append((time.perf_counter(), int(result["env_runners"]["num_env_steps_sampled_lifetime"])))
    ray.shutdown()
    return _rate(times)


if __name__ == "__main__":
    main()
