"""The process that forks workers (`start`), what they inherit (`inherited`), and their script (`script`)."""
