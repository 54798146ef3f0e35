"""Collectors: a schedule over a transport. `build` composes one from a configuration."""

from collectx.collector.again import Recorded as Recorded
from collectx.collector.build import build as build
from collectx.collector.collector import Collector as Collector
from collectx.collector.delivery import Delivery as Delivery
