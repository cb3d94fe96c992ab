"""Image folders: with split folders, split by us, and broken in the ways folders are."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from tasks.base.errors import UserError
from tasks.data import DataSettings, EpochPart, load_splits
from tasks.data.dataset import describe
from tasks.export.card import image_preparation

Write = Callable[[Path, int], None]


def settings(path: Path, **options: object) -> DataSettings:
    return DataSettings.model_validate(
        {"kind": "imagefolder", "path": path, "resolution": 24, "mean": (0.0,), "deviation": (1.0,), **options}
    )


def assert_labels_match_colours(batches: object) -> None:
    for x, y in batches:  # type: ignore[attr-defined]
        channel_of_class = torch.tensor([2, 1, 0])[y]
        assert torch.equal(x.mean((2, 3)).argmax(1), channel_of_class)


def test_split_folders_are_used_as_they_are(tmp_path: Path, write_images: Write) -> None:
    for folder, count in (("train", 4), ("val", 2), ("test", 3)):
        write_images(tmp_path / folder, count)
    splits = load_splits(settings(tmp_path))
    assert {name: len(split) for name, split in splits.items()} == {"train": 12, "validation": 6, "test": 9}
    assert splits["train"].class_names == ("blue", "green", "red")
    for split in splits.values():
        assert_labels_match_colours(split.batches(5))
    assert_labels_match_colours(splits["train"].batches(6, seed=1))


def test_one_folder_is_split_by_class(tmp_path: Path, write_images: Write) -> None:
    write_images(tmp_path, 12)
    splits = load_splits(settings(tmp_path))
    assert {name: len(split) for name, split in splits.items()} == {"train": 24, "validation": 6, "test": 6}
    _, y = next(splits["test"].batches(6))
    assert y.bincount().tolist() == [2, 2, 2]


def test_an_application_that_follows_the_card_gives_the_network_what_it_was_trained_on(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3, 30, 41, 3), dtype=np.uint8)
    for split in ("train", "val", "test"):
        for name, pixels in zip(("a", "b", "c"), noise, strict=True):
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(pixels).save(tmp_path / split / name / "0.png")
    test = load_splits(settings(tmp_path, mean=(0.5, 0.4, 0.3), deviation=(0.2, 0.3, 0.4)))["test"]
    (x_BCHW, _) = next(test.batches(3, resolution=16))
    told = image_preparation(describe(test), (1, 3, 16, 16))
    assert (told.colours, told.crop, told.interpolation) == ("RGB", "central square", "bilinear, antialiased")
    assert told.size_interpolation == "bilinear, antialiased"
    for name, expected_CHW in zip(("a", "b", "c"), x_BCHW, strict=True):
        image = Image.open(tmp_path / "test" / name / "0.png").convert(told.colours)
        image = image.resize((told.resolution,) * 2, Image.Resampling.BILINEAR, box=(5, 0, 35, 30))
        pixels_HWC = (np.asarray(image) / 255 - told.mean) / told.deviation
        x_1CHW = torch.from_numpy(pixels_HWC).permute(2, 0, 1)[None].float()
        got = functional.interpolate(x_1CHW, size=told.size, mode="bilinear", antialias=True)[0]
        assert torch.allclose(got, expected_CHW, atol=1e-5)


def test_hidden_folders_are_no_classes(tmp_path: Path, write_images: Write) -> None:
    write_images(tmp_path, 12)
    (tmp_path / ".git" / "objects").mkdir(parents=True)
    splits = load_splits(settings(tmp_path))
    assert splits["train"].class_names == ("blue", "green", "red")
    assert {name: len(split) for name, split in splits.items()} == {"train": 24, "validation": 6, "test": 6}


def test_grey_and_smaller_resolution(tmp_path: Path, write_images: Write) -> None:
    write_images(tmp_path, 12)
    x, _ = next(load_splits(settings(tmp_path, channels=1))["train"].batches(4, resolution=16, seed=0))
    assert x.shape == (4, 1, 16, 16)


def test_augmented_batches_do_not_depend_on_ranks(tmp_path: Path, write_images: Write) -> None:
    write_images(tmp_path, 12)
    train = load_splits(settings(tmp_path))["train"]
    alone, _ = next(train.batches(8, seed=2))
    parts = [next(train.batches(8, seed=2, part=EpochPart(rank=rank, world=2)))[0] for rank in range(2)]
    assert torch.equal(alone, torch.cat(parts))


def test_absent_and_empty_folders_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data folder .*missing.*: does not exist"):
        load_splits(settings(tmp_path / "missing"))
    with pytest.raises(UserError, match=r"data folder .*: no class folder with images"):
        load_splits(settings(tmp_path))
    (tmp_path / "cat").mkdir()
    with pytest.raises(UserError, match=r"data folder .*: no class folder with images"):
        load_splits(settings(tmp_path))


def test_classes_that_differ_between_splits_are_refused(tmp_path: Path, write_images: Write) -> None:
    write_images(tmp_path / "train", 4)
    write_images(tmp_path / "val", 4)
    (tmp_path / "val" / "red").rename(tmp_path / "val" / "rust")
    with pytest.raises(UserError, match=r"data folder '.*val': no folder for red and a folder for rust; allowed: "):
        load_splits(settings(tmp_path))


def test_class_that_a_split_lacks_is_named(tmp_path: Path, write_images: Write) -> None:
    for folder in ("train", "val", "test"):
        write_images(tmp_path / folder, 4)
    for file in (tmp_path / "val" / "green").iterdir():
        file.unlink()
    with pytest.raises(UserError, match=r"no image of 1 of 3 classes in validation: green; add images of each class"):
        load_splits(settings(tmp_path))
    (tmp_path / "val" / "green").rmdir()
    with pytest.raises(UserError, match=r"data folder '.*val': no folder for green; allowed: the classes of train"):
        load_splits(settings(tmp_path))


def test_class_too_rare_to_be_in_every_split_is_named(tmp_path: Path, write_images: Write) -> None:
    write_images(tmp_path, 60)
    for file in sorted((tmp_path / "red").iterdir())[2:]:
        file.unlink()
    with pytest.raises(
        UserError, match=r"no image of 1 of 3 classes in (train|validation|test): red|too few to hold out"
    ):
        load_splits(settings(tmp_path))


def test_too_few_images_to_split_are_refused(tmp_path: Path, write_images: Write) -> None:
    write_images(tmp_path, 1)
    with pytest.raises(UserError, match="3 images of 3 classes, 1 of the smallest, blue: too few to hold out"):
        load_splits(settings(tmp_path))
    for file in (tmp_path / "red").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="2 images of 3 classes, none of red: too few to hold out"):
        load_splits(settings(tmp_path))


def test_corrupt_image_is_named(tmp_path: Path, write_images: Write) -> None:
    write_images(tmp_path, 12)
    for file in (tmp_path / "red").iterdir():
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(UserError, match=r"image '.*red.*' ?: cannot be decoded"):
        list(load_splits(settings(tmp_path))["train"].batches(8))
