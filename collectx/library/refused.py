"""Public names and attributes of TorchRL's collectors that this package lacks, for the message of `AttributeError`."""

from __future__ import annotations

_WEIGHT_SCHEMES = "it connects parts of TorchRL's collectors; here the collector's transport carries weights"
_PROCESSES = "the transport owns the worker processes and their connections; use getattr_env or stats"

# Methods and attributes, with the reason or a replacement.
ATTRIBUTES = {
    "IPAddr": "workers get the trainer's address; use the keyword tcp_port to choose its port",
    "cascade_execute": _WEIGHT_SCHEMES,
    "collector_infos": _PROCESSES,
    "collector_rrefs": _PROCESSES,
    "env_constructors": "use collector.create_env_fn",
    "frames_per_worker": "use collector.frames_per_batch_worker",
    "futures": _PROCESSES,
    "get_cached_weights": "the collector keeps no copy of the weights; use collector.policy",
    "init_updater": "a weight updater only supplies weights; set it up before passing it to the constructor",
    "jobs": _PROCESSES,
    "out_tensordicts": _PROCESSES,
    "pipes": _PROCESSES,
    "policy_version_tracker": "use collector.policy_version",
    "procs": _PROCESSES,
    "queue_out": _PROCESSES,
    "register_scheme_receiver": _WEIGHT_SCHEMES,
    "server_backend": "a separate process calls the policy",
    "server_stats": "use collector.stats, which counts frames and batches",
    "running": "use collector.is_running()",
    "total_frames_per_collector": "workers collect until total_frames are delivered",
}

# Attributes that only a collector without workers has.
OF_ONE_PROCESS = {"env": "the envs are in the workers' processes; use collector.getattr_env or collector.create_env_fn"}

# Public names of `torchrl.collectors`, with the reason or a replacement.
NAMES = {
    "Evaluator": "evaluate with Collector(..., exploration_type='DETERMINISTIC')",
    "RayEvalWorker": "evaluate with RayCollector(..., exploration_type='DETERMINISTIC')",
}
