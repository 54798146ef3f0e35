"""The process that forks workers (`start`), what they inherit (`inherited`), their script (`script`), and how it ends
(`end`) with all that workers have started (`descendants`).
"""
