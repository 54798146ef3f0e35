"""What a constructor says of keywords that it does not have."""

import inspect
from dataclasses import make_dataclass

import pytest

import collectx
from collectx.library.configuration import parse
from collectx.library.keywords import BY_CLASS


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


def test_a_keyword_of_other_classes_is_said_to_be_theirs():
    keywords = make_dataclass("Keywords", [("policy", int, 0)])
    by_class = {name: make_dataclass(name, [("policy_lag", int, 0)]) for name in "ABCD"}
    by_class |= {"E": make_dataclass("E", [("policys", int, 0), ("size", int, 0)])}
    with pytest.raises(TypeError) as caught:
        parse("Made", keywords, (), {"policy_lag": 1, "size": 1, "policys": 1, "polic": 1}, by_class)
    assert str(caught.value) == (
        "Made() got unexpected keyword arguments 'policy_lag' (a keyword of A, B, C or others), 'size' (a keyword of "
        "E), 'policys' (did you mean 'policy'?), 'polic' (did you mean 'policy'?); valid keywords: policy"
    )


def test_each_class_has_its_keywords():
    for name, keywords in BY_CLASS.items():
        assert [*inspect.signature(getattr(collectx, name)).parameters] == [*inspect.signature(keywords).parameters]


def test_too_many_positional_arguments_are_told_to_be_keywords():
    with pytest.raises(TypeError) as caught:
        collectx.Collector(len, None, 7)
    assert str(caught.value) == (
        "Collector() takes only create_env_fn and policy by position, but got 3. Pass the others by keyword."
    )
