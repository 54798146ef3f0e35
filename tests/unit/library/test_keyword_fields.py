"""Keywords: their defaults, limits, texts and names in messages."""

import sys
from dataclasses import dataclass, fields

import pytest

from collectx.library.keyword_fields import documented, fixed, ignored, names_of, only, option
from collectx.library.keywords import AsyncBatchedKeywords, MultiKeywords, RayKeywords


@documented
@dataclass
class _Some:
    """Some keywords.

    Args:
        env: what is told here.
    """

    env: int
    num_slots: int = option("collector.num_slots", note="Mostly 2.")
    refresh: bool = option("collector.refresh", False, {False: "batch", True: "step"}, note="")
    silent: int = option("collector.num_workers", 3)
    given: int | None = option("collector.frames_per_batch", None, note="", minimum=7)
    same: bool = fixed(False, "set it to `null`", "x")
    unused: int = ignored(4, ": it has no use")


def test_texts_of_keywords_are_added_to_the_docstring():
    lines = _Some.__doc__.splitlines()
    assert lines[:4] == ["Some keywords.", "", "    Args:", "        env: what is told here."]
    own = {
        line.strip().partition(":")[0]: line.strip()
        for line in lines[4:]
        if line.startswith(" " * 8 + line.strip()[:1])
    }
    assert list(own) == ["num_slots", "refresh", "given", "same", "unused"]
    assert own["unused"] == "unused: ignored (accepted for TorchRL compatibility): it has no use."
    assert own["same"] == "same: must be False or 'x'; set it to None."
    assert "Mostly 2." in " ".join(lines)
    assert all(own[name].partition(": ")[2][0].islower() for name in ("num_slots", "refresh", "given"))
    assert max(map(len, lines)) <= 120
    assert lines[-1] == "    "


def test_defaults_and_limits_are_those_of_the_option_unless_given():
    of = {field.name: field for field in fields(_Some)}
    assert (of["num_slots"].default, of["num_slots"].metadata["convert"]) == (2, None)
    assert (of["silent"].default, of["silent"].metadata["minimum"]) == (3, 1)
    assert (of["given"].default, of["given"].metadata["minimum"]) == (None, 7)
    assert [of["given"].metadata["convert"](value) for value in (None, 0, 5)] == [512, 0, 5]
    assert of["refresh"].metadata["convert"] == {False: "batch", True: "step"}
    with pytest.raises(ValueError, match=r"set it to null\.$"):
        of["same"].metadata["convert"](True)


def test_a_fixed_keyword_takes_equal_values_of_the_same_type_alone():
    convert = only("use 1.5", 1.5, None, 1)
    for value in (1.5, float("1.5"), None, 1):
        assert convert(value) is value
    for value in (1.0, True, "1.5", 0, False):
        with pytest.raises(ValueError, match=r"Use 1\.5\.$"):
            convert(value)
    assert convert(equal := sys.maxsize - sys.maxsize + 1) is equal


@pytest.mark.parametrize(
    ("keywords", "word", "name"),
    [
        (_Some, "collector.num_slots", "num_slots"),
        (_Some, "collector.num_slots=3", "num_slots=3"),
        (_Some, "collector.refresh=step", "refresh=True"),
        (_Some, "collector.refresh=batch or step", "refresh=False or True"),
        (_Some, "env.env", "env"),
        (_Some, "collector=single", "Collector"),
        (_Some, "collector=multi_sync or rpc", "MultiSyncCollector or RPCCollector"),
        (_Some, "inference=server", "AsyncBatchedCollector"),
        (_Some, "launcher.sbatch.gres", "slurm_kwargs.gres"),
        (MultiKeywords, "env.num_envs", "num_envs"),
        (MultiKeywords, "collector.frames_per_batch=512", "frames_per_batch=512"),
        (AsyncBatchedKeywords, "collector.worker_timeout_s=3", "worker_timeout_s=3"),
        (RayKeywords, "launcher.ray_init_config", "ray_init_config"),
    ],
)
def test_messages_name_keywords(keywords, word, name):
    assert names_of(keywords).name(word) == name
