"""A small simulator, a process of its own as Unity's, CARLA's or Isaac's: it listens on a port, takes a licence, and
plays episodes. Its client sends one line, and gets one: `reset LEVEL` or `step ACTION`, and the state with the reward.

    python simulator.py PORT FOLDER [--stubborn] [--daemon]

Writes `PORT.pid` and `PORT.licence` into the folder; the licence is removed when it ends in order. `--stubborn` ignores
SIGTERM, `--daemon` leaves session and parent, and does not open its descriptors again.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

GOAL = 10


def serve(listener):
    """Serves one client after another."""
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw") as lines:
            level = position = 0
            for line in lines:
                name, number = line.split()
                if name == "reset":
                    level, position = int(number), 0
                else:
                    position += 1 + int(number)
                done = position >= GOAL + level
                answer = {"position": position, "level": level, "reward": float(done), "done": done, "success": done}
                print(json.dumps(answer), file=lines, flush=True)


def main(port, folder, *flags):
    if "--daemon" in flags:
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
    licence = Path(folder, f"{port}.licence")
    licence.touch()

    def end(*_):
        licence.unlink()
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if "--stubborn" in flags else end)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(port)))
        # Before anyone can connect: a client may end the simulator as soon as it listens.
        Path(folder, f"{port}.pid").write_text(str(os.getpid()))
        listener.listen()
        serve(listener)


if __name__ == "__main__":
    main(*sys.argv[1:])
