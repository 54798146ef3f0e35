import re

import pytest
import torch
from batch_lines import batch_line, write_lines
from configurations import digest_of
from tensordict import TensorDict

from collectx.cli.reproduce import Verdict, compare
from collectx.run.digest import Digest


def batch(**leaves):
    return TensorDict(
        {"observation": torch.arange(12.0).view(4, 3), "next": {"done": torch.zeros(4, 1, dtype=torch.bool)}} | leaves,
        batch_size=[4],
    )


COLUMNS = torch.arange(12.0).view(4, 3).t().contiguous().t()


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (TensorDict({"next": batch()["next"], "observation": COLUMNS}, batch_size=[4]), True),
        (batch(observation=torch.arange(12.0).view(4, 3) + 1e-6), False),
        (batch(observation=torch.arange(12).view(4, 3)), False),
        (batch(observation=torch.arange(12.0).view(4, 3, 1)), False),
        # Dtypes that numpy lacks, and empty leaves, have digests too.
        (batch(half=torch.ones(4, dtype=torch.bfloat16)), False),
        (batch(none=torch.zeros(4, 0)), False),
        (batch().rename_key_("observation", "observations"), False),
        (batch().view(2, 2), False),
    ],
    ids=["memory and order", "value", "dtype", "shape", "bfloat16", "empty", "name", "batch size"],
)
def test_every_difference_but_that_of_memory_shows(other, is_same):
    assert (digest_of(batch()) == digest_of(other)) is is_same
    assert digest_of(other) == digest_of(other.clone())
    # What is kept of one batch is not used for another structure.
    digest = Digest()
    assert (digest.add(batch()) == digest.add(other)) is is_same
    assert digest.add(batch()) == digest_of(batch())


def test_the_total_knows_the_order():
    totals, first, second = [], batch(), batch(extra=torch.zeros(4))
    for order in ([first, second], [second, first]):
        digest = Digest()
        assert [digest.add(each) for each in order] == [digest_of(each) for each in order]
        totals.append(digest.total)
    assert totals[0] != totals[1]
    assert all(re.fullmatch(r"xxh3-[0-9a-f]{32}", total) for total in totals)


@pytest.mark.parametrize(
    ("old", "new", "verdict", "first"),
    [
        ("ab", "ab", Verdict.IDENTICAL, None),
        ("abc", "axc", Verdict.DIFFERENT, 1),
        ("abc", "ab", Verdict.DIFFERENT, 2),
        ("ab", "abc", Verdict.DIFFERENT, 2),
        ("", "ab", Verdict.NOT_COMPARABLE, None),
        ("", "", Verdict.NOT_COMPARABLE, None),
        # Batches without a digest.
        ("  ", "ab", Verdict.NOT_COMPARABLE, None),
        # Digests of another kind.
        (["xxh3-a"], ["a"], Verdict.NOT_COMPARABLE, None),
    ],
)
def test_compare(tmp_path, old, new, verdict, first):
    for name, digests in {"old": old, "new": new}.items():
        lines = (batch_line(index, digest=text.strip()) for index, text in enumerate(digests))
        (tmp_path / name).mkdir()
        write_lines(tmp_path / name / "metrics.jsonl", lines)
    found = compare(tmp_path / "old", tmp_path / "new")
    assert (found.verdict, found.first_different) == (verdict, first)
    assert found.identical == (verdict is Verdict.IDENTICAL)
    assert first is None or f"batch {first}" in found.message
