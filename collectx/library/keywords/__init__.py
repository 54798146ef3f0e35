"""The keyword arguments of the collectors' constructors: taken apart at once into a few frozen specs, and made into a
configuration. Nothing else ever sees them.

    keywords --take--> Work, Frames, Devices, ... --order--> RunConfig, what each worker has of its own

Called in the trainer's process, by `collectx.library.collectors`.
"""

from collectx.library.keywords.alike import alike
from collectx.library.keywords.env_and_policy import CreateEnv, Work
from collectx.library.keywords.parse import REFUSED, Keywords, described
from collectx.library.keywords.remote import Nested, RayRemote, Remote, RpcRemote
from collectx.library.keywords.specs import Devices, EachBatchWeights, Frames, Weights, Workers
from collectx.library.output import BatchOutput
from collectx.library.request import Order, own_of

__all__ = [
    "REFUSED",
    "BatchOutput",
    "CreateEnv",
    "Devices",
    "EachBatchWeights",
    "Frames",
    "Keywords",
    "Nested",
    "Order",
    "RayRemote",
    "Remote",
    "RpcRemote",
    "Weights",
    "Work",
    "Workers",
    "alike",
    "described",
    "own_of",
]
