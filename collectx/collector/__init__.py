"""Collectors: a schedule over a transport. `build` composes one from a configuration. Collectors run in the trainer's
process; a nested worker's collector runs in the worker's (`collectx/worker/nested.py`).
"""

from collectx.collector.batch_info import BatchInfo as BatchInfo
from collectx.collector.batch_info import WrittenBatch as WrittenBatch
from collectx.collector.collector import CollectorCore as CollectorCore
from collectx.collector.compose import batch_of as batch_of
from collectx.collector.compose import build as build
from collectx.schedule.recorded import RecordedBatch as RecordedBatch
