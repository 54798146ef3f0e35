"""Transports carry batches to the trainer, and grants and weights to the workers. A `Transport` is the trainer's end, a
`Link` a worker's end; see `base.py`.
"""
