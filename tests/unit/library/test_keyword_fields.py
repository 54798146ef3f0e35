"""Keywords: their defaults, limits, texts and names in messages."""

import inspect
import sys
from dataclasses import dataclass, fields

import pytest

from collectx.config.problem import naming, opt
from collectx.library.configuration import takes_keywords
from collectx.library.keyword_fields import documented, fixed, ignored, names_of, only, sets
from collectx.library.keywords import AsyncBatchedKeywords, MultiKeywords, RayKeywords


@documented
@dataclass
class _Some:
    """Some keywords.

    Args:
        env: what is told here.
    """

    env: int
    num_slots: int = sets("collector.num_slots", note="Mostly 2.")
    refresh: bool = sets("collector.refresh", False, {False: "batch", True: "step"}, note="")
    silent: int = sets("collector.num_workers", 3)
    given: int | None = sets("collector.frames_per_batch", None, note="", minimum=7)
    same: bool = fixed(False, "set it to `null`", "x")
    unused: int = ignored(4, ": it has no use")


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
        with pytest.raises(ValueError, match=r": use 1\.5\.$"):
            convert(value)
    assert convert(equal := sys.maxsize - sys.maxsize + 1) is equal


@pytest.mark.parametrize(
    ("keywords", "word", "name"),
    [
        (_Some, "collector.num_slots", "num_slots"),
        (_Some, "collector.num_slots=3", "num_slots=3"),
        (_Some, "collector.refresh=step", "refresh=True"),
        (_Some, "env.env", "env"),
        (_Some, "collector=single", "Collector"),
        (_Some, "collector=multi_sync", "MultiSyncCollector"),
        (_Some, "collector=rpc", "RPCCollector"),
        (_Some, "inference=server", "AsyncBatchedCollector"),
        (_Some, "launcher.sbatch.gres", "slurm_kwargs.gres"),
        (MultiKeywords, "env.num_envs", "num_envs"),
        (MultiKeywords, "collector.frames_per_batch=512", "frames_per_batch=512"),
        (AsyncBatchedKeywords, "collector.worker_timeout_s=3", "worker_timeout_s=3"),
        (RayKeywords, "launcher.ray_init_config", "ray_init_config"),
    ],
)
def test_messages_name_keywords(keywords, word, name):
    with naming(names_of(keywords)):
        assert opt(word) == name


@documented
@dataclass
class _More(_Some):
    """Keywords of a subclass."""

    finite: bool = sets("collector.check_finite", note="A note.")


def test_whole_docstrings(expected):
    """The docstrings are those of the dataclasses, and of methods that take their fields."""

    class Made:
        @takes_keywords(_More)
        def call(self, *arguments, **keywords):
            """Makes something.

            Raises:
                ValueError: always.
            """

        @takes_keywords(_Some)
        def bare(self, *arguments, **keywords):
            pass

    names = [str([*inspect.signature(each).parameters]) for each in (Made.call, Made.bare)]
    parts = (_Some.__doc__, _More.__doc__, Made.call.__doc__, Made.bare.__doc__, *names)
    expected("docstrings", "\n=====\n".join(parts))
