"""Central inference (`inference=server`): the server's process, and what workers use in place of a policy. They
communicate by `collectx/transport/inference_channel.py`.
"""
