"""The process that forks workers (`start`), the state that they inherit (`inherited`), and their script (`script`)."""
