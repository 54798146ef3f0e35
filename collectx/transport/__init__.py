"""Transports: batches travel to the trainer, grants and weights to the workers. `Transport`s run in the trainer's
process, `Link`s in the worker's; see `base.py`.
"""
