"""In a network namespace whose only network is IPv6: what addresses there are, and one run over them. For
`contract/test_joining.py`; prints what it finds."""

from __future__ import annotations

import subprocess
import time

from collecting import config, counting

from collectx import env as envs
from collectx.collector import build
from collectx.env.counting import check_stream
from collectx.transport.rendezvous import local_addresses

UP = "ip link set lo up; ip link add d0 type veth peer name d1; ip link set d1 up; ip addr add fd00::1/64 dev d0 nodad"


def main():
    print(local_addresses(None))
    subprocess.run(f"{UP}; ip link set d0 up", shell=True, check=True)
    deadline = time.monotonic() + 60
    while local_addresses(None) == ("127.0.0.1",) and time.monotonic() < deadline:
        time.sleep(0.02)
    print(local_addresses(None))
    cfg = config("distributed", env=counting(2), frames_per_batch=20, total_frames=400)
    cfg.backend.interface = "d0"
    with build(cfg, None, envs.read_spec(cfg.env)) as collector:
        print(check_stream(collector))


if __name__ == "__main__":
    main()
