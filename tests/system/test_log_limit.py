"""The limit of worker logs, for an env whose C code and processes print a line at every step, and that crashes."""

import pytest
from commands import forked

from collectx.run import RunFolder

ENV = """
import os, subprocess
import gymnasium as gym, numpy as np
class Env(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def __init__(self, worker_index):
        self.is_worker, self.t = worker_index >= 0, 0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}
    def step(self, action):
        self.t += 1
        for number in range(50 * self.is_worker):
            os.write(1, b"step %d: contact %d dropped\\n" % (self.t, number))
        if self.is_worker and self.t == 300:
            subprocess.run(["sh", "-c", "echo from its process >&2"])
            os.write(2, b"the last words\\n")
            os.abort()
        return np.zeros(3, np.float32), 1.0, False, self.t % 100 == 0, {}
"""


@pytest.mark.ci
def test_a_chatty_worker_has_a_short_log_with_its_last_words(tmp_path):
    (tmp_path / "chatty.py").write_text(ENV)
    words = ["env=gym", "env.entry_point=chatty:Env", "env.num_envs=1", "trainer=meter", "policy=random"]
    words += ["collector.num_workers=2", "collector.frames_per_batch=20", "run.max_log_bytes=20000"]
    done = forked("run", *words, "hydra.run.dir=run", cwd=tmp_path, status=1)
    run_folder = RunFolder(tmp_path / "run")
    logs = [run_folder.log(f"worker-{worker}") for worker in range(2)]
    assert max(log.stat().st_size for log in logs) <= 20_000
    assert all("exceeded run.max_log_bytes=20000" in log.read_text().splitlines()[0] for log in logs)
    texts = [text for log in logs if "the last words" in (text := log.read_text())]
    assert texts
    for text in texts:
        *_, step, before, last = text[: text.index("the last words") + 14].splitlines()
        assert (step, before, last) == ("step 300: contact 49 dropped", "from its process", "the last words")
    (event,) = [each for each in run_folder.read_events() if each["event"] == "log_limited"]
    said = f"logs/{event['file'].rpartition('/')[2]} exceeded run.max_log_bytes=20000: repeated lines are folded"
    assert (done.stdout + done.stderr).count(said) == 1
