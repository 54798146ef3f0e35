"""What of Ray's pair needs no cluster."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from collectx.transport.pair import set_stamp

pair_ray = pytest.importorskip("collectx.transport.pair_ray")


def test_weights_are_stored_once_and_never_taken_for_those_of_another_collector(monkeypatch):
    puts: list[np.ndarray] = []
    monkeypatch.setattr(pair_ray.ray, "put", lambda array: puts.append(array.copy()) or len(puts))
    memory = np.zeros(128, np.uint8)
    one = torch.from_numpy(memory)
    set_stamp(one, 1)
    assert [pair_ray._stored.object(one) for _ in range(3)] == [1, 1, 1]
    # A collector made later publishes its first version too, from memory that the first one has left.
    memory[:8] = 7
    other = torch.from_numpy(memory)
    assert pair_ray._stored.object(other) == 2
    assert puts[1][0] == 7
    set_stamp(other, 2)
    assert pair_ray._stored.object(other) == 3
