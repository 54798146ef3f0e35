"""What a run writes, and the names of its files (`layout`)."""
