"""The cases: an env group, a policy, and the settings that all sides of a comparison have in common.

Imported in every measurement's process; functions import heavy modules themselves.
"""

from dataclasses import dataclass, field, replace
from typing import Any

KINDS = ("single", "multi_sync", "multi_async")
NETWORK_KINDS = ("distributed", "distributed_sync")
RPC_KINDS = ("rpc", "rpc_sync")
RAY_KINDS = ("ray", "ray_sync")

# Sync collectors with `collector.overlap=1`; TorchRL has none.
OVERLAP = "_overlap"
OVERLAPPED = ("multi_sync_overlap", "distributed_sync_overlap")

# Collectors with `inference=server`; TorchRL's is its `AsyncBatchedCollector`.
SERVER = "_server"

_SYNC = ("multi_sync", "distributed_sync", "rpc_sync", "ray_sync", "multi_sync_server", *OVERLAPPED)
# Collectors with a key `sync`; here the sync ones are separate kinds.
_EITHER = ("rpc", "ray")
# Units of each layer of the MLPs.
_MLP_SIZES = {"mlp": 64, "wide": 1024, "wider": 2048}
# Each side of a comparison starts a new cluster.
RAY = {"address": "local", "num_cpus": 2, "include_dashboard": False, "log_to_driver": False}


@dataclass(frozen=True)
class Case:
    """One env group.

    Attributes:
        steps: of every env in one batch. Enough that the fixed cost of a batch is small (about 16 to 40 ms of work on
            one core); 20 and 128 are also what IMPALA and PPO use.
        share: target for the share of the bare loop, by kind of collector. No entry: no target.
        ratio: target for the ratio to TorchRL, by kind. None: no target. No entry: not compared.
        server: target for the ratio of `inference=server` to `inference=local`. None: no target.
        workers: number of worker processes of all kinds but `single`; they share two cores.
        torchrl: whether collectx has TorchRL's env (a GymEnv or a SerialEnv, with transforms), not Gymnasium's.
        kinds: kinds of collectors, in the order of measurement.
    """

    env_id: str
    num_envs: int
    policy: str
    steps: int
    share: dict[str, float]
    ratio: dict[str, float | None] = field(default_factory=dict)
    server: float | None = None
    workers: int = 2
    env_kwargs: tuple[tuple[str, Any], ...] = ()
    wrappers: tuple[Any, ...] = ()
    envpool: bool = False
    torchrl: bool = False
    kinds: tuple[str, ...] = KINDS

    def num_workers(self, kind: str) -> int:
        """The number of worker processes."""
        return 1 if kind == "single" else self.workers

    def num_cores(self, kind: str) -> int:
        """The number of cores that the workers may use."""
        return min(2, self.num_workers(kind))

    def frames_per_batch(self, kind: str) -> int:
        """`steps` of every env that contributes: those of all workers in a sync batch, of one worker otherwise."""
        return self.steps * self.num_envs * (self.workers if kind in _SYNC else 1)


_HIGH = {"single": 0.9, "multi_async": 0.9}
_PREPROCESSED = (
    {"_target_": "gymnasium.wrappers.AtariPreprocessing", "frame_skip": 4, "screen_size": 84, "grayscale_obs": True},
    {"_target_": "gymnasium.wrappers.FrameStackObservation", "stack_size": 4},
)
CASES = {
    "cartpole_1": Case("CartPole-v1", 1, "mlp", 1024, dict.fromkeys(_HIGH, 0.8), dict.fromkeys(KINDS, 6.0)),
    "halfcheetah_1": Case("HalfCheetah-v5", 1, "mlp", 512, dict.fromkeys(_HIGH, 0.8)),
    "cartpole_32": Case("CartPole-v1", 32, "mlp", 128, _HIGH, dict.fromkeys(KINDS, 10.0)),
    "halfcheetah_8": Case("HalfCheetah-v5", 8, "mlp", 64, _HIGH, dict.fromkeys(KINDS)),
    "pong_raw_8": Case("ALE/Pong-v5", 8, "cnn", 16, _HIGH),
    "pong_8": Case(
        "ALE/Pong-v5",
        8,
        "cnn",
        64,
        _HIGH,
        env_kwargs=(("frameskip", 1), ("repeat_action_probability", 0.0)),
        wrappers=_PREPROCESSED,
    ),
    "envpool_64": Case("CartPole-v1", 64, "mlp", 64, dict.fromkeys(_HIGH, 0.8), envpool=True),
}
for _name in ("cartpole_32", "halfcheetah_8"):
    _case = CASES[_name]
    _share = _case.share | {"multi_sync": 0.8, "multi_sync_overlap": 0.9}
    CASES[_name] = replace(_case, kinds=(*KINDS, "multi_sync_overlap"), share=_share)
# One env in each of eight workers, with a policy in each worker and with one policy for all.
_CENTRAL = Case(
    "CartPole-v1",
    1,
    "mlp",
    256,
    {},
    {"multi_async_server": 5.0},
    workers=8,
    kinds=("multi_sync", "multi_sync_server", "multi_async", "multi_async_server"),
)
CASES["cartpole_1x8_mlp"] = _CENTRAL
CASES["cartpole_1x8_wide"] = replace(_CENTRAL, policy="wide")
_pong = CASES["pong_8"]
CASES["pong_1x8_cnn"] = replace(
    _CENTRAL,
    env_id=_pong.env_id,
    policy="cnn",
    steps=32,
    server=2.0,
    env_kwargs=_pong.env_kwargs,
    wrappers=_pong.wrappers,
)
# TorchRL's env on both sides.
_TORCHRL = ("single", "multi_sync")
for _name, _env_id, _times in (("torchrl", "CartPole-v1", 6.0), ("torchrl_halfcheetah", "HalfCheetah-v5", 2.5)):
    for _num_envs, _steps in ((1, 256), (8, 64)):
        CASES[f"{_name}_{_num_envs}"] = Case(
            _env_id, _num_envs, "mlp", _steps, {}, dict.fromkeys(_TORCHRL, _times), torchrl=True, kinds=_TORCHRL
        )
# The same over gloo on loopback, as between hosts.
for _name in ("cartpole_32", "halfcheetah_8"):
    CASES[f"{_name}_gloo"] = replace(
        CASES[_name],
        kinds=(*NETWORK_KINDS, "distributed_sync_overlap"),
        share=dict.fromkeys(NETWORK_KINDS, 0.85) | {"distributed_sync_overlap": 0.9},
        ratio=dict.fromkeys(NETWORK_KINDS, 20.0),
    )
# The same over torch RPC.
CASES["cartpole_32_rpc"] = replace(
    CASES["cartpole_32"], kinds=RPC_KINDS, share=dict.fromkeys(RPC_KINDS, 0.8), ratio=dict.fromkeys(RPC_KINDS, 10.0)
)
# The same with Ray actors of a cluster on this machine.
CASES["cartpole_32_ray"] = replace(
    CASES["cartpole_32"], kinds=RAY_KINDS, share={"ray": 0.85, "ray_sync": 0.75}, ratio=dict.fromkeys(RAY_KINDS, 10.0)
)
# Observations of so many bytes, with an env that only fills them and a policy that does nothing.
SIZES = (4, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
# The last one is an image of 224x224x3.
for _size in (*SIZES, 150_528):
    CASES[f"size_{_size}"] = Case(
        "benchmarks.sizes:Sized-v0",
        1,
        "ballast",
        max(2, min(1024, 2**23 // _size)),
        {},
        env_kwargs=(("size", _size),),
        kinds=("multi_async", "distributed"),
    )


def env_config(case: Case) -> Any:
    """The configuration of the env group."""
    from collectx.config.schema.env import EnvPoolEnvConfig, GymEnvConfig, TorchrlEnvConfig

    if case.torchrl:
        return TorchrlEnvConfig(
            kind="torchrl", num_envs=case.num_envs, target="benchmarks.peer:make_env", kwargs={"case": case}
        )
    if case.envpool:
        return EnvPoolEnvConfig(kind="envpool", num_envs=case.num_envs, id=case.env_id, kwargs={}, num_threads=1)
    values = {"num_envs": case.num_envs, "id": case.env_id, "kwargs": dict(case.env_kwargs)}
    return GymEnvConfig(kind="gym", **values, wrappers=list(case.wrappers))


def counting_config() -> Any:
    """One counting env per worker."""
    from collectx.config.schema.env import CountingEnvConfig

    return CountingEnvConfig(kind="counting", num_envs=1, episode_length=10, observation_size=4, step_s=0.0)


def ballast_config(megabytes: float) -> Any:
    """A policy of that many megabytes of weights; see `ballast_policy`."""
    from collectx.config.schema.policy import CustomPolicyConfig

    return CustomPolicyConfig(
        kind="custom", target="benchmarks.overhead:ballast_policy", kwargs={"megabytes": megabytes}
    )


def policy_config(case: Case) -> Any:
    """The policy: a tanh MLP of two equal layers (`_MLP_SIZES`), or the convolutions of `conf/policy/cnn.yaml`."""
    from collectx.config.schema.policy import CnnPolicyConfig, MlpPolicyConfig

    if case.policy == "ballast":
        return ballast_config(0.001)
    if case.policy in _MLP_SIZES:
        return MlpPolicyConfig(kind="mlp", hidden_sizes=2 * [_MLP_SIZES[case.policy]], activation="tanh")
    return CnnPolicyConfig(kind="cnn")


def run_config(env: Any, policy: Any, kind: str, num_workers: int, frames_per_batch: int, **collector: Any) -> Any:
    """A complete configuration; `collector` replaces values of that group."""
    from collectx.config.registry import group_from_dict
    from collectx.config.schema.launcher import BackendConfig, DevicesConfig, LauncherConfig, RayLauncherConfig
    from collectx.config.schema.run import RunConfig
    from collectx.config.schema.trainer import TrainerConfig

    overlap, kind = int(kind in OVERLAPPED), kind.removesuffix(OVERLAP)
    inference = "server" if kind.endswith(SERVER) else "local"
    kind = kind.removesuffix(SERVER)
    values = {
        "kind": kind,
        "overlap": overlap,
        "num_workers": num_workers,
        "frames_per_batch": frames_per_batch,
        "total_frames": -1,
        "exploration_type": "deterministic",
        "max_restarts": 0,
        "start_timeout_s": 120.0,
        **collector,
    }
    if (either := kind.removesuffix("_sync")) in _EITHER:
        values |= {"kind": either, "sync": kind != either}
    # EnvPool's threads run on the core of their worker, as in the bare loop.
    launcher = LauncherConfig(kind="local", num_threads=1, pin_cores=env.kind == "envpool")
    if kind in RAY_KINDS:
        ray = {"ray_init_config": RAY, "queue_timeout_s": 120.0}
        launcher = RayLauncherConfig(kind="ray", **ray)
    return RunConfig(
        env=env,
        policy=policy,
        collector=group_from_dict("collector", values),
        inference=group_from_dict("inference", {"kind": inference}),
        backend=BackendConfig(kind="auto"),
        launcher=launcher,
        devices=DevicesConfig(),
        trainer=TrainerConfig(kind="meter"),
        seed=0,
    )
