"""What follows from a configuration, at the limits of each rule; names that are proposed for wrong ones."""

from dataclasses import replace

import pytest
from configurations import config, counting, gym

from collectx.config.derived import (
    env_option,
    expected_frames,
    resolve_devices,
    surplus_note,
)
from collectx.config.problem import did_you_mean
from collectx.config.schema.launcher import DevicesConfig

MANY = [f"k{number:02d}" for number in range(13)]


@pytest.mark.parametrize(
    ("total", "frames", "text"),
    [
        (100, 50, None),
        (-1, 50, None),
        (0, 50, None),
        (30_000, 1024, None),  # 2.4% more
        (
            101,
            50,
            "total_frames=101 is not a multiple of frames_per_batch=50, so 3 batches (150 frames) are collected.",
        ),
        (
            1,
            50,
            "total_frames=1 is not a multiple of frames_per_batch=50, so 1 batch (50 frames) is collected.",
        ),
    ],
)
def test_frames_beyond_the_last_whole_batch_are_noted(total, frames, text):
    assert surplus_note(total, frames) == text


@pytest.mark.parametrize(
    ("total", "most", "frames"),
    [(120, None, 120), (121, None, 132), (-1, None, -1), (-1, 3, 36), (120, 3, 36), (24, 3, 24)],
)
def test_a_run_collects_whole_batches_up_to_its_limits(total, most, frames):
    cfg = config(total_frames=total)
    assert expected_frames(replace(cfg, run=replace(cfg.run, max_batches=most))) == frames


def test_an_env_is_named_by_the_option_that_chose_it():
    assert env_option(gym()) == "env.id=CartPole-v1"
    assert env_option(gym(entry_point="mine:Env")) == "env.entry_point=mine:Env"
    assert env_option(counting()) == "env=counting"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("- - - -", "- - - -"),
        ("cuda:1 - - -", "cuda:1 cuda:1 cuda:1 cuda:1"),
        ("cuda:1 cpu - cuda:0", "cuda:1 cpu cuda:1 cuda:0"),
        ("- - cuda:0 cuda:0", "- cuda:0 cuda:0 cuda:0"),
        ("- - cuda:0 cpu", "- - cuda:0 cpu"),
        ("- - cuda:0 -", "- - cuda:0 -"),
        ("- - cuda cuda:0", "- cuda:0 cuda:0 cuda:0"),
        ("- - cpu:0 cpu", "- cpu cpu cpu"),
        ("cpu:1 - cpu:0 meta:0", "cpu:1 cpu:1 cpu meta"),
    ],
)
def test_devices_that_are_not_given_follow_from_others(given, expected):
    def devices(text):
        names = ("device", "storing_device", "policy_device", "env_device")
        return DevicesConfig(**{n: None if each == "-" else each for n, each in zip(names, text.split(), strict=True)})

    assert resolve_devices(devices(given)) == devices(expected)


@pytest.mark.parametrize(
    ("name", "names", "more", "nearest", "rest"),
    [
        ("colector", ["collector", "env"], "", "collector", "names: collector, env."),
        ("colector", ["collector"], "", "collector", "collector?"),
        ("xyz", ["collector", "env"], "", None, "names: collector, env."),
        ("xyz", [], "", None, ""),
        # Three letters with which a name begins are near it.
        ("tor", ["env", "torch_num_threads_of_each"], "", "torch_num_threads_of_each", "_of_each."),
        ("to", ["env", "torch_num_threads_of_each"], "", None, "_of_each."),
        # A long list is cut, or left out if there is something else to say; the limit is lower after a nearest name.
        ("xyz", MANY[:12], "Ask.", None, ", k10, k11."),
        ("xyz", MANY, "Ask.", None, ". Ask."),
        ("xyz", MANY, "", None, ", k11 and 1 more."),
        ("kk03", MANY[:6], "Ask.", "k03", ", k04, k05."),
        ("kk03", MANY[:7], "Ask.", "k03", "k03? Ask."),
        ("kk03", MANY, "", "k03", "k03?"),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest(name, names, more, nearest, rest):
    text = did_you_mean(name, names, "a.", more)
    assert (f". Did you mean a.{nearest}?" in text) if nearest else ("Did you mean" not in text)
    assert text.endswith(rest or ".")
