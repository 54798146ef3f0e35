"""Imported once by the fork server, so that every worker starts with it done: all that a worker imports."""
