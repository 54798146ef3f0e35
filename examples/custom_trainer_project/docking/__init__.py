"""An env, a policy and a trainer for `collectx run`."""
