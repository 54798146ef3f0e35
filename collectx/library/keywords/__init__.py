"""Keyword arguments of the collectors' constructors, as frozen dataclasses (specs), and their parser.

    keywords --parse--> EnvAndPolicy, Frames, Devices, ... --request, configuration--> RunConfig, overrides per worker

Used in the trainer's process, by `collectx.library`, whose modules `output`, `trajectories` and `early_stop` have more
specs.
"""

from collectx.library.keywords.env_and_policy import CreateEnv, EnvAndPolicy
from collectx.library.keywords.parse import REFUSED_KEYWORDS, KeywordParser, described
from collectx.library.keywords.remote import Nested, RayRemote, Remote, RpcRemote
from collectx.library.keywords.shared import lift_shared
from collectx.library.keywords.specs import Devices, EachBatchWeights, Frames, Weights, Workers

__all__ = [
    "REFUSED_KEYWORDS",
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
