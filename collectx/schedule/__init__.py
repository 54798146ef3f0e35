"""Schedules decide which slots workers may fill, and which filled slots make a batch. They run in the trainer's
process."""
