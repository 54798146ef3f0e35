"""Reports about runs, from their folders: one HTML page and the figures in it as PNGs.

    read.py    run folders -> `Run`, with its curves and times; runs that differ only in their seeds -> `Group`
    draw.py    `Group`s -> figures of matplotlib
    page.py    `Run`s and `Group`s -> tables; these and the figures, by page.html.j2 -> files

Made in the process of the command, for running and ended runs. Needs the extra `report`.
"""
