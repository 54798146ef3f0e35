"""Workers: build envs and policy and fill the slots that the trainer grants, in the worker's process; inline workers in
the trainer's.
"""
