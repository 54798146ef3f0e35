"""The `collectx` command. All of it runs in the process of the command; `compose.py` and `task.py` also in the jobs of
a sweep that one of Hydra's launchers submits.
"""
