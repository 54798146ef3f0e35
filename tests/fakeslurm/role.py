#!/usr/bin/env -S python3 -S
"""Takes the place of Python in a job (`launcher.python`): plays a role by its seed, in no time.

0 completes    1 fails with a traceback    2 waits until it is cancelled    3 is killed, and leaves nothing
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

run = Path(sys.argv[-1])
cfg = json.loads((run / "jobs" / "run.json").read_text())["cfg"]
if os.environ["SLURM_PROCID"] != "0":
    sys.exit(0)


def end(status: str, reason: str, failures: list) -> None:
    result = {"status": status, "exit_reason": reason, "frames": 512, "batches": 1, "wall_s": 0.5, "start_s": 0.1}
    result |= {"frames_per_s": 1000.0, "mean_return": None, "num_episodes": 0, "digest": None, "failures": failures}
    temporary = run / "result.tmp"
    temporary.write_text(json.dumps(result))
    temporary.rename(run / "result.json")
    sys.exit({"completed": 0, "failed": 1, "interrupted": 130}[status])


print("gamma", cfg["trainer"].get("gamma"), flush=True)
if cfg["seed"] == 1:
    (run / "logs" / "trainer.log").write_text(
        'Traceback (most recent call last):\n  File "lever.py"\nLeverError: stuck\n'
    )
    end("failed", "LeverError: stuck", [{"type": "LeverError", "message": "stuck", "worker": 0}])
if cfg["seed"] == 2:
    signal.signal(signal.SIGTERM, lambda *_: end("interrupted", "interrupted by SIGTERM", []))
    (run / "is_running").touch()
    time.sleep(300)
if cfg["seed"] == 3:
    os.kill(os.getpid(), signal.SIGKILL)
end("completed", "all frames delivered", [])
