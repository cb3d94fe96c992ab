"""Corruptions and streams: reproducible image by image, as strong as their severity, in the order that their plan tells."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from tasks.data import DataSettings, load
from tasks.data.drift import (
    CORRUPTIONS,
    CorruptionName,
    LabelledImages,
    box_resized,
    compressed,
    correlated_order,
    corrupt,
    defocused,
    gaussian_blurred,
    plan_stream,
    plasma,
    stream,
)
from tasks.data.settings import DriftSettings, StreamKind

NAMES = list(CORRUPTIONS)


def pictures(count: int = 6, channels: int = 3) -> torch.Tensor:
    """Smooth images (B, C, 32, 32) in [0, 1], each channel another one."""
    coarse = torch.rand(count, channels, 5, 5, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.interpolate(coarse, (32, 32), mode="bilinear")


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_an_image_is_corrupted_alike_in_every_batch(name: CorruptionName, channels: int) -> None:
    x = pictures(channels=channels)
    together = corrupt(x, name, 4, seed=3, places=range(10, 16))
    alone = torch.cat([corrupt(x[i : i + 1], name, 4, seed=3, places=[10 + i]) for i in range(len(x))])
    assert together.shape == x.shape
    assert torch.allclose(together, alone, atol=1e-6)
    assert together.min() >= 0
    assert together.max() <= 1
    assert not torch.allclose(together, x, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_images_change_more_with_severity(name: CorruptionName) -> None:
    x = pictures(16)
    mild, middle, strong = ((corrupt(x, name, s, seed=0, places=range(16)) - x).square().mean() for s in (1, 3, 5))
    assert 0 < min(mild, middle) <= max(mild, middle) < strong
    assert corrupt(x, name, 0, seed=0, places=range(16)) is x


@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "impulse_noise", "fog"])
def test_other_places_and_seeds_get_other_noise(name: CorruptionName) -> None:
    x = pictures(1)
    first, place, seed = (corrupt(x, name, 5, seed=s, places=[p]) for s, p in ((0, 0), (0, 1), (1, 0)))
    assert not torch.equal(first, place)
    assert not torch.equal(first, seed)


def test_noise_has_the_strength_of_its_level() -> None:
    x = torch.full((20, 3, 32, 32), 0.5)
    places = range(20)
    assert (corrupt(x, "gaussian_noise", 5, seed=0, places=places) - x).std().item() == pytest.approx(0.10, rel=0.02)
    shot = corrupt(x, "shot_noise", 5, seed=0, places=places)
    assert shot.mean().item() == pytest.approx(0.5, rel=0.01)
    assert shot.std().item() == pytest.approx((0.5 / 50) ** 0.5, rel=0.02)
    impulses = corrupt(x, "impulse_noise", 5, seed=0, places=places)
    assert (impulses == 0).float().mean().item() == pytest.approx(0.035, rel=0.1)
    assert (impulses == 1).float().mean().item() == pytest.approx(0.035, rel=0.1)


def test_a_gaussian_blur_is_that_of_another_library() -> None:
    x = pictures(2)
    expected = ndimage.gaussian_filter(x.double().numpy(), (0, 0, 0.8, 0.8), mode="nearest")
    np.testing.assert_allclose(gaussian_blurred(x, 0.8).numpy(), expected, atol=1e-5)


def test_a_defocus_spreads_a_dot_over_its_disc() -> None:
    x = torch.zeros(1, 1, 32, 32)
    x[..., 16, 16] = 1
    spread = defocused(x, 1.5, 0.1)[0, 0]
    assert spread[15:18, 15:18].flatten().tolist() == pytest.approx([1 / 9] * 9, abs=1e-6)
    assert spread.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("side", [20, 24, 30, 48])
def test_boxes_are_those_of_pillow(side: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)
    found = box_resized(torch.from_numpy(pixels)[None, None].float(), (side, side))[0, 0].numpy()
    expected = np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BOX), np.float32)
    assert np.abs(found - expected).max() <= 1.0  # Pillow rounds after each axis


def test_jpeg_is_what_a_file_of_that_quality_has() -> None:
    x = pictures(1)
    pixels = (x[0].movedim(0, -1) * 255).round().to(torch.uint8).numpy()
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=40)
    read = np.asarray(Image.open(content), np.float32) / 255
    np.testing.assert_allclose(compressed(x, 40)[0].movedim(0, -1).numpy(), read, atol=1e-6)


def test_plasma_is_the_mean_of_its_neighbours_and_noise_that_falls_by_the_square_of_the_decay() -> None:
    """By hand on 4 × 4 pixels, with noise +1 in the first step and so +1/4 in the second one; divided by the largest, 1.5."""
    height = plasma(lambda side: torch.ones(1, side, side), 4, 2.0)[0] * 1.5
    first = {(0, 0): 0.0, (2, 2): 1.0, (0, 2): 1.5, (2, 0): 1.5}
    second = {(1, 1): 1.25, (3, 1): 1.25, (0, 1): 3.5 / 4 + 0.375, (2, 1): 4.5 / 4 + 0.375, (1, 0): 3.5 / 4 + 0.375}
    for (row, column), expected in (first | second).items():
        assert height[row, column].item() == pytest.approx(expected)


def test_brightness_keeps_hue_and_contrast_keeps_means() -> None:
    x = pictures() * 0.5
    brighter = corrupt(x, "brightness", 5, seed=0, places=range(6))
    assert torch.allclose(brighter.amax(1), x.amax(1) + 0.3, atol=1e-6)
    assert torch.allclose(brighter / brighter.amax(1, keepdim=True), x / x.amax(1, keepdim=True), atol=1e-5)
    flatter = corrupt(x, "contrast", 5, seed=0, places=range(6))
    assert torch.allclose(flatter.mean((2, 3)), x.mean((2, 3)), atol=1e-6)
    assert torch.allclose(flatter.std((2, 3)), 0.15 * x.std((2, 3)), atol=1e-6)


def settings(kind: StreamKind, **options: object) -> DriftSettings:
    return DriftSettings.model_validate({"stream": kind, "images": 60, "phases": 3, "batch_size": 16, **options})


LABELS = np.arange(100, dtype=np.int64) % 5


def test_continual_streams_have_one_corruption_after_another() -> None:
    plan = plan_stream(settings("continual", severity=3), LABELS)
    assert plan.corruption.tolist() == [number for number in range(len(NAMES)) for _ in range(60)]
    assert set(plan.severity) == {3}
    assert len(set(plan.image[:60])) == 60


def test_mixed_streams_have_the_same_images_in_another_order() -> None:
    mixed, continual = (plan_stream(settings(kind), LABELS) for kind in ("mixed", "continual"))
    assert np.bincount(mixed.corruption).tolist() == np.bincount(continual.corruption).tolist()
    assert len(set(mixed.corruption[:40])) > 5


def test_gradual_streams_get_stronger_and_weaker_again() -> None:
    plan = plan_stream(settings("gradual", images=90, corruptions=("fog", "jpeg")), LABELS)
    found = [plan.severity[place] for place in range(5, 90, 10)]
    assert found == [1, 2, 3, 4, 5, 4, 3, 2, 1]
    assert plan.severity[:90].tolist() == plan.severity[90:].tolist()


def test_returning_streams_are_clean_after_each_corruption() -> None:
    plan = plan_stream(settings("returning", corruptions=("fog", "jpeg")), LABELS)
    assert plan.severity.reshape(4, 60).tolist() == [[5] * 60, [0] * 60, [5] * 60, [0] * 60]


def test_labels_of_correlated_streams_come_in_runs_and_all_images_are_there() -> None:
    order = correlated_order(LABELS, 0.1, np.random.default_rng(0))
    assert sorted(order) == list(range(100))
    same = np.mean(LABELS[order][1:] == LABELS[order][:-1])
    assert same > 0.75  # of shuffled ones a fifth


def test_class_shares_differ_from_phase_to_phase() -> None:
    plan = plan_stream(settings("shares", images=500), LABELS)
    shares = np.stack([np.bincount(LABELS[part], minlength=5) / 500 for part in plan.image.reshape(3, 500)])
    assert set(plan.severity) == {0}
    assert shares.max(1).min() > 0.4
    assert np.abs(shares[0] - shares[1]).sum() > 0.5


@pytest.fixture(scope="module")
def images() -> LabelledImages:
    data = DataSettings.model_validate({"kind": "noisy_digits", "images": 1797, "resolution": 32, "workers": 1})
    return LabelledImages.of(load(data, "test"), 80)


@pytest.mark.parametrize("kind", ["clean", "continual", "mixed", "gradual", "correlated", "returning", "shares"])
def test_a_stream_is_the_same_in_batches_of_any_size(kind: StreamKind, images: LabelledImages) -> None:
    options = {"corruptions": ("gaussian_noise", "fog"), "images": 20, "phases": 2, "seed": 4}
    whole, single = (list(stream(settings(kind, batch_size=size, **options), images)) for size in (64, 1))
    assert all(len(batch.y_B) == 1 for batch in single)
    assert torch.equal(torch.cat([b.y_B for b in whole]), torch.cat([b.y_B for b in single]))
    together, alone = (torch.cat([b.x_BCHW for b in batches]) for batches in (whole, single))
    assert torch.allclose(together, alone, atol=1e-5)
    again = torch.cat([b.x_BCHW for b in stream(settings(kind, batch_size=64, **options), images)])
    assert torch.equal(again, together)


def test_clean_images_of_a_stream_are_those_of_the_data_set(images: LabelledImages) -> None:
    data = DataSettings.model_validate({"kind": "noisy_digits", "images": 1797, "resolution": 32, "workers": 1})
    x_BCHW, y_B = next(iter(load(data, "test").batches(80)))
    assert images.label_M.tolist() == y_B.tolist()
    assert torch.allclose(images.normalised(images.x_MCHW), x_BCHW, atol=1e-5)
