"""Collectors: a schedule over a transport. `start_collector` starts one of a configuration. A collector runs in the
trainer's process. A nested worker's collector runs in that worker's process (`collectx/worker/user_collector.py`)."""

from collectx.collector.batch_info import BatchInfo as BatchInfo
from collectx.collector.batch_info import WrittenBatch as WrittenBatch
from collectx.collector.collector import CollectorCore as CollectorCore
from collectx.collector.compose import slot_spec_of as slot_spec_of
from collectx.collector.compose import start_collector as start_collector
from collectx.schedule.recorded import RecordedBatch as RecordedBatch
