import json

import pytest
import torch
from tensordict import TensorDict

from collectx.run import Verdict, compare
from collectx.run.digest import Digest, digest_of


def batch(**leaves):
    return TensorDict(
        {"observation": torch.arange(12.0).view(4, 3), "next": {"done": torch.zeros(4, 1, dtype=torch.bool)}} | leaves,
        batch_size=[4],
    )


def test_equal_batches_have_equal_digests_whatever_their_memory():
    columns = torch.arange(12.0).view(4, 3).t().contiguous().t()
    assert not columns.is_contiguous()
    turned = TensorDict({"next": batch()["next"], "observation": columns}, batch_size=[4])
    assert digest_of(batch()) == digest_of(turned)


@pytest.mark.parametrize(
    "other",
    [
        batch(observation=torch.arange(12.0).view(4, 3) + 1e-6),
        batch(observation=torch.arange(12).view(4, 3)),
        batch(observation=torch.arange(12.0).view(4, 3, 1)),
        batch(extra=torch.zeros(4)),
        batch().rename_key_("observation", "observations"),
        batch().view(2, 2),
    ],
    ids=["value", "dtype", "shape", "key", "name", "batch size"],
)
def test_every_difference_shows(other):
    assert digest_of(batch()) != digest_of(other)


def test_dtypes_that_numpy_lacks_and_empty_leaves():
    one = batch(half=torch.ones(4, dtype=torch.bfloat16), none=torch.zeros(4, 0), image=torch.zeros(4, 2, 2).byte())
    assert digest_of(one) == digest_of(one.clone())


def test_the_total_knows_the_order():
    forth, back = Digest(), Digest()
    first, second = batch(), batch(extra=torch.zeros(4))
    assert [forth.add(first), forth.add(second)] == [back.add(second), back.add(first)][::-1]
    assert forth.total != back.total
    assert len(forth.total) == 32


def write(folder, digests):
    folder.mkdir()
    lines = [json.dumps({"batch": i} | ({"digest": d} if d else {})) + "\n" for i, d in enumerate(digests)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


@pytest.mark.parametrize(
    ("old", "new", "verdict", "first"),
    [
        ("ab", "ab", Verdict.IDENTICAL, None),
        ("abc", "axc", Verdict.DIFFERENT, 1),
        ("abc", "ab", Verdict.DIFFERENT, 2),
        ("ab", "abc", Verdict.DIFFERENT, 2),
        ("", "ab", Verdict.NOT_COMPARABLE, None),
        ("", "", Verdict.NOT_COMPARABLE, None),
        ([None, None], "ab", Verdict.NOT_COMPARABLE, None),
    ],
)
def test_compare(tmp_path, old, new, verdict, first):
    comparison = compare(write(tmp_path / "old", old), write(tmp_path / "new", new))
    assert (comparison.verdict, comparison.first_different) == (verdict, first)
    assert comparison.identical == (verdict is Verdict.IDENTICAL)
    if first is not None:
        assert f"batch {first}" in comparison.message
