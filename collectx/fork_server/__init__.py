"""The process that forks workers (`start`), what workers inherit and the user's script (`script`), and the end of this
process (`end`) and of everything that workers started (`descendants`).
"""
