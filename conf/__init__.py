"""YAML of every choice; installed as `collectx.conf`. Read by Hydra through `pkg://collectx.conf`; holds no code."""
