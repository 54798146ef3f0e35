"""The process that forks workers (`start`), the state that workers inherit (`inherited`), the user's script (`script`),
and the end of this process (`end`) and of everything that workers started (`descendants`).
"""
