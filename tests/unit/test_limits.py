"""A limit of time for a block of the main thread."""

import threading

import pytest

from collectx import limits
from collectx.limits import limited


def loop(timeout_s):
    with limited("making an env", "collector.start_timeout_s", timeout_s):
        while True:
            pass


@pytest.mark.sample(1)
@pytest.mark.parametrize("timeout_s", [1e-9, 1e-5, 1e-4])
def test_a_limit_that_is_reached_at_once_is_a_timeout_wherever_it_interrupts(timeout_s):
    for _ in range(100):
        with pytest.raises(TimeoutError, match="making an env took more than"):
            loop(timeout_s)


@pytest.mark.parametrize(("timeout_s", "is_said"), [(60.0, True), (0.1, False)])
def test_what_takes_long_is_said_unless_it_is_over_by_then(monkeypatch, timeout_s, is_said):
    monkeypatch.setattr(limits, "_PATIENCE_S", 0.1)
    said, texts = threading.Event(), []

    def say(text):
        texts.append(text)
        said.set()

    def block():
        with limited("making an env", "collector.start_timeout_s", timeout_s, say):
            said.wait(60.0)

    if is_said:
        block()
        assert "making an env has taken more than 0.1 s" in texts[0]
        assert "threading.py" in texts[0]
    else:
        with pytest.raises(TimeoutError):
            block()
        assert texts == []
