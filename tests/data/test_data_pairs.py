"""Images with targets in files: the same pixels of both, and what does not belong together is one line with its file."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tasks.data import DataSettings, load_splits
from tasks.data.pairs import open_pairs
from tasks.errors import UserError
from tests.data.paired_files import write_pairs

WIDTH, HEIGHT, SIDE = 40, 30, 20
DOWN, RIGHT = 8, 6
"""By so much the first two colours of a target grow from row to row and from column to column."""


def target(number: int) -> np.ndarray:
    """(H, W, 3): a pixel's colours are its place and its image."""
    row, column = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack((DOWN * row, RIGHT * column, np.full_like(row, number)), 2).astype(np.uint8)


def written(root: Path, count: int = 24) -> Path:
    """Targets, and their negatives as images."""
    for name in ("input", "target"):
        (root / name).mkdir(parents=True)
    for number in range(count):
        Image.fromarray(255 - target(number)).save(root / "input" / f"{number:02}.png")
        Image.fromarray(target(number)).save(root / "target" / f"{number:02}.png")
    return root


def settings(path: Path, **options: object) -> DataSettings:
    told = {"kind": "pairs", "path": path, "resolution": SIDE, "mean": (0.0,), "deviation": (1.0,), **options}
    return DataSettings.model_validate(told)


def test_drawn_pairs_come_back_from_files_to_the_bit(tmp_path: Path) -> None:
    drawn = DataSettings(kind="noisy_glyphs", images=24, classes=2, resolution=SIDE)
    wanted = write_pairs(tmp_path, drawn)
    source, splits = open_pairs(settings(tmp_path))
    assert {name: len(split) for name, split in splits.items()} == {"train": 16, "validation": 4, "test": 4}
    for found, stored in zip(source.pairs(np.arange(24), None), wanted, strict=True):
        torch.testing.assert_close(found, stored, rtol=0, atol=1e-7)


def test_parts_of_images_and_targets_are_the_same_pixels_and_never_scaled(tmp_path: Path) -> None:
    train = load_splits(settings(written(tmp_path)))["train"]
    assert (train.problem.name, train.class_names) == ("restoration", ("red", "green", "blue"))
    for seed in (None, 0, 1):
        x_BCHW, y_BCHW = next(train.batches(16, seed=seed))
        torch.testing.assert_close(x_BCHW + y_BCHW, torch.ones(16, 3, SIDE, SIDE), rtol=0, atol=1e-6)
        pixels_BCHW = (255 * y_BCHW).round()
        assert (pixels_BCHW[:, 0].diff(dim=1) == DOWN).all()
        assert (pixels_BCHW[:, 1].diff(dim=2).abs() == RIGHT).all()
        first = pixels_BCHW[:, :2, 0, 0]
        if seed is None:
            middle = torch.tensor([DOWN * (HEIGHT - SIDE) // 2, RIGHT * (WIDTH - SIDE) // 2])
            assert (first == middle).all()
        else:
            assert len(first[:, 0].unique()) > 3
            assert len(pixels_BCHW[:, 1].diff(dim=2).unique()) == 2, "some are flipped"


def test_splits_have_folders_or_lists_of_their_own(tmp_path: Path) -> None:
    written(tmp_path / "train")
    written(tmp_path / "more", 3)
    (tmp_path / "val").mkdir()
    rows = ["number,target,input", *(f"{n},../more/target/{n:02}.png,../more/input/{n:02}.png" for n in (2, 0))]
    (tmp_path / "val" / "pairs.csv").write_text("\n".join(rows) + "\n")
    splits = load_splits(settings(tmp_path))
    assert {name: len(split) for name, split in splits.items()} == {"train": 20, "validation": 2, "test": 4}
    x_BCHW, y_BCHW = next(splits["validation"].batches(2))
    assert (255 * y_BCHW[:, 2, 0, 0]).round().tolist() == [2, 0]
    torch.testing.assert_close(x_BCHW, 1 - y_BCHW, rtol=0, atol=1e-6)


def save(picture: np.ndarray, *names: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for name in names:
            Image.fromarray(picture).save(root / name)

    return change


def listed(text: str) -> Callable[[Path], object]:
    return lambda root: (root / "pairs.csv").write_bytes(text.encode("latin-1"))


def empty(root: Path) -> None:
    for name in ("input", "target"):
        for file in (root / name).iterdir():
            file.unlink()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda root: (root / "target" / "03.png").unlink(),
            r"input '.*input/03\.png': no target '.*target/03\.\*'; add or remove it",
        ),
        (lambda root: (root / "input" / "03.png").unlink(), r"target '.*target/03\.png': no input of this name in '"),
        (lambda root: (root / "input" / "03.png").write_bytes(b""), r"input '.*input/03\.png': cannot be decoded"),
        (lambda root: (root / "target" / "03.png").write_bytes(b"x"), r"target '.*target/03\.png': cannot be decoded"),
        (
            save(np.zeros((31, 40, 3), np.uint8), "target/03.png"),
            r"target '.*target/03\.png': 40 x 31 pixels, but '.*input/03\.png' has 40 x 30; replace one of them",
        ),
        (
            save(np.zeros((30, 40, 4), np.uint8), "input/03.png"),
            r"input '.*input/03\.png': is a picture of mode RGBA; allowed: L or RGB, of 8 bits, with data\.channels=3",
        ),
        (save(np.zeros((30, 40), np.uint16), "target/03.png"), r"03\.png': is a picture of mode I(;16)?; allowed: L"),
        (
            save(np.zeros((19, 40, 3), np.uint8), "input/03.png", "target/03.png"),
            r"input '.*input/03\.png': 40 x 19 pixels; allowed: 20 x 20 or more, of data\.resolution; remove",
        ),
        (save(target(3), "target/03.jpg"), r"target '.*target/03\.png': '03\.jpg' has the same name; rename or remove"),
        (
            lambda root: (root / "target").rename(root / "clean"),
            r"no folders 'input' and 'target'; allowed: input/\* and target/\* of the same names, or a list pairs\.csv",
        ),
        (empty, r"data folder '.*input': no images; allowed: \*\{\.jpg,"),
        (listed("input,output\na,b\n"), r"list '.*pairs\.csv': no column 'target'; allowed: input, target; name both"),
        (listed(""), r"list '.*pairs\.csv': no column 'input'"),
        (listed("input,target\n"), r"list '.*pairs\.csv': has no rows; remove it"),
        (listed("input,target\ninput/00.png\n"), r"pairs\.csv': row 1: nothing in column 'target'; fill or remove it"),
        (
            listed("input,target\ninput/00.png,target/00.png\ninput/01.png,target/99.png\n"),
            r"pairs\.csv': row 2: column 'target' names 'target/99\.png', which is no file in '.*'; mend or remove it",
        ),
        (listed("input,target\n../a.png,target/00.png\n"), r"names '\.\./a\.png'; allowed: files below '"),
        (listed("input,target\n\xff,b\n"), r"list '.*pairs\.csv': cannot be read \("),
    ],
)
def test_files_that_do_not_belong_together_are_one_line(
    tmp_path: Path, change: Callable[[Path], object], told: str
) -> None:
    change(written(tmp_path, 6))
    with pytest.raises(UserError, match=told) as found:
        load_splits(settings(tmp_path))
    assert "\n" not in str(found.value)


def test_grey_data_take_no_colours(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a picture of mode RGB; allowed: L, of 8 bits, with data\.channels=1; con"):
        load_splits(settings(written(tmp_path, 6), channels=1))


def test_too_few_pairs_for_three_splits_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data '.*': 3 images: too few to hold out 17% for test; add images or give a"):
        load_splits(settings(written(tmp_path, 3)))


def test_a_picture_that_ends_too_early_is_told_where_it_is_decoded(tmp_path: Path) -> None:
    file = written(tmp_path, 6) / "target" / "03.png"
    file.write_bytes(file.read_bytes()[:-60])
    source, _ = open_pairs(settings(tmp_path))
    with pytest.raises(UserError, match=r"image '.*target/03\.png': cannot be decoded \(\w+\); remove or replace it"):
        source.pairs(np.arange(6), None)
