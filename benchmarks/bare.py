"""The bare loop: one process pinned to one core, envs stepped in a plain Python loop, one policy forward per step on
the batched observation under inference mode, nothing stored, nothing sent. Its frames/s are the upper bound of one
core.

The policy is called as collectx calls it (`actor.act`: the layers in turn, without `nn.Module.__call__`), because a
slower call would lower the bound in favour of the collector. `forward="module"` calls the module itself.

EnvPool resets ended envs in a separate step, which is not a frame. The fraction of steps that are frames is counted
before the timing, so that counting costs no time.
"""

from collections.abc import Callable, Generator
from time import perf_counter
from typing import Any

from benchmarks import fresh
from benchmarks.cases import CASES, Case, env_config, policy_config

# Time between two reads of the clock, and warm-up before every turn.
_CHUNK_S = 0.02
_WARM_S = 0.1


def measuring(case: str, forward: str = "act", **_: Any) -> Generator[dict[str, Any], float, None]:
    """Measures frames and seconds of the bare loop."""
    import torch

    torch.set_num_threads(1)
    group = CASES[case]
    share = 1.0
    if group.envpool:
        advance, count_frames = _envpool_loop(group, forward)
    else:
        advance = _gym_loop(group, forward)
    with torch.inference_mode():
        advance(10)
        began = perf_counter()
        advance(20)
        chunk = max(1, int(20 * _CHUNK_S / (perf_counter() - began)))
        _for(1.0, advance, chunk)
        if group.envpool:
            share = count_frames(1000) / (1000 * group.num_envs)
        seconds = yield {}
        while True:
            _for(_WARM_S, advance, chunk)
            steps, elapsed_s = _for(seconds, advance, chunk)
            seconds = yield {"frames": share * steps * group.num_envs, "seconds": elapsed_s}


def _for(seconds: float, advance: Callable[[int], None], chunk: int) -> tuple[int, float]:
    steps, began = 0, perf_counter()
    while (elapsed_s := perf_counter() - began) < seconds:
        advance(chunk)
        steps += chunk
    return steps, elapsed_s


def _forward(case: Case, kind: str) -> Callable[[Any], Any]:
    import torch

    from collectx import env as envs
    from collectx import policy as policies

    spec = envs.read_spec(env_config(case))
    policy = policies.build(policy_config(case), spec, 0)
    if kind == "module":
        from benchmarks.greedy import Greedy

        return Greedy(policy)
    mode = policies.ExplorationType.DETERMINISTIC
    act = policies.make_actor(policy, spec, torch.device("cpu"), mode).act
    return lambda observation: act((observation,))[0]


def _gym_loop(case: Case, kind: str) -> Callable[[int], None]:
    import gymnasium
    import numpy as np
    import torch

    from collectx.worker.spec import env_seed

    envs = [make_one(case) for _ in range(case.num_envs)]
    steps = [env.step for env in envs]
    forward = _forward(case, kind)
    rows = np.stack([env.reset(seed=env_seed(0, e))[0] for e, env in enumerate(envs)])
    tensor = torch.from_numpy(rows)
    discrete = isinstance(envs[0].action_space, gymnasium.spaces.Discrete)

    def advance(num_steps: int) -> None:
        for _ in range(num_steps):
            action = forward(tensor)
            observations: list[Any] = []
            for step, one in zip(steps, action.tolist() if discrete else action.numpy(), strict=True):
                observation, _, terminated, truncated, _ = step(one)
                if terminated or truncated:
                    observation, _ = envs[len(observations)].reset()
                observations.append(observation)
            rows[:] = observations

    return advance


def make_one(case: Case) -> Any:
    """One env with its wrappers."""
    import gymnasium

    if case.env_id.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
    env = gymnasium.make(case.env_id, **dict(case.env_kwargs))
    for wrapper in case.wrappers:
        kwargs = {key: value for key, value in wrapper.items() if key != "_target_"}
        env = getattr(gymnasium.wrappers, wrapper["_target_"].rpartition(".")[2])(env, **kwargs)
    return env


def _envpool_loop(case: Case, kind: str) -> tuple[Callable[[int], None], Callable[[int], int]]:
    import envpool
    import torch

    pool = envpool.make(case.env_id, env_type="gymnasium", num_envs=case.num_envs, num_threads=1, seed=0)
    forward = _forward(case, kind)
    observation = pool.reset()[0]

    def advance(num_steps: int) -> None:
        nonlocal observation
        current = observation
        for _ in range(num_steps):
            current = pool.step(forward(torch.from_numpy(current)).numpy())[0]
        observation = current

    def count_frames(num_steps: int) -> int:
        nonlocal observation
        frames = 0
        for _ in range(num_steps):
            observation, _, terminated, truncated, _ = pool.step(forward(torch.from_numpy(observation)).numpy())
            frames += case.num_envs - int((terminated | truncated).sum())
        return frames

    return advance, count_frames


if __name__ == "__main__":
    fresh.serve_turns(measuring)
