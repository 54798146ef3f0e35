"""The keyword arguments of the collectors' constructors, as a few frozen specs.

    keywords --parse--> EnvAndPolicy, Frames, Devices, ... --request, configuration--> RunConfig, overrides per worker

Used in the trainer's process, by `collectx.library`.
"""

from collectx.library.keywords.env_and_policy import CreateEnv, EnvAndPolicy
from collectx.library.keywords.parse import REFUSED, KeywordParser, described
from collectx.library.keywords.remote import Nested, RayRemote, Remote, RpcRemote
from collectx.library.keywords.shared import lift_shared
from collectx.library.keywords.specs import Devices, EachBatchWeights, Frames, Weights, Workers

__all__ = [
    "REFUSED",
    "CreateEnv",
    "Devices",
    "EachBatchWeights",
    "EnvAndPolicy",
    "Frames",
    "KeywordParser",
    "Nested",
    "RayRemote",
    "Remote",
    "RpcRemote",
    "Weights",
    "Workers",
    "described",
    "lift_shared",
]
