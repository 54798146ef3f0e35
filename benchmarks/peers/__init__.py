"""collectx beside other libraries: `python -m benchmarks.peers`, or `make bench-peers`.

    __main__.py        measures all sides of a case in turn, and prints the table
    loop.py            a loop over the vector env of a peer that has none of its own
    NAME.txt, NAME.py  requirements of .bench/NAME, the environment of one peer, and its side of a comparison

NAME.py imports nothing of collectx.
"""
