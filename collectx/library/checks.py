"""Checks a request: the rules of the configuration, under the keywords' names, and the rules of Python alone."""

from __future__ import annotations

from collections.abc import Sequence

from collectx.config import rules as config_rules
from collectx.config.derived import REMOTE
from collectx.config.rules.backends import mpi_universe, tensorpipe, visible_problems
from collectx.config.rules.collection import nested_collectors, preemption
from collectx.config.rules.launchers import gpu_problems
from collectx.config.schema.collector import CollectorConfig, EitherCollectorConfig
from collectx.config.schema.fields import incomplete
from collectx.config.schema.launcher import BackendConfig, DevicesConfig, LauncherConfig, RpcBackendConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError
from collectx.library.keywords.coerce import for_each
from collectx.library.keywords.collector_class import call_problems, user_class
from collectx.library.keywords.options import in_python
from collectx.library.keywords.remote import RayRemote, Remote, RpcRemote
from collectx.library.overrides import user_collectors
from collectx.library.request import CollectorRequest


def check_request(request: CollectorRequest, problems: Sequence[str]) -> None:
    """Checks all keywords.

    Args:
        problems: those that were found before.

    Raises:
        ConfigError: with all problems.
    """
    num_workers = request.num_workers
    messages = [
        *problems,
        *request.env_and_policy.problems(num_workers),
        *_cuda_graphs(request),
        *_frames_per_worker(request),
        *_option_rules(request),
        *request.early.problems(request.output),
        *request.frames.problems(),
        *request.devices.problems(num_workers, request.kind not in REMOTE),
        *request.output.problems(),
        *request.weights.problems(),
        *request.remote.problems(num_workers),
        *_gpus(request),
        *request.hooks.problems(),
        *request.assembly.problems(),
        *_assembly(request),
        *_user_class(request),
    ]
    if messages:
        raise ConfigError(list(dict.fromkeys(messages)))


def _option_rules(request: CollectorRequest) -> list[str]:
    """The rules between options that the command line checks too."""
    remote, kind = request.remote, request.kind
    collector = incomplete(
        CollectorConfig if request.sync is None else EitherCollectorConfig,
        kind=kind,
        num_workers=request.num_workers,
        on_worker_failure=request.workers.on_worker_failure,
        num_workers_per_collector=remote.num_workers_per_collector,
        inner=remote.inner,
        refresh="step" if request.weights.update_weights_between_steps else "batch",
        preemptive_threshold=request.early.threshold,
        sync=request.sync,
    )
    launcher = remote.launcher if isinstance(remote, Remote) else "ray" if isinstance(remote, RayRemote) else "local"
    backend: BackendConfig
    if isinstance(remote, RpcRemote):
        backend = incomplete(RpcBackendConfig, kind="rpc", tensorpipe=dict(remote.tensorpipe_options or {}))
    else:
        backend = remote.backend_config()
    cfg = incomplete(
        RunConfig,
        collector=collector,
        backend=backend,
        launcher=incomplete(LauncherConfig, kind="local" if launcher == "mp" else launcher),
        devices=incomplete(DevicesConfig),
    )
    return [*map(in_python, config_rules.problems(cfg, (preemption, nested_collectors, tensorpipe, mpi_universe)))]


def _gpus(request: CollectorRequest) -> list[str]:
    """Workers see the GPUs that their policies act on."""
    remote = request.remote
    if not request.has_valid_devices:
        return []
    if isinstance(remote, RpcRemote):
        return [*map(in_python, visible_problems(remote.visible, request.policy_devices))]
    if isinstance(remote, RayRemote):
        configs = for_each(remote.remote_configs, request.num_workers)
        return [*map(in_python, gpu_problems(configs, request.policy_devices))]
    return []


def _cuda_graphs(request: CollectorRequest) -> list[str]:
    value = request.env_and_policy.cudagraph_policy
    if not value or not request.has_valid_devices:
        return []
    devices = sorted({device for device in request.policy_devices if not device.startswith("cuda")})
    if not devices:
        return []
    return [
        f"cudagraph_policy={value!r}: the policy acts on {', '.join(devices)}, and CUDA graphs are recorded on GPUs "
        "only: give policy_device='cuda', or leave it out."
    ]


def _frames_per_worker(request: CollectorRequest) -> list[str]:
    """A list as `frames_per_batch`."""
    frames = request.frames.per_worker
    if frames is None:
        return []
    subject = f"frames_per_batch={frames}"
    if request.kind not in ("multi_sync", "multi_async"):
        return [f"{subject}: must be one number, but for MultiSyncCollector and MultiAsyncCollector."]
    problems = []
    if len(frames) != request.num_workers:
        count = f"{len(frames)} entries for {request.num_workers} workers"
        problems.append(f"{subject} has {count}: one for each, or one number.")
    if request.kind == "multi_sync" and not request.output.is_concatenated:
        rule = "parts of different lengths cannot be stacked"
        problems.append(f"{subject}: {rule}: give cat_results=-1, or one number.")
    return problems


def _assembly(request: CollectorRequest) -> list[str]:
    """Batches of complete trajectories have no fixed length."""
    trajectories = request.assembly.trajs_per_batch
    if trajectories is None:
        return []
    required = {"return_same_td": False, "track_traj_ids": True, "split_trajs": False, "extend_buffer": True}
    return [
        f"{name}={not value} with trajs_per_batch={trajectories}: batches are of whole trajectories, whose lengths "
        f"differ: leave {name} out."
        for name, value in required.items()
        if bool(getattr(request.output, name)) is not value
    ]


def _user_class(request: CollectorRequest) -> list[str]:
    """A user's class as `collector_class`."""
    if user_class(request.remote.collector_class) is None or request.remote.problems(request.num_workers):
        return []
    problems = []
    if request.weights.update_weights_between_steps:
        rule = "a user's collector_class takes weights between its batches"
        problems.append(f"update_weights_between_steps=True: {rule}: leave it out.")
    for name in ("num_envs", "info_keys", "exclude_keys"):
        if value := getattr(request.env_and_policy, name):
            problems.append(f"{name}={value!r}: a user's collector_class makes its envs itself: leave it out.")
    return problems + [problem for collector in user_collectors(request) for problem in call_problems(collector)]
