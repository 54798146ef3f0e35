"""The `collectx` command, in the process of the command. The jobs of a sweep that a launcher of Hydra submits run
`compose.py` and `task.py` too.
"""
