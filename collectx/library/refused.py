"""Public names and attributes of TorchRL's collectors that this package lacks, for the message of `AttributeError`.

The package imports this module whenever it lacks a name, also for its submodules: it imports nothing.
"""

from __future__ import annotations

_WEIGHT_SCHEMES = (
    "TorchRL's collectors use it internally. To send weights to the workers, call update_policy_weights_()"
)
_PROCESSES = (
    "Unlike TorchRL, collectx does not expose the worker processes and their connections. Use getattr_env() or stats()"
)
_TEXTS = "To collect the texts of language models, use TorchRL's"

# Methods and attributes, with the reason or a replacement, in whole sentences.
REFUSED_ATTRIBUTES = {
    "IPAddr": "Workers find the trainer's address by themselves. To choose its port, pass tcp_port to the constructor",
    "env_method": "To call a method of the envs, use call()",
    "cascade_execute": _WEIGHT_SCHEMES,
    "collector_infos": _PROCESSES,
    "collector_rrefs": _PROCESSES,
    "env_constructors": "Use create_env_fn",
    "frames_per_worker": "Use frames_per_batch_worker()",
    "futures": _PROCESSES,
    "get_cached_weights": "Unlike TorchRL, collectx keeps no copy of the weights. Use collector.policy",
    "init_updater": "Set up a weight updater before you pass it to the constructor",
    "jobs": _PROCESSES,
    "out_tensordicts": _PROCESSES,
    "pipes": _PROCESSES,
    "policy_version_tracker": "Use policy_version",
    "procs": _PROCESSES,
    "queue_out": _PROCESSES,
    "register_scheme_receiver": _WEIGHT_SCHEMES,
    "server_backend": "A separate process always calls the policy",
    "server_stats": "Use stats(), which counts frames and batches",
    "running": "Use is_running()",
    "total_frames_per_collector": "Workers have no totals of their own: they collect until total_frames are delivered",
}

# Attributes that only a collector without workers has.
REFUSED_IN_ONE_PROCESS = {"env": "The envs are in the worker processes. Use getattr_env() or create_env_fn"}

# Public names of `torchrl.collectors`, and of others that users look for, with the reason or a replacement.
REFUSED_NAMES = {
    **{name: f"To train, type collectx run trainer={name.lower()}" for name in ("PPO", "IMPALA", "DQN", "SAC")},
    "compose": "Import it from collectx.cli.compose",
    "LLMCollector": _TEXTS,
    "RayLLMCollector": _TEXTS,
    "Evaluator": "To evaluate a policy, use Collector(..., exploration_type='DETERMINISTIC')",
    "RayEvalWorker": "To evaluate a policy, use RayCollector(..., exploration_type='DETERMINISTIC')",
}
