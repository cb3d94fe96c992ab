"""Samples without labels: pictures of any size and arrays, and one line for whatever cannot be taken."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file
from scipy.io import wavfile
from torch import nn

import tailor_ir
from adaptive_runtime.samples.inputs import Vocabulary
from tasks.base.errors import UserError
from tasks.data import DataSettings, load_splits
from tasks.data.images import resize
from tasks.data.samples import SampleForm, SeveralInputs
from tasks.data.source import listing_of
from tasks.training.compile import _space_of

COUNT = 30


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        size = (*rng.integers(12, 40, 2).tolist(), 3)
        file = tmp_path / ("a" if number % 2 else "b/c") / f"{number}.{'png' if number % 3 else 'jpg'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, size, np.uint8)).save(file)
    return tmp_path


def test_pictures_are_scaled_as_a_whole_to_any_height_and_width(photos: Path) -> None:
    settings = DataSettings(kind="unlabelled", path=photos, shape=(3, 16, 48), mean=(0.5,), deviation=(0.25,))
    assert settings.problem == "fidelity"
    splits = load_splits(settings)
    assert sum(map(len, splits.values())) == COUNT
    x, target = next(splits["train"].batches(5))
    assert tuple(x.shape) == (5, 3, 16, 48)
    assert tuple(target.shape) == (5, 0)
    assert -2 <= float(x.min()) < float(x.max()) <= 2
    assert splits["train"].form == SampleForm((3, 16, 48), given=True)
    described = splits["train"].scaling.given
    assert described is not None
    assert described.pictures is not None
    assert "scaled to 16 × 48 pixels, bilinear, antialiased" in described.pictures.lines


WAYS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "letterbox": ((3, 20, 30), {"fit": "letterbox", "fill": 114}),
    "crop": ((3, 12, 12), {"fit": "shorter side", "scaled": [14, 14], "interpolation": "bicubic"}),
    "channels last": ((16, 16, 3), {"colours": "BGR", "largest": 255}),
    "grey": ((1, 10, 10), {"fit": "shorter side"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_device_makes_the_samples_of_training(way: str, photos: Path) -> None:
    shape, options = WAYS[way]
    scale = {"mean": (104.0, 117.0, 123.0), "deviation": (1.0,)} if "largest" in options else {}
    settings = DataSettings(kind="unlabelled", path=photos, shape=shape, options=options, **scale)
    splits = load_splits(settings)
    found = torch.cat([x for one in splits.values() for x, _ in one.batches(COUNT)]).numpy()
    given = splits["train"].scaling.given
    assert given is not None
    assert given.pictures is not None
    assert found.shape[1:] == given.shape == shape
    for file in sorted(photos.rglob("*.png"))[:8]:
        sample = given.pictures.of(np.asarray(Image.open(file)))
        levels = np.abs(found - sample).reshape(len(found), -1).max(1) * min(given.pictures.deviation)
        assert levels.min() * 255 / given.pictures.largest < 2.1, "two of 255 levels, since sides are rounded"


def test_images_with_channels_last_keep_their_size() -> None:
    form, x = SampleForm((16, 24, 3), given=True), torch.rand(2, 16, 24, 3)
    assert form.channels_last
    assert resize(x, form.size) is x
    assert form.numbers(form.size) == 16 * 24 * 3
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 4))

        def forward(self, x_BHWC: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.layers(x_BHWC.permute(0, 3, 1, 2))
            return answer

    spaces = [
        tailor_ir.compile(Last().eval(), form.blank(1), space).space
        for space in (None, _space_of(None, form), _space_of({"*.width_mult": "auto"}, form))
    ]
    names = [{variable.name for variable in space.variables} for space in spaces]
    assert names[1] == names[2] == names[0] - {"resolution"}
    assert not SampleForm((3, 16, 24), given=True).channels_last
    assert _space_of(None, SampleForm((3, 16, 24), given=True)) is None


def test_pictures_without_such_steps_are_one_line(photos: Path) -> None:
    lines = {
        r"data.options: 'blur'; allowed: colours, fit": {"blur": 3},
        r"data.options.fit: 'cut'.*'stretch', 'shorter side' or 'letterbox'": {"fit": "cut"},
        r"largest=255 with data.mean.*values up to 255": {"largest": 255},
    }
    for line, options in lines.items():
        with pytest.raises(UserError, match=line):
            load_splits(DataSettings(kind="unlabelled", path=photos, shape=(3, 8, 8), options=options))


def test_a_grey_picture_has_the_pixels_of_the_file(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (COUNT, 9, 14), np.uint8)
    for number, one in enumerate(pixels):
        Image.fromarray(one).save(tmp_path / f"{number:02}.png")
    settings = DataSettings(
        kind="unlabelled", path=tmp_path, shape=(1, 9, 14), mean=(0.0,), deviation=(1.0,), test_share=0.2
    )
    splits = load_splits(settings)
    found = torch.cat([x for one in splits.values() for x, _ in one.batches(30)])
    sums = np.sort(found.sum((1, 2, 3)).numpy() * 255)
    np.testing.assert_allclose(sums, np.sort(pixels.astype(float).sum((1, 2))), rtol=1e-5)


FILES = ("npy", "npz", "safetensors", "parquet")


@pytest.mark.parametrize("suffix", FILES)
def test_arrays_of_a_file_are_samples(suffix: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(COUNT, 7)).astype(np.float32)
    file = tmp_path / f"samples.{suffix}"
    if suffix == "npy":
        np.save(file, x)
    elif suffix == "npz":
        np.savez(file, x=x)
    elif suffix == "safetensors":
        save_file({"x": x}, file)
    else:
        pyarrow.parquet.write_table(pyarrow.table({"x": list(x)}), file)
    splits = load_splits(DataSettings(kind="unlabelled", path=file))
    found = torch.cat([batch for one in splits.values() for batch, _ in one.batches(COUNT)])
    np.testing.assert_allclose(np.sort(found.numpy(), 0), np.sort(x, 0), rtol=1e-6)
    assert splits["train"].form == SampleForm((7,), given=True)
    listed = listing_of(file)
    assert listed == listing_of(file)
    file.write_bytes(file.read_bytes() + b" ")
    assert listing_of(file) != listed


def test_several_arrays_are_several_inputs_in_the_order_of_names(tmp_path: Path) -> None:
    file = tmp_path / "samples.npz"
    np.savez(file, image=np.zeros((COUNT, 1, 8, 8), np.float32), state=np.zeros((COUNT, 4), np.float32))
    form = load_splits(DataSettings(kind="unlabelled", path=file, names=("state", "image")))["train"].form
    assert isinstance(form, SeveralInputs)
    assert form.names == ("state", "image")


def waves(folder: Path, rates_hz: tuple[int, ...] = (8000,)) -> Path:
    """Sounds of rising lengths: 1, 2, … up to a peak in the middle."""
    for number in range(COUNT):
        length = 40 + 2 * number
        sound = (32767 * np.sin(np.pi * np.arange(length) / length)).astype(np.int16)
        wavfile.write(folder / f"{number:02}.wav", rates_hz[number % len(rates_hz)], sound)
    return folder


@pytest.mark.parametrize("shape", [(50,), (1, 50)])
def test_sounds_are_waveforms_of_the_length_of_the_input(shape: tuple[int, ...], tmp_path: Path) -> None:
    splits = load_splits(DataSettings(kind="unlabelled", path=waves(tmp_path), shape=shape, test_share=0.2))
    assert splits["train"].form == SampleForm(shape, given=True)
    found = torch.cat([x for one in splits.values() for x, _ in one.batches(COUNT)]).flatten(1)
    assert tuple(found.shape) == (COUNT, 50)
    assert found.amax(1).allclose(torch.ones(COUNT), atol=0.01), "the middle has the peak"
    assert bool((found >= 0).all())
    assert int((found[:, 0] == 0).sum()) == sum(40 + 2 * number <= 51 for number in range(COUNT)), (
        "shorter sounds have zeros"
    )
    described = splits["train"].scaling.given
    assert described is not None
    assert "8000 Hz, the middle 50 numbers" in described.described


def lines(folder: Path) -> Path:
    file = folder / "lines.txt"
    file.write_text("\n\n".join(f"one word, ä {number}" for number in range(COUNT)), encoding="utf-8")
    return file


def test_lines_of_a_text_are_bytes_or_numbers_of_words(tmp_path: Path) -> None:
    settings = DataSettings(kind="unlabelled", path=lines(tmp_path), shape=(14,), tokens="bytes")
    x, _ = next(load_splits(settings)["train"].batches(COUNT // 2))
    assert x.dtype == torch.int64
    for row in x.tolist():
        text = bytes(row).rstrip(b"\0").decode()
        assert re.fullmatch(r"one word, ä \d+", text)
    words = tmp_path / "vocabulary.json"
    words.write_text(Vocabulary(words=("one", "word")).to_json())
    x, _ = next(load_splits(settings.model_copy(update={"tokens": str(words)}))["train"].batches(4))
    assert torch.equal(x, x[:1].expand(4, -1)), "other words are the same to it"
    assert x[0, 0] != x[0, 1]


def test_what_cannot_be_read_as_sounds_or_lines_is_one_line(tmp_path: Path) -> None:
    file = lines(tmp_path)
    given = DataSettings(kind="unlabelled", path=file, shape=(14,))
    with pytest.raises(
        UserError, match=r"data\.tokens.*None; allowed: bytes, or the path of a vocabulary\.json.*\.npz"
    ):
        load_splits(given)
    with pytest.raises(UserError, match=r"data\.shape.*\[3, 8, 8\]; allowed: \[LENGTH\]"):
        load_splits(given.model_copy(update={"shape": (3, 8, 8)}))
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    waves(sounds, (8000, 16000))
    with pytest.raises(UserError, match=r"16000 Hz; allowed: 8000 Hz, as"):
        load_splits(given.model_copy(update={"path": sounds}))
    Image.new("RGB", (9, 9)).save(sounds / "a.png")
    with pytest.raises(UserError, match=r"1 pictures and 30 sounds; allowed: files of one kind"):
        load_splits(given.model_copy(update={"path": sounds}))


def test_bad_files_are_one_line(tmp_path: Path, photos: Path) -> None:
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(b"PK\x03\x04nothing")
    few, empty = tmp_path / "few.npy", tmp_path / "empty"
    np.save(few, np.zeros((5, 3)))
    empty.mkdir()
    lines = {
        damaged: "cannot be read",
        few: "5 samples; allowed: 24 or more",
        empty: "0 pictures; allowed: 24 or more",
        tmp_path / "absent": "does not exist",
    }
    for path, line in lines.items():
        with pytest.raises(UserError, match=line):
            load_splits(DataSettings(kind="unlabelled", path=path))
    with pytest.raises(UserError, match=r"data.shape.*\[1 or 3,HEIGHT,WIDTH\] or"):
        load_splits(DataSettings(kind="unlabelled", path=photos, shape=(4, 8, 8)))
