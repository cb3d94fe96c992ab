"""Images with masks in PNG: pixels keep their classes, and what does not belong together is one line with file and row."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tasks.base.errors import UserError
from tasks.data import load_splits
from tasks.data.pairs import MaskedPictures
from tasks.data.problems.segmentation import IGNORED
from tests.support.data.paired_files import HEIGHT, SIDE, WIDTH, assert_refused, put, settings, write_masks


def test_pixels_have_the_class_of_their_colour_also_in_augmented_images(tmp_path: Path) -> None:
    splits = load_splits(settings("masks", write_masks(tmp_path)))
    train = splits["train"]
    assert train.problem.name == "segmentation"
    assert train.class_names == ("background", "square", "bar")
    assert {name: len(split) for name, split in splits.items()} == {"train": 32, "validation": 8, "test": 8}
    for seed in (None, 0):
        x_BCHW, y_BHW = next(train.batches(16, seed=seed))
        assert x_BCHW.shape[1:] == (3, SIDE, SIDE)
        assert set(y_BHW.unique().tolist()) == {IGNORED, 0, 1, 2}
        for label, channel in ((1, 0), (2, 1)):
            inside, outside = (x_BCHW[:, channel][y_BHW == one] for one in (label, 0))
            assert inside.mean() > 0.6
            assert outside.mean() < 0.1
    assert (y_BHW == IGNORED).sum() > 16 * SIDE, "pixels from outside of a moved image are not labelled"


def test_masks_with_a_palette_are_those_without(tmp_path: Path) -> None:
    source = MaskedPictures(settings("masks", write_masks(tmp_path), resolution=HEIGHT))
    (odd,) = source.masked(np.array([1]))[1]
    with Image.open(tmp_path / "masks" / "1.png") as opened:
        assert opened.mode == "P"
        stored_HW = torch.from_numpy(np.array(opened).astype(np.int64))
    columns = (torch.arange(HEIGHT) * WIDTH + WIDTH // 2) // HEIGHT
    assert torch.equal(odd, torch.where(stored_HW == 255, IGNORED, stored_HW)[:, columns])


def test_a_list_stands_in_place_of_the_folders(tmp_path: Path) -> None:
    rows = "".join(f"images/{number}.png,masks/{number}.png\n" for number in range(47))
    (write_masks(tmp_path) / "pairs.csv").write_text(f"image,mask\n{rows}")
    assert sum(map(len, load_splits(settings("masks", tmp_path)).values())) == 47


def test_splits_of_their_own_numbers_as_names_and_what_a_split_lacks(tmp_path: Path) -> None:
    for split, count in (("train", 24), ("val", 1), ("test", 8)):
        write_masks(tmp_path / split, count)
    mask = Image.fromarray(np.full((HEIGHT, WIDTH), 1, np.uint8))
    mask.save(tmp_path / "val" / "masks" / "0.png")
    splits = load_splits(settings("masks", tmp_path))
    assert {name: len(split) for name, split in splits.items()} == {"train": 24, "validation": 1, "test": 8}
    assert splits["train"].class_names == ("0", "1", "2")
    assert splits["train"].notes == ("data: validation has no pixel of 0, 2, and is judged by the other classes",)
    (tmp_path / "classes.txt").write_text("ground\nsquare\nbar\ncloud\n")
    splits = load_splits(settings("masks", tmp_path))
    assert splits["train"].class_names[3] == "cloud"
    assert splits["train"].notes[0] == "data: no pixel of cloud in any mask"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("masks/3.png", np.zeros((30, 40, 3), np.uint8), r"3\.png': is a picture of mode RGB; allowed: a grey"),
        (
            "masks/3.png",
            np.tril(np.full((30, 40), 7, np.uint8), -2),
            r"3\.png': row 3, column 1: class 7; allowed: 0 to 2, the lines of classes\.txt; 255",
        ),
        ("classes.txt", b"a\nb\na\n", r"classes\.txt': row 3: 'a' is there twice"),
        ("classes.txt", b"a\n", r"classes\.txt': 1 lines; allowed: 2 to 255"),
    ],
)
def test_masks_and_names_that_are_none_are_one_line(
    name: str, content: bytes | np.ndarray, told: str, tmp_path: Path
) -> None:
    put(write_masks(tmp_path, 6) / name, content)
    assert_refused(settings("masks", tmp_path), told)


def test_a_class_that_no_training_image_has_is_one_line(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_masks(tmp_path / split, 6)
    for file in (tmp_path / "train" / "masks").iterdir():
        with Image.open(file) as opened:
            mask_HW = np.array(opened)
        Image.fromarray(np.where(mask_HW == 2, 0, mask_HW)).save(file)
    with pytest.raises(UserError, match="no pixel of 1 of 3 classes in train: 2; add images with each class"):
        load_splits(settings("masks", tmp_path))


def test_images_have_the_rarest_of_their_classes_as_their_label(tmp_path: Path) -> None:
    source = MaskedPictures(settings("masks", write_masks(tmp_path)))
    names = [int(file.image.stem) for file in source._files]
    assert source.labels.tolist() == [2 if number % 3 == 0 else 0 for number in names], "of two as rare the first"
