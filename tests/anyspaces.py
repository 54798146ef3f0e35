"""A Hypothesis strategy for spaces: of each kind and dtype, nested or not."""

from __future__ import annotations

from collections.abc import Sequence

from gymnasium import spaces
from hypothesis import strategies as st


def any_space(dtypes: Sequence[type], most: int, max_leaves: int) -> st.SearchStrategy[spaces.Space]:
    """Box of these dtypes and up to `most` dimensions, Discrete, MultiDiscrete and MultiBinary; Dict and Tuple of up to
    `most` of these."""
    leaves = st.one_of(
        st.builds(
            lambda shape, dtype: spaces.Box(0, 100, tuple(shape), dtype),
            st.lists(st.integers(1, 3), max_size=most),
            st.sampled_from(dtypes),
        ),
        st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
        st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=3)),
        st.builds(spaces.MultiBinary, st.integers(1, 4)),
    )
    return st.recursive(
        leaves,
        lambda parts: st.one_of(
            st.dictionaries(st.sampled_from("abc"), parts, min_size=1, max_size=most).map(spaces.Dict),
            st.lists(parts, min_size=1, max_size=most).map(spaces.Tuple),
        ),
        max_leaves=max_leaves,
    )
