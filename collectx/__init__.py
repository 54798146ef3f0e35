"""collectx: reinforcement-learning experience collection from one YAML-driven command."""

__version__ = "0.1.0"
