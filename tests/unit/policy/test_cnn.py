"""Which axes of an image observation are channels."""

import pytest
import torch

from collectx.errors import ConfigError
from collectx.policy.cnn import Image


@pytest.mark.parametrize(
    ("shape", "channels"),
    [
        ((5, 6), 1),
        ((4, 5, 6), 4),
        ((5, 6, 3), 3),
        ((2, 3, 5, 6), 6),
        ((2, 5, 6, 3), 6),
    ],
)
def test_pixels_are_channels_height_and_width(shape, channels):
    pixels = Image(shape, 255.0)
    assert (pixels.num_channels, pixels.height, pixels.width) == (channels, 5, 6)
    image = torch.randint(256, (7, *shape), dtype=torch.uint8)
    seen = pixels([image])
    assert seen.shape == (7, channels, 5, 6)
    # The first channel of the first frame of a stack.
    first = image[0][(0,) * (len(shape) - 3)] if len(shape) > 2 else image[0][None]
    expected = first[..., 0] if shape[-1] == 3 else first[0]
    torch.testing.assert_close(seen[0, 0], expected / 255.0)


def test_another_number_of_axes_is_refused():
    with pytest.raises(ConfigError, match=r"needs images .* have shape \[2, 2, 3, 5, 6\]"):
        Image((2, 2, 3, 5, 6), 1.0)
