"""Reports about runs, from their folders: one HTML page, its tables as CSV and LaTeX, its figures as PNG and PDF.

    read.py    run folders -> `Run`, with its curves and times; runs that differ only in their seeds -> `Group`
    draw.py    `Group`s -> figures of matplotlib
    tables.py  `Run`s and `Group`s -> tables
    page.py    tables and figures, by page.html.j2 -> files

Made in the process of the command, for running and ended runs. Needs the extra `report`.
"""
