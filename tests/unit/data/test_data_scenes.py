"""Scenes of glyphs: masks that fit their images, from seed and index alone."""

import numpy as np
import pytest
import torch

from tasks.base.errors import UserError
from tasks.data import Dataset, DataSettings, EpochPart, Split, load_splits
from tasks.data.drawn.glyphs import BACKGROUND, OBJECTS, GlyphScenes
from tasks.data.problems.segmentation import IGNORED

SETTINGS = DataSettings(kind="glyph_scenes", classes=5, images=240, resolution=48)


@pytest.fixture(scope="module")
def source() -> GlyphScenes:
    return GlyphScenes(SETTINGS)


@pytest.fixture(scope="module")
def splits() -> dict[Split, Dataset]:
    return load_splits(SETTINGS)


def test_a_scene_follows_from_its_seed_and_index_alone(source: GlyphScenes) -> None:
    indices = np.random.default_rng(0).permutation(240)[:70]
    x_BCHW, y_BHW = source.masked(indices)
    assert x_BCHW.shape == (70, 3, 48, 48)
    assert y_BHW.shape == (70, 48, 48)
    alone_CHW, alone_HW = source.masked(indices[[40]])
    assert torch.allclose(alone_CHW[0], x_BCHW[40], rtol=0, atol=1e-6)
    assert torch.equal(alone_HW[0], y_BHW[40])
    assert torch.equal(source.images(indices, None), x_BCHW)
    other = GlyphScenes(SETTINGS.model_copy(update={"seed": 1})).masked(indices)
    assert (other[0] - x_BCHW).abs().mean() > 0.1


def test_pixels_of_a_class_differ_from_those_around_them(source: GlyphScenes) -> None:
    """A mask is where its character is: inside, the brightness is another than outside, in nearly all scenes."""
    x_BCHW, y_BHW = source.masked(np.arange(1, 240, 6))  # all have a character of class 1 first
    grey_BHW, is_ink_BHW = x_BCHW.mean(1), y_BHW > 0
    inside = torch.stack([grey[ink].mean() for grey, ink in zip(grey_BHW, is_ink_BHW, strict=True)])
    outside = torch.stack([grey[~ink].mean() for grey, ink in zip(grey_BHW, is_ink_BHW, strict=True)])
    assert ((inside - outside).abs() > 0.2).float().mean() > 0.9
    shares = is_ink_BHW.float().mean((1, 2))
    assert 0.02 < shares.mean() < 0.4


def test_every_class_occurs_and_no_scene_has_more_than_its_objects(source: GlyphScenes) -> None:
    _, y_BHW = source.masked(np.arange(240))
    assert source.class_names[0] == BACKGROUND
    assert len(source.class_names) == 6
    per_scene = [set(y_HW.unique().tolist()) for y_HW in y_BHW]
    assert set.union(*per_scene) == set(range(6))
    assert max(len(classes - {0}) for classes in per_scene) == OBJECTS
    seen = [int(label) in classes for label, classes in zip(source.labels, per_scene, strict=True)]
    assert np.mean(seen) > 0.95  # the first character is seldom covered by the others


def test_more_characters_than_there_are_are_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"data\.classes: there are 33 characters in scenes, not 40; ask for fewer"):
        load_splits(SETTINGS.model_copy(update={"classes": 40}))


def test_batches_have_images_with_masks_at_the_base_resolution(splits: dict[Split, Dataset]) -> None:
    train = splits["train"]
    assert train.problem.name == "segmentation"
    x_BCHW, y_BHW = next(train.batches(16, resolution=32))
    assert x_BCHW.shape == (16, 3, 32, 32)
    assert y_BHW.shape == (16, 48, 48)
    assert y_BHW.dtype == torch.int64


def test_augmentation_moves_images_and_masks_alike_whatever_the_ranks(splits: dict[Split, Dataset]) -> None:
    train = splits["train"]
    (x_BCHW, y_BHW), plain = next(train.batches(32, seed=3)), next(train.batches(32, seed=3, augment=False))
    assert (y_BHW == IGNORED).any()
    assert not torch.equal(y_BHW, plain[1])
    grey_BHW = x_BCHW.mean(1)
    inside = torch.stack([grey[y > 0].mean() for grey, y in zip(grey_BHW, y_BHW, strict=True) if (y > 0).any()])
    outside = torch.stack([grey[y == 0].mean() for grey, y in zip(grey_BHW, y_BHW, strict=True) if (y > 0).any()])
    assert ((inside - outside).abs() > 0.4).float().mean() > 0.8
    ranks = [next(train.batches(32, seed=3, part=EpochPart(rank=rank, world=2))) for rank in range(2)]
    assert torch.allclose(torch.cat([x for x, _ in ranks]), x_BCHW, rtol=0, atol=1e-5)
    assert torch.equal(torch.cat([y for _, y in ranks]), y_BHW)


def test_boxes_are_around_what_is_seen_of_characters_and_pixels_are_those_of_masks(source: GlyphScenes) -> None:
    indices = np.arange(60)
    x_BCHW, y_BHW = source.masked(indices)
    boxed_BCHW, target_BM5 = source.boxed(indices, None)
    assert torch.equal(boxed_BCHW, x_BCHW)
    assert target_BM5.shape == (60, OBJECTS, 5)
    for y_HW, rows_M5 in zip(y_BHW, target_BM5, strict=True):
        classes = rows_M5[rows_M5[:, 0] > 0, 0].long()
        assert set(classes.tolist()) <= set(y_HW.unique().tolist())
        if len(classes) == 1:
            _, x0, y0, x1, y1 = rows_M5[0].tolist()
            rows, columns = (y_HW == classes[0]).nonzero(as_tuple=True)
            edges = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert [x0 * 48, y0 * 48, x1 * 48, y1 * 48] == pytest.approx([int(edge) for edge in edges])
    assert (target_BM5[..., 0] < 0).any(), "some scenes have fewer characters"
    assert len(target_BM5[target_BM5[..., 0] > 0]) > 60


def test_augmented_boxes_follow_their_characters(source: GlyphScenes) -> None:
    indices = np.arange(1, 121, 6)  # all have a character of class 1 first
    draws = np.random.default_rng(0).random((len(indices), 5)).astype(np.float32)
    moved_BCHW, target_BM5 = source.boxed(indices, draws)
    plain_BCHW, plain_BM5 = source.boxed(indices, None)
    assert not torch.equal(moved_BCHW, plain_BCHW)
    same = [
        (own[0], other[0]) for own, other in zip(target_BM5, plain_BM5, strict=True) if own[0, 0] == other[0, 0] == 1
    ]
    assert len(same) > 12
    distances = [float((own[1:] - other[1:]).abs().max()) for own, other in same]
    assert np.mean(distances) > 0.02
    assert max(distances) < 0.3
