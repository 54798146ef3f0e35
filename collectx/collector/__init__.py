"""Collectors: a schedule over a transport. `start_collector` starts the collector of a configuration, in the trainer's
process or, for a worker that is itself a collector, in the worker's process (`collectx/worker/nested.py`)."""

from collectx.collector.batch_info import BatchInfo as BatchInfo
from collectx.collector.batch_info import WrittenBatch as WrittenBatch
from collectx.collector.collector import CollectorCore as CollectorCore
from collectx.collector.compose import slot_spec_of as slot_spec_of
from collectx.collector.compose import start_collector as start_collector
from collectx.schedule.recorded import RecordedBatch as RecordedBatch
