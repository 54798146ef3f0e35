"""Declared forms of entries of `info`."""

import pytest
from omegaconf import OmegaConf

from collectx.env.infos import shown


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("float32", "float32"),
        ([3, "int64"], "[3, int64]"),
        ({"at": {"x": "float32", "y": [2]}}, "{at: {x: float32, y: [2]}}"),
    ],
)
def test_a_form_is_shown_as_what_a_user_types(form, text):
    assert shown(form) == text
    assert OmegaConf.to_container(OmegaConf.create(f"form: {text}"))["form"] == form
