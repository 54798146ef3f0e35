"""A limit of time for a block of the main thread."""

import threading

import pytest

from collectx import process
from collectx.process import limited


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
    monkeypatch.setattr(process, "_PATIENCE_S", 0.1)
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


@pytest.mark.parametrize(("most", "is_given_up"), [(1, False), (3, False), (9, True)])
def test_code_is_interrupted_three_times_before_it_is_given_up(monkeypatch, most, is_given_up):
    """The code catches every interrupt, and ends after the last that it is to catch."""
    monkeypatch.setattr(process, "_END_S", 0.2)
    num_caught, given_up, errors = 0, threading.Event(), []

    def give_up(error):
        errors.append(error)
        given_up.set()

    with limited("making an env", "collector.start_timeout_s", 0.1, give_up=give_up):
        while num_caught < most and not given_up.is_set():
            try:
                while not given_up.is_set():
                    pass
            except BaseException:
                num_caught += 1
    for thread in threading.enumerate():
        if thread.name == "collectx-limit":
            thread.join()
    assert num_caught == min(most, 3)
    assert [str(error) for error in errors] == [
        "making an env took more than 0.1 s (collector.start_timeout_s=0.1). If that is normal, raise "
        "collector.start_timeout_s."
    ] * is_given_up
