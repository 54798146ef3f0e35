"""Plain data, by every transport."""

import io

import numpy as np
import pytest
import torch

from collectx.transport.messages import packed, unpacked


def test_arrays_come_back_after_a_message_that_executes_nothing():
    value = {"a": [1, 2.5, None, "x", (True,)], 3: np.arange(4.0).reshape(2, 2), "t": torch.ones(2), "n": np.float32(2)}
    file = io.BytesIO()
    torch.save(packed(value), file)
    back = unpacked(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    assert back["a"] == [1, 2.5, None, "x", (True,)]
    assert isinstance(back[3], np.ndarray)
    assert back[3].tolist() == [[0, 1], [2, 3]]
    assert torch.equal(back["t"], torch.ones(2))
    assert type(back["n"]) is np.float32


@pytest.mark.parametrize("value", [object(), {(1,): 2}, [np.array(["a"])], {"a": {1}}, print])
def test_anything_else_is_refused(value):
    with pytest.raises(TypeError, match=r"cannot be sent to or from workers\. Use numbers, strings, None, tensors"):
        packed(value)


def test_a_copy_does_not_share_memory():
    tensor, array = torch.zeros(2, requires_grad=True), np.zeros(2)
    copies = packed([tensor, array])
    assert not copies[0].requires_grad
    with torch.no_grad():
        tensor += 1
    array += 1
    assert copies[0].tolist() == unpacked(copies)[1].tolist() == [0.0, 0.0]
    assert packed(np.bool_(True)) != packed(True)
    assert unpacked({"\0array": torch.ones(()), "other": 1})["other"] == 1
