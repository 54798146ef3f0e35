"""Collectors in a notebook: a real kernel, whose cells are sent to it as Jupyter does."""

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("notebook")]

DEFINITIONS = """
import gymnasium
import torch
from torch import nn
from collectx import MultiAsyncCollector, MultiSyncCollector

class Shifted(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return observation + 10

class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        return (observation[..., 0] > 10).long()

policy = Policy()
sizes = {"frames_per_batch": 40, "total_frames": 80, "num_workers": 2}
"""
COLLECT = """
with {cls}(lambda: Shifted(gymnasium.make("CartPole-v1")), policy, **sizes) as collector:
    means = [batch["observation"].mean().item() for batch in collector]
print(len(means), all(9 < mean < 11 for mean in means))
"""
ENDLESS = """
collector = MultiSyncCollector(
    lambda: Shifted(gymnasium.make("CartPole-v1")), policy, frames_per_batch=40, total_frames=-1, num_workers=2
)
with collector:
    for number, batch in enumerate(collector):
        if number == 0:
            print("first", flush=True)
"""


class Notebook:
    def __init__(self):
        self._manager, self._client = start_new_kernel(startup_timeout=120)
        self.kernel = psutil.Process(self._manager.provisioner.pid)

    def run(self, code, interrupt=False, on_message=lambda message: None):
        """Returns what the cell prints, and the name of its exception or None.

        Args:
            on_message: called with each message of the kernel.
            interrupt: as soon as it has printed something, as the button of the notebook does.
        """
        printed = []

        def hook(message):
            on_message(message)
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                if interrupt and not printed:
                    self._manager.interrupt_kernel()
                printed.append(message["content"]["text"])

        reply = self._client.execute_interactive(code, timeout=120, output_hook=hook)
        return "".join(printed).strip(), reply["content"].get("ename")

    def workers(self):
        """Processes that the fork server of the kernel has started."""
        return [each for child in self.kernel.children() for each in child.children()]

    def close(self):
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def notebook():
    opened = Notebook()
    assert opened.run(DEFINITIONS) == ("", None)
    yield opened
    opened.close()


@pytest.mark.parametrize("cls", ["MultiSyncCollector", pytest.param("MultiAsyncCollector", marks=pytest.mark.nightly)])
def test_what_is_defined_in_cells_works_and_a_cell_may_run_again(notebook, cls):
    for _ in range(2):
        assert notebook.run(COLLECT.format(cls=cls)) == ("2 True", None)


def test_an_interrupted_cell_leaves_nothing_behind_and_may_run_again(notebook, wait_until):
    for _ in range(2):
        assert notebook.run(ENDLESS, interrupt=True) == ("first", "KeyboardInterrupt")
        wait_until(lambda: not notebook.workers(), 20, "the end of all workers")
    assert notebook.run("print(collector.closed)") == ("True", None)
    assert notebook.run(COLLECT.format(cls="MultiSyncCollector")) == ("2 True", None)


RUN = """
from pathlib import Path
from collectx.cli.compose import compose
from collectx.run import execute
words = ["policy.hidden_sizes=[8]", "collector.frames_per_batch=256", "collector.total_frames=1_000", "debug=inline"]
print(execute(compose(words), Path({folder!r}), []).frames)
"""


def test_the_progress_of_a_run_is_one_output_that_is_updated(notebook, tmp_path):
    contents = []

    def hook(message):
        if message["msg_type"] in ("display_data", "update_display_data"):
            contents.append((message["msg_type"], message["content"]["data"].get("text/html", "")))

    printed, error = notebook.run(RUN.format(folder=str(tmp_path / "run")), on_message=hook)
    assert (printed.split()[-1], error) == ("1024", None)
    assert [kind for kind, _ in contents].count("display_data") == 1
    assert [html for kind, html in contents if kind == "update_display_data" and "1,024" in html]
