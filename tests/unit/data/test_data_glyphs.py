"""Glyphs: classes that can be told apart, images that follow from seed and index alone, splits that share none."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from tasks.base.errors import UserError
from tasks.data import Dataset, DataSettings, EpochPart, Split, load_splits
from tasks.data.drawn.characters import distinct_characters, masks
from tasks.data.drawn.glyphs import Glyphs
from tasks.data.drawn.variation import uniforms


def settings(**options: object) -> DataSettings:
    given = {"kind": "glyphs", "images": 4000, "resolution": 64, "mean": (0.0,), "deviation": (1.0,)}
    return DataSettings.model_validate({**given, **options})


@pytest.fixture(scope="module")
def source() -> Glyphs:
    return Glyphs(settings())


@pytest.fixture(scope="module")
def splits() -> dict[Split, Dataset]:
    return dict(load_splits(settings()))


@pytest.mark.long
def test_there_are_many_classes_and_no_two_are_drawn_alike() -> None:
    characters = distinct_characters()
    assert len(characters) == len(set(characters)) >= 200
    inks = torch.from_numpy(masks(characters, 24)).flatten(2).float().div(255)
    for ink_KP in inks:
        assert ink_KP.sum(1).min() > 10
        unlike_KK = torch.cdist(ink_KP, ink_KP, p=1) / torch.maximum(ink_KP.sum(1)[:, None], ink_KP.sum(1)[None])
        assert unlike_KK.fill_diagonal_(1).min() > 0.03


def test_there_can_be_fewer_classes_but_not_more() -> None:
    few = Glyphs(settings(classes=12))
    assert few.class_names == tuple(distinct_characters()[:12])
    assert set(few.labels[:24]) == set(range(12))
    with pytest.raises(UserError, match=r"^data\.classes: there are \d+ characters, not 5000"):
        Glyphs(settings(classes=5000))


@pytest.mark.parametrize("alike", ["AΑА", "oOοΟоО", "Il|", ".·", "xX", "-–−", "mт", "BΒВ", "cC"])
def test_only_one_of_characters_that_look_alike_is_a_class(alike: str) -> None:
    assert len(set(alike) & set(distinct_characters())) <= 1


@pytest.mark.parametrize("scripts", ["AgQ", "ΔΩψ", "ЖЯБ", "259", "?&%", "∞∫≤"])
def test_all_kinds_of_characters_are_there(scripts: str) -> None:
    assert set(scripts) <= set(distinct_characters())


def test_images_show_the_character_of_their_label(source: Glyphs) -> None:
    """Its mean over the fonts is more like the image than that of most others (by chance: of half of them)."""
    indices = np.arange(400)
    x_BCHW = source.images(indices, None)
    templates_KHW = torch.from_numpy(masks("".join(source.class_names), 48)).float().mean(0)
    templates_KP = functional.pad(templates_KHW, (8, 8, 8, 8)).flatten(1)
    x_BP = x_BCHW.mean(1).flatten(1)
    likeness_BK = torch.corrcoef(torch.cat([x_BP, templates_KP]))[: len(x_BP), len(x_BP) :].abs()
    own_B1 = likeness_BK[indices, source.labels[indices]][:, None]
    place = (likeness_BK > own_B1).float().mean(1)
    assert place.median() < 0.3


@pytest.mark.long
def test_an_image_follows_from_its_seed_and_index_alone(source: Glyphs) -> None:
    indices = np.random.default_rng(0).permutation(4000)[:200]
    together = source.images(indices, None)
    assert together.shape == (200, 3, 64, 64)
    assert together.dtype == torch.float32
    assert together.min() >= 0
    assert together.max() <= 1
    alone = torch.cat([source.images(indices[[place]], None) for place in range(20)])
    assert torch.allclose(alone, together[:20], rtol=0, atol=1e-6)
    again = Glyphs(settings(workers=1, images=5000)).images(indices[::-1].copy(), None).flip(0)
    assert torch.allclose(again, together, rtol=0, atol=1e-6)
    other = Glyphs(settings(seed=1)).images(indices, None)
    assert (other - together).abs().mean() > 0.1


def test_images_differ_much_within_a_class_and_in_all_ways(source: Glyphs) -> None:
    same_class = np.arange(0, 4000, len(source.class_names))
    x_BCHW = source.images(same_class, None)
    x_BP = x_BCHW.flatten(1)
    distances = torch.cdist(x_BP, x_BP, p=1).div(x_BP.shape[1]).fill_diagonal_(1)
    assert distances.min() > 0.02
    assert x_BP.mean(1).std() > 0.1
    assert (x_BCHW[:, 0] - x_BCHW[:, 1]).abs().mean() > 0.02


def test_splits_share_no_image_and_have_every_class(splits: dict[Split, Dataset]) -> None:
    sizes = {name: len(split) for name, split in splits.items()}
    assert sum(sizes.values()) == 4000
    assert sizes["validation"] == sizes["test"] == 667
    seen: set[bytes] = set()
    for split in splits.values():
        pixels, labels = zip(*split.batches(500, resolution=16), strict=True)
        seen |= {row.tobytes() for row in torch.cat(pixels).numpy()}
        assert len(torch.cat(labels).unique()) == split.classes
    assert len(seen) == 4000


@pytest.mark.few("1")
@pytest.mark.parametrize("channels", [1, 3])
def test_any_size_and_grey(channels: int) -> None:
    drawn = Glyphs(settings(channels=channels, resolution=96, images=10_000_000))
    x_BCHW = drawn.images(np.array([0, 9_999_999]), None)
    assert x_BCHW.shape == (2, channels, 96, 96)


def test_augmentation_moves_the_character_a_little_and_keeps_its_surroundings(source: Glyphs) -> None:
    indices = np.arange(100)
    plain = source.images(indices, None)
    draws = np.random.default_rng(0).random((100, 5), dtype=np.float32)
    moved = source.images(indices, draws)
    assert torch.equal(moved, source.images(indices, draws))
    assert not torch.equal(moved, plain)
    assert (moved - plain).abs().mean() < 0.5 * (moved - plain.roll(1, 0)).abs().mean()


@pytest.mark.long
def test_ranks_together_give_the_global_batches_of_one_rank(splits: dict[Split, Dataset]) -> None:
    train = splits["train"]
    for alone, *ranks in zip(
        train.batches(600, seed=1, epoch=4),
        *(train.batches(600, seed=1, epoch=4, part=EpochPart(rank=rank, world=2)) for rank in range(2)),
        strict=True,
    ):
        assert torch.allclose(alone[0], torch.cat([x for x, _ in ranks]), rtol=0, atol=1e-6)
        assert torch.equal(alone[1], torch.cat([y for _, y in ranks]))


def test_too_few_images_for_the_classes_are_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"data 'glyphs': 300 images .*too few to hold out 17% for test"):
        load_splits(settings(images=300))


def test_random_numbers_of_neighbours_are_even_and_unrelated() -> None:
    numbers_DB = uniforms(7, np.arange(20_000), 4)
    assert numbers_DB.min() >= 0
    assert numbers_DB.max() < 1
    shares = np.histogram(numbers_DB, bins=16, range=(0, 1))[0] / numbers_DB.size
    assert np.abs(shares - 1 / 16).max() < 0.003
    rows = [*numbers_DB, [*numbers_DB[0, 1:].tolist(), 0.5], uniforms(8, np.arange(20_000), 1)[0]]
    related = np.corrcoef(np.stack([np.asarray(row) for row in rows])) - np.eye(len(rows))
    assert np.abs(related).max() < 0.03
