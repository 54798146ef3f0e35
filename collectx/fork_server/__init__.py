"""The process that forks workers (`start`), the state that they inherit (`inherited`), their script (`script`), and how
it ends (`end`) with everything that workers started (`descendants`).
"""
