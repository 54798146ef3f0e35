"""Overrides of any text are a configuration or problems that name the key, and nothing in them is executed."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collectx.cli.compose import Composer

KEYS = [
    *("seed", "env.num_envs", "env.kwargs", "env.id", "env.wrappers", "env.kind", "policy.hidden_sizes"),
    *("policy.target", "policy.kwargs.a", "collector.total_frames", "collector.kind", "collector.order_of"),
    *("collector.on_worker_failure", "collector.preemptive_threshold", "launcher.num_threads", "devices.device"),
    *("backend.port", "trainer.gamma", "trainer.digest", "checkpoint.every_min", "checkpoint.keep", "run.max_batches"),
]
PIECES = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "${",
    "null",
    "true",
    "1e9",
    "-1",
    "nan",
    "inf",
    "!!",
    "a",
    "'",
    '"',
    "0x",
    "\\",
]
VALUES = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=9).map("".join),
    st.text(max_size=20),
    st.one_of(st.integers(), st.floats(), st.booleans(), st.none()).map(str),
    st.recursive(
        st.integers() | st.text("ab", max_size=2),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("ab", min_size=1, max_size=2), inner),
        max_leaves=6,
    ).map(lambda value: str(value).replace("'", "")),
).map(lambda text: "".join(text.split()))


@pytest.mark.ci
@pytest.mark.parametrize("cases", [20, pytest.param(10_000, marks=[pytest.mark.nightly, pytest.mark.timeout(7200)])])
def test_any_override_is_a_configuration_or_problems(cases, tmp_path):
    composer, path = Composer(), tmp_path / "executed"
    words = ["env=gym", "env.id=CartPole-v1", "policy=custom", "policy.target=nowhere.at:all"]
    code = f"__import__('pathlib').Path('{path}').touch()"

    @given(st.sampled_from(KEYS), VALUES)
    @example("env.kwargs", f"{{_target_:os.system,command:'touch {path}'}}".replace(" ", "\t"))
    @example("env.id", f"${{eval:{code}}}")
    @example("env.kwargs", f"!!python/object/apply:pathlib.Path.touch[{path}]")
    @example("policy.target", f"collectx:{code}")
    @settings(max_examples=cases)
    def check(key, value):
        checked = composer.check([*words, f"{key}={value}"])
        problems = checked.problems or composer.examine(checked.overrides, checked.broken).problems
        for problem in problems:
            assert 0 < len(problem) < 2000

    check()
    assert not path.exists()
