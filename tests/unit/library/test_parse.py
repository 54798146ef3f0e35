"""What a constructor says of keywords that it does not have."""

from dataclasses import make_dataclass

import pytest

from collectx.library.parse import parse


@pytest.mark.parametrize(("count", "told"), [(12, "valid keywords: one1, one2, "), (13, "to list all: help(Made)")])
def test_up_to_twelve_keywords_are_listed(count, told):
    keywords = make_dataclass("Keywords", [(f"one{number}", int, 0) for number in range(1, count + 1)])
    with pytest.raises(TypeError) as caught:
        parse("Made", keywords, (), {"size": 1})
    assert str(caught.value).startswith(f"Made() got an unexpected keyword argument 'size'; {told}")


def test_an_unknown_keyword_does_not_hide_what_is_wrong_with_others():
    keywords = make_dataclass("Keywords", [("size", int), ("speed", float, 1.0)])
    with pytest.raises(TypeError) as caught:
        parse("Made", keywords, (), {"sizes": 3, "speed": "fast"})
    first, second = str(caught.value).splitlines()
    assert (
        first == "Made() got an unexpected keyword argument 'sizes' (did you mean 'size'?); valid keywords: size, speed"
    )
    assert second == "speed='fast' must be a number."
    with pytest.raises(TypeError, match=r"missing a required argument: 'size'"):
        parse("Made", keywords, (), {"speed": 2.0})
