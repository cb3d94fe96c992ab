"""Images with targets in files: the same pixels of both, and what does not belong together is one line with its file."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.base.errors import UserError
from tasks.data import DataSettings, load_splits
from tasks.data.pairs import PairedPictures
from tests.support.data.paired_files import (
    DOWN,
    HEIGHT,
    RIGHT,
    SIDE,
    WIDTH,
    assert_refused,
    put,
    settings,
    target,
    write_drawn,
    write_targets,
)


@pytest.mark.few("small_glyphs-3")
@pytest.mark.parametrize(("kind", "upscale"), [("noisy_glyphs", 1), ("small_glyphs", 3)])
def test_drawn_pairs_come_back_from_files_to_the_bit(kind: str, upscale: int, tmp_path: Path) -> None:
    drawn = {"kind": kind, "images": 24, "classes": 2, "resolution": SIDE, "upscale": upscale}
    wanted = write_drawn(tmp_path, DataSettings.model_validate(drawn))
    given = settings("pairs", tmp_path, upscale=upscale)
    source = PairedPictures(given)
    splits = source.splits(given)
    assert {name: len(split) for name, split in splits.items()} == {"train": 16, "validation": 4, "test": 4}
    for found, stored in zip(source.pairs(np.arange(24), None), wanted, strict=True):
        torch.testing.assert_close(found, stored, rtol=0, atol=1e-7)


@pytest.mark.parametrize("upscale", [1, 2])
def test_parts_of_images_and_targets_are_the_same_pixels_and_never_scaled(upscale: int, tmp_path: Path) -> None:
    train = load_splits(settings("pairs", write_targets(tmp_path, upscale=upscale), upscale=upscale))["train"]
    assert train.problem.name == ("restoration" if upscale == 1 else "super_resolution_x2")
    assert train.class_names == ("red", "green", "blue")
    for seed in (None, 0, 1):
        x_BCHW, y_BCHW = next(train.batches(16, seed=seed))
        assert x_BCHW.shape == (16, 3, SIDE, SIDE)
        large_BCHW = x_BCHW.repeat_interleave(upscale, 2).repeat_interleave(upscale, 3)
        torch.testing.assert_close(large_BCHW + y_BCHW, torch.ones_like(large_BCHW), rtol=0, atol=1e-6)
        pixels_BCHW = (255 * (1 - x_BCHW)).round()
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
    write_targets(tmp_path / "train")
    write_targets(tmp_path / "more", 3)
    (tmp_path / "val").mkdir()
    rows = ["number,target,input", *(f"{n},../more/target/{n}.png,../more/input/{n}.png" for n in (2, 0))]
    (tmp_path / "val" / "pairs.csv").write_text("\n".join(rows) + "\n")
    splits = load_splits(settings("pairs", tmp_path))
    assert {name: len(split) for name, split in splits.items()} == {"train": 20, "validation": 2, "test": 4}
    x_BCHW, y_BCHW = next(splits["validation"].batches(2))
    assert (255 * y_BCHW[:, 2, 0, 0]).round().tolist() == [2, 0]
    torch.testing.assert_close(x_BCHW, 1 - y_BCHW, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "input/3.png",
            np.zeros((HEIGHT, WIDTH, 4), np.uint8),
            r"input '.*input/3\.png': is a picture of mode RGBA; allowed: L or RGB, of 8 bits, with data\.channels=3",
        ),
        ("target/3.jpg", target(3), r"target '.*target/3\.png': '3\.jpg' has the same name; rename or remove"),
        (
            "target/3.png",
            np.zeros((2 * HEIGHT, 2 * WIDTH), np.uint8),
            r"3\.png': 80 x 60 pixels, but '.*input/3\.png' has 40 x 30; replace one of them, or set data\.upscale=2$",
        ),
        (
            "pairs.csv",
            b"input,output\na,b\n",
            r"list '.*pairs\.csv': no column 'target'; allowed: input, target; name bo",
        ),
        ("pairs.csv", b"", r"list '.*pairs\.csv': no column 'input'"),
        ("pairs.csv", b"input,target\n", r"list '.*pairs\.csv': has no rows; remove it"),
        (
            "pairs.csv",
            b"input,target\ninput/0.png\n",
            r"pairs\.csv': row 1: nothing in column 'target'; fill or remove it",
        ),
        (
            "pairs.csv",
            b"input,target\ninput/0.png,target/0.png\ninput/1.png,target/99.png\n",
            r"pairs\.csv': row 2: column 'target' names 'target/99\.png', which is no file in '.*'; mend or remove it",
        ),
        ("pairs.csv", b"input,target\n../a.png,target/0.png\n", r"names '\.\./a\.png'; allowed: files below '"),
        ("pairs.csv", b"input,target\n\xff,b\n", r"list '.*pairs\.csv': cannot be read \("),
    ],
)
def test_files_that_do_not_belong_together_are_one_line(
    name: str, content: bytes | np.ndarray, told: str, tmp_path: Path
) -> None:
    put(write_targets(tmp_path, 6) / name, content)
    assert_refused(settings("pairs", tmp_path), told)


@pytest.mark.parametrize(
    ("count", "options", "told"),
    [
        (6, {"channels": 1}, r"is a picture of mode RGB; allowed: L, of 8 bits, with data\.channels=1; con"),
        (
            6,
            {"resolution": 31},
            r"input '.*input/0\.png': 40 x 30 pixels; allowed: 31 x 31 or more, of data\.resolution; remove",
        ),
        (
            6,
            {"upscale": 2},
            r"target '.*target/0\.png': 40 x 30 pixels, but '.*input/0\.png' has 40 x 30; allowed: 80 x 60, by data\.upsca"
            r"le=2; replace one of them, or set data\.upscale=1$",
        ),
        (3, {}, r"data '.*': 3 images: too few to hold out 17% for test; add images or give a"),
        (0, {}, r"data folder '.*input': no images; allowed: \*\{\.jpg,"),
    ],
)
def test_pairs_that_are_too_few_or_do_not_fit_the_options_are_one_line(
    count: int, options: dict[str, int], told: str, tmp_path: Path
) -> None:
    assert_refused(settings("pairs", write_targets(tmp_path, count), **options), told)


def test_a_picture_that_ends_too_early_is_told_where_it_is_decoded(tmp_path: Path) -> None:
    file = write_targets(tmp_path, 6) / "target" / "3.png"
    file.write_bytes(file.read_bytes()[:-60])
    source = PairedPictures(settings("pairs", tmp_path))
    with pytest.raises(UserError, match=r"image '.*target/3\.png': cannot be decoded \(\w+\); remove or replace it"):
        source.pairs(np.arange(6), None)
