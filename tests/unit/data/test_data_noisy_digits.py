"""Noisy digits: images that follow from seed and number, splits that share no digit, training images that are drawn anew."""

import numpy as np
import pytest
import torch

from tasks.base.errors import UserError
from tasks.data import DataSettings, load_splits, open_source
from tasks.data.drawn.digits import NOISE, Digits, NoisyDigits

DIGITS = 1797


def settings(**options: object) -> DataSettings:
    return DataSettings.model_validate({"kind": "noisy_digits", **options})


@pytest.fixture(scope="module")
def source() -> NoisyDigits:
    return NoisyDigits(settings())


def test_splits_share_no_digit_and_held_out_digits_are_drawn_four_times() -> None:
    source, splits = open_source(settings())
    digits = {name: indices % DIGITS for name, indices in splits.items()}
    assert {name: len(own) for name, own in digits.items()} == {"train": 1197, "test": 1200, "validation": 1200}
    assert sorted(np.concatenate([np.unique(own) for own in digits.values()])) == list(range(DIGITS))
    assert {int(count) for count in np.bincount(digits["test"])} == {0, 4}
    assert all(len(np.unique(source.labels[indices])) == 10 for indices in splits.values())


def test_an_image_follows_from_its_seed_and_number_alone(source: NoisyDigits) -> None:
    indices = np.random.default_rng(0).permutation(4 * DIGITS)[:60]
    together = source.images(indices, None)
    assert together.shape == (60, 3, 32, 32)
    assert together.dtype == torch.float32
    assert together.min() >= 0
    assert together.max() <= 1
    alone = torch.cat([source.images(indices[[place]], None) for place in range(60)])
    assert torch.allclose(alone, together, rtol=0, atol=1e-6)
    other = NoisyDigits(settings(seed=1)).images(indices, None)
    assert (other - together).abs().mean() > 0.05


def test_images_show_the_digit_of_their_label(source: NoisyDigits) -> None:
    """Beneath noise, turns and shifts an image is more like its own digit than like most others."""
    indices = np.arange(DIGITS)[:300]
    plain = Digits(settings(channels=1)).images(indices, None).flatten(1)
    noisy = source.images(indices, None).mean(1).flatten(1)
    likeness = torch.corrcoef(torch.cat([noisy, plain]))[:300, 300:]
    assert (likeness > likeness.diagonal()[:, None]).float().mean(1).median() < 0.05


def test_the_four_images_of_a_digit_differ_by_more_than_noise(source: NoisyDigits) -> None:
    first, second = (source.images(np.arange(100) + turn * DIGITS, None).mean(1) for turn in (0, 1))
    blurred = [torch.nn.functional.avg_pool2d(one, 4) for one in (first, second)]
    assert (blurred[0] - blurred[1]).std() > 2 * NOISE / 4


def test_training_images_are_drawn_anew_in_each_epoch(source: NoisyDigits) -> None:
    indices, rng = np.arange(50), np.random.default_rng(0)
    one, other = (source.images(indices, rng.random((50, 5))) for _ in range(2))
    assert (one - other).abs().mean() > 0.05
    draws = rng.random((50, 5))
    assert torch.equal(source.images(indices, draws), source.images(indices, draws))


def test_fewer_images_than_digits_are_as_many_and_too_few_are_one_line() -> None:
    splits = load_splits(settings(images=300))
    assert sum(map(len, splits.values())) == 300
    with pytest.raises(UserError, match="data 'noisy_digits': 12 images"):
        load_splits(settings(images=12))


def test_grey_images_have_one_channel() -> None:
    assert NoisyDigits(settings(channels=1, resolution=16)).images(np.arange(3), None).shape == (3, 1, 16, 16)
