"""Central inference (`inference=server`): the server's process, and the workers' replacement for a policy. They talk
through `collectx/transport/inference_channel.py`.
"""
