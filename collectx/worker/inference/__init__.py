"""Central inference (`inference=server`): the server's process, and what workers have in place of a policy. They talk
by `collectx/transport/inference.py`.
"""
