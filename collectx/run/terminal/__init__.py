"""What a user sees of a run in the terminal."""
