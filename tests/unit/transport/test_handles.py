"""How processes are ended that do not end by themselves."""

import pytest

from collectx.transport.handles import end_processes


class Hung:
    """A process that ends when it is killed."""

    sentinel = -1

    def __init__(self, pid):
        self.pid, self.exitcode, self.calls = pid, None, []

    def join(self, timeout=None):
        pass

    def terminate(self):
        self.calls.append("terminate")

    def kill(self):
        self.calls.append("kill")
        self.exitcode = -9


@pytest.mark.parametrize(("pid", "calls"), [(7, ["kill"]), (None, ["terminate", "kill"])])
def test_a_hung_process_is_terminated_only_if_it_is_a_schedulers(pid, calls):
    hung = Hung(pid)
    end_processes([hung], 0.0)
    assert hung.calls == calls
