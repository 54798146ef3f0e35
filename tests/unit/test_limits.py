"""A limit of time for a block of the main thread."""

import pytest

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
