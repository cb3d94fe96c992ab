"""What images of one resolution become at another, and which box of an image is taken."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tasks.data.images import central_box, random_box, resize

sides = st.integers(1, 300)
shares = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize("size", [(16, 16), (21, 30), (48, 48)])
def test_resized_images_are_those_of_another_library(size: tuple[int, int]) -> None:
    """Pillow's bilinear filter, which reaches farther where images shrink, rounds in between."""
    image = np.random.default_rng(0).integers(0, 256, (32, 40), dtype=np.uint8)
    found = resize(torch.from_numpy(image)[None, None].float(), size)[0, 0].numpy()
    expected = np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR), np.float32)
    assert found.shape == size
    assert np.abs(found - expected).max() <= 1.5


def test_an_image_of_that_size_is_itself() -> None:
    x = torch.rand(2, 3, 24, 32)
    assert resize(x, (24, 32)) is x


@given(sides, sides, st.tuples(shares, shares, shares, shares))
def test_random_boxes_lie_within_the_image(height: int, width: int, draws: tuple[float, ...]) -> None:
    top, left, box_height, box_width = random_box(height, width, np.array(draws))
    assert 0 <= top <= top + box_height <= height
    assert 0 <= left <= left + box_width <= width
    assert box_height >= 1 <= box_width


def test_random_boxes_have_a_quarter_of_the_area_or_more_and_are_about_as_wide_as_high() -> None:
    draws = np.random.default_rng(0).random((2000, 4))
    boxes = np.array([random_box(400, 400, row) for row in draws])
    areas, ratios = boxes[:, 2] * boxes[:, 3] / 400**2, boxes[:, 3] / boxes[:, 2]
    assert 0.24 < areas.min() < 0.27
    assert areas.max() > 0.95
    assert 0.74 < ratios.min() < 0.78
    assert 1.28 < ratios.max() < 1.35
    assert boxes[:, 0].max() > 150 < boxes[:, 1].max()


@given(sides, sides)
def test_the_central_box_is_the_largest_square_in_the_middle(height: int, width: int) -> None:
    top, left, box_height, box_width = central_box(height, width)
    assert box_height == box_width == min(height, width)
    assert abs((height - box_height) - 2 * top) <= 1
    assert abs((width - box_width) - 2 * left) <= 1
