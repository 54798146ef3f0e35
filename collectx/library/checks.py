"""Checks a request: the rules of the configuration, under the keywords' names, and the rules of Python alone."""

from __future__ import annotations

from collections.abc import Sequence

from collectx.batch import Leaf
from collectx.config import rules as config_rules
from collectx.config.derived import REMOTE
from collectx.config.rules.backends import mpi_universe, tensorpipe, visible_problems
from collectx.config.rules.collection import nested_collectors, preemption
from collectx.config.rules.launchers import gpu_problems
from collectx.config.schema.collector import CollectorConfig, EitherCollectorConfig
from collectx.config.schema.fields import incomplete
from collectx.config.schema.launcher import BackendConfig, DevicesConfig, LauncherConfig, RpcBackendConfig
from collectx.config.schema.run import RunConfig
from collectx.errors import ConfigError, SpaceError
from collectx.library.configuration import user_collectors
from collectx.library.keywords.batches import Interruptor
from collectx.library.keywords.coerce import for_each
from collectx.library.keywords.nested import call_problems, user_class
from collectx.library.keywords.options import in_python
from collectx.library.keywords.remote import RayRemote, Remote, RpcRemote
from collectx.library.request import CollectorRequest
from collectx.run.submitted_workers import PresubmittedJobs


def check_request(request: CollectorRequest, problems: Sequence[str]) -> None:
    """Checks all keywords.

    Args:
        problems: those that were found before.

    Raises:
        ConfigError: with all problems.
    """
    messages = [
        *problems,
        *request.problems(),
        *request.device_problems(request.kind not in REMOTE),
        *_option_rules(request),
        *_gpus(request),
        *_cuda_graphs(request),
        *_frames_per_worker(request),
        *_early_stop(request),
        *_hooks(request),
        *_assembly(request),
        *_user_class(request),
    ]
    if messages or (messages := _presubmitted(request)):
        raise ConfigError(list(dict.fromkeys(messages)))


def check_keys(request: CollectorRequest, leaves: Sequence[Leaf]) -> None:
    """Checks the leaves that workers write against the keys that batches get in addition.

    Raises:
        SpaceError: the env or the policy writes a key that `track_policy_version` adds.
    """
    written = {leaf.key[1:] if leaf.key[0] == "next" else leaf.key for leaf in leaves}
    if request.track_policy_version and any(key[0] == "policy_version" for key in written):
        raise SpaceError(
            "the env or the policy cannot write policy_version with track_policy_version=True, as the batch then has "
            'another key of this name: choose another name, or leave track_policy_version out: ("collector", '
            '"policy_version") has the versions without it.'
        )


def _option_rules(request: CollectorRequest) -> list[str]:
    """The rules between options that the command line checks too."""
    remote, sync = request.remote, getattr(request, "sync", False)
    is_either = request.kind in ("rpc", "ray")
    collector = incomplete(
        EitherCollectorConfig if is_either else CollectorConfig,
        kind=request.kind,
        num_workers=request.worker_count,
        on_worker_failure=request.workers.on_worker_failure,
        num_workers_per_collector=remote.num_workers_per_collector,
        inner=remote.inner,
        refresh="step" if request.update_weights_between_steps else "batch",
        preemptive_threshold=request.threshold,
        **({"sync": sync} if is_either else {}),
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
    if not request.has_valid_devices:
        return []
    if isinstance(request, RpcRemote):
        return [*map(in_python, visible_problems(request.visible, request.policy_devices))]
    if isinstance(request, RayRemote):
        configs = for_each(request.remote_configs, request.worker_count)
        return [*map(in_python, gpu_problems(configs, request.policy_devices))]
    return []


def _cuda_graphs(request: CollectorRequest) -> list[str]:
    value = request.cudagraph_policy
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
    frames = request.frames_per_worker
    if frames is None:
        return []
    subject = f"frames_per_batch={frames}"
    if request.kind not in ("multi_sync", "multi_async"):
        return [f"{subject}: must be one number, but for MultiSyncCollector and MultiAsyncCollector."]
    problems = []
    if len(frames) != request.worker_count:
        count = f"{len(frames)} entries for {request.worker_count} workers"
        problems.append(f"{subject} has {count}: one for each, or one number.")
    if request.kind == "multi_sync" and not request.is_concatenated:
        rule = "parts of different lengths cannot be stacked"
        problems.append(f"{subject}: {rule}: give cat_results=-1, or one number.")
    return problems


def _early_stop(request: CollectorRequest) -> list[str]:
    """Batches that end early have different numbers of frames."""
    if isinstance(request, Interruptor) and request.interruptor is not None and request.return_same_td:
        return ["return_same_td=True with an interruptor: its batches have different numbers of frames."]
    share = request.threshold
    if share is None:
        return []
    if request.is_concatenated:
        message = f"return_same_td=True with preemptive_threshold={share}: use cat_results='stack'."
        return [message] if request.return_same_td else []
    return [
        f"{name} with preemptive_threshold={share}: a stacked batch has places without a frame: use cat_results=-1."
        for name in ("split_trajs", "replay_buffer")
        if getattr(request, name) not in (None, False)
    ]


def _hooks(request: CollectorRequest) -> list[str]:
    hooks = {name: hook for name, hook in vars(request.hooks).items() if hook is not None}
    return [f"{name}={hook!r} cannot be called." for name, hook in hooks.items() if not callable(hook)]


def _assembly(request: CollectorRequest) -> list[str]:
    """Batches of complete trajectories have no fixed length."""
    trajectories = request.trajs_per_batch
    if trajectories is None:
        return []
    required = {"return_same_td": False, "track_traj_ids": True, "split_trajs": False, "extend_buffer": True}
    return [
        f"{name}={not value} with trajs_per_batch={trajectories}: batches are of whole trajectories, whose lengths "
        f"differ: leave {name} out."
        for name, value in required.items()
        if bool(getattr(request, name)) is not value
    ]


def _user_class(request: CollectorRequest) -> list[str]:
    """A user's class as `collector_class`."""
    if user_class(request.remote.collector_class) is None or request.remote.remote_problems():
        return []
    problems = []
    if request.update_weights_between_steps:
        rule = "a user's collector_class takes weights between its batches"
        problems.append(f"update_weights_between_steps=True: {rule}: leave it out.")
    for name in ("num_envs", "info_keys", "exclude_keys"):
        if value := getattr(request, name):
            problems.append(f"{name}={value!r}: a user's collector_class makes its envs itself: leave it out.")
    return problems + [problem for collector in user_collectors(request) for problem in call_problems(collector)]


def _presubmitted(request: CollectorRequest) -> list[str]:
    """The submitted jobs match the keywords."""
    if not isinstance(request, Remote) or request.launcher != "submitit_delayed":
        return []
    jobs, backend = PresubmittedJobs.from_environment(), request.backend_config().kind
    if jobs is None:
        return [
            "launcher='submitit_delayed': no jobs were submitted for this process: decorate the main function with "
            "collectx.submitit_delayed_launcher, or use launcher='submitit'."
        ]
    problems = []
    if jobs.num_workers != request.worker_count:
        problems.append(
            f"{request.worker_count} workers, but submitit_delayed_launcher(num_jobs={jobs.num_workers}): "
            "pass the same number to both."
        )
    if jobs.backend != backend:
        problems.append(
            f"backend={backend!r}, but submitit_delayed_launcher(backend={jobs.backend!r}): pass the same to both."
        )
    if request.workers.on_worker_failure == "restart":
        problems.append(
            "on_worker_failure='restart': with launcher='submitit_delayed' a lost worker's job cannot be replaced: "
            "use 'raise' or 'drop'."
        )
    return problems
