"""Samples with several inputs: ones that follow from seed and number, and tables whose broken rows are told by number."""

import io
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from scipy.io import wavfile

from tasks.base.errors import UserError
from tasks.data import DataSettings, load, load_splits
from tasks.data.batches import concatenated, pieces, rows, samples_in
from tasks.data.dataset import DataDescription, check_same, describe, remember
from tasks.data.image_and_motion import MOTIONS, ImageAndMotion
from tasks.data.images import resize
from tasks.data.source import arrays
from tests.support.problems import garden

INPUTS = {"photo": "image", "weather": ("celsius", "wind")}
HEAD = "photo,celsius,wind,label"


def table(path: Path, **options: object) -> DataSettings:
    own = {"kind": "table", "path": path, "inputs": INPUTS, "resolution": 16, "channels": 3}
    return DataSettings.model_validate(own | options)


def written(folder: Path, count: int = 24, *, bright: int = 200) -> list[str]:
    """Rows of a table with their pictures; a class is whether a picture is bright and the weather is warm."""
    (folder / "pictures").mkdir(parents=True)
    lines = []
    for number in range(count):
        light, warm = number % 2, number // 2 % 2
        Image.new("RGB", (20, 30), (40 + light * bright // 2,) * 3).save(folder / "pictures" / f"{number}.png")
        lines.append(f"pictures/{number}.png,{5 + 20 * warm},{number / 10},{'ab'[light]}{'cd'[warm]}")
    (folder / "samples.csv").write_text("\n".join([HEAD, *lines]) + "\n")
    return lines


def test_neither_input_alone_tells_the_class() -> None:
    settings = DataSettings(kind="image_and_motion", images=240)
    source = ImageAndMotion(settings)
    assert len(source.class_names) == 4 * len(MOTIONS)
    seen = [name.split()[0] for name in source.class_names]
    felt = [name.split()[1] for name in source.class_names]
    assert all(seen.count(one) == len(MOTIONS) for one in set(seen))
    assert all(felt.count(one) == 4 for one in set(felt))
    assert np.bincount(source.labels).tolist() == [20] * 12


def test_samples_follow_from_seed_and_number_and_augmenting_changes_both_inputs() -> None:
    source = ImageAndMotion(DataSettings(kind="image_and_motion", images=240))
    again = ImageAndMotion(DataSettings(kind="image_and_motion", images=480))
    chosen = np.array([5, 120, 7])
    image_BCHW, motion_BAT = source.images(chosen, None)
    assert image_BCHW.shape == (3, 3, 48, 48)
    assert motion_BAT.shape == (3, 3, 128)
    for one, other in zip((image_BCHW, motion_BAT), again.images(chosen, None), strict=True):
        assert torch.equal(one, other)
    moved = source.images(chosen, np.full((3, 5), 0.9, np.float32))
    assert not torch.equal(moved[0], image_BCHW)
    assert not torch.equal(moved[1], motion_BAT)


def test_motions_differ_by_class_and_not_by_the_character() -> None:
    source = ImageAndMotion(DataSettings(kind="image_and_motion", images=1200))
    _, motion_BAT = source.images(np.arange(600), None)
    power_BF = np.abs(np.fft.rfft(motion_BAT.numpy() - motion_BAT.numpy().mean(2, keepdims=True))).mean(1)
    by_class_KMF = np.stack([power_BF[source.labels[:600] == label].mean(0) for label in range(12)]).reshape(4, 3, -1)
    between_motions = by_class_KMF.mean(0).std(0).mean()
    between_characters = by_class_KMF.mean(1).std(0).mean()
    assert between_motions > 4 * between_characters


def test_images_are_scaled_and_numbers_are_not() -> None:
    train = load(DataSettings(kind="image_and_motion", images=240), "train")
    (x, target) = next(iter(train.batches(16, resolution=24, seed=0)))
    assert [tuple(one.shape) for one in x] == [(16, 3, 24, 24), (16, 3, 128)]
    assert len(target) == 16
    assert train.form.size == (48, 48)
    assert train.form.numbers((24, 24)) == 3 * 24 * 24 + 3 * 128
    (plain, _) = next(iter(train.batches(16, augment=False)))
    smaller = resize(plain, (24, 24))
    assert smaller[1] is plain[1]
    assert smaller[0].shape == (16, 3, 24, 24)


def test_batches_of_several_inputs_are_cut_and_joined_sample_by_sample() -> None:
    x = (torch.arange(6.0).reshape(6, 1), torch.arange(12.0).reshape(6, 2))
    assert samples_in(x) == 6
    assert all(map(torch.equal, concatenated(pieces(x, 4)), x))
    assert [samples_in(piece) for piece in pieces(x, 4)] == [4, 2]
    packed = arrays(rows(x, 2, 4), ("a", "b"))
    assert packed.shape == (2,)
    assert packed["b"].tolist() == [[4.0, 5.0], [6.0, 7.0]]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_gives_images_and_numbers_on_the_scale_of_its_training_split(tmp_path: Path, suffix: str) -> None:
    lines = written(tmp_path)
    if suffix == ".parquet":
        names = HEAD.split(",")
        cells = list(zip(*(line.split(",") for line in lines), strict=True))
        numbers = {names[at]: [float(one) for one in cells[at]] for at in (1, 2)}
        content = {names[0]: list(cells[0]), **numbers, names[3]: list(cells[3])}
        pyarrow.parquet.write_table(pyarrow.table(content), tmp_path / "samples.parquet")
        (tmp_path / "samples.csv").unlink()
    splits = load_splits(table(tmp_path))
    train = splits["train"]
    assert train.class_names == ("ac", "ad", "bc", "bd")
    assert train.form.line == "photo 3x16x16, weather 2"
    (photo, weather), target = next(iter(train.batches(len(train), augment=False)))
    assert photo.shape == (len(train), 3, 16, 16)
    np.testing.assert_allclose(weather.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(weather.std(0, unbiased=False), 1, atol=1e-5)
    warm = torch.tensor([name.endswith("d") for name in train.class_names])[target]
    assert ((weather[:, 0] > 0) == warm).all()
    bright = torch.tensor([name.startswith("b") for name in train.class_names])[target]
    assert photo[bright].mean() > photo[~bright].mean() + 1


def test_splits_of_their_own_and_whole_numbers_as_classes(tmp_path: Path) -> None:
    for split, count in (("train", 24), ("val", 8), ("test", 8)):
        lines = written(tmp_path / split, count)
        numbered = [",".join([*line.split(",")[:3], str(10 - number % 2 * 8)]) for number, line in enumerate(lines)]
        (tmp_path / split / "samples.csv").write_text("\n".join([HEAD, *numbered]))
    splits = load_splits(table(tmp_path))
    assert {name: len(one) for name, one in splits.items()} == {"train": 24, "validation": 8, "test": 8}
    assert splits["test"].class_names == ("2", "10")


def test_labels_are_names_as_they_are_written_and_large_numbers_keep_their_differences(tmp_path: Path) -> None:
    for name, labels in (("one", ("01", "02")), ("other", ("01", "x"))):
        lines = written(tmp_path / name)
        own = [
            ",".join([one.split(",")[0], str(1_700_000_000 + row), "1", labels[row % 2]])
            for row, one in enumerate(lines)
        ]
        (tmp_path / name / "samples.csv").write_text("\n".join([HEAD, *own]))
        (tmp_path / name / "pictures").rename(tmp_path / f"{name}_pictures")
        text = (tmp_path / name / "samples.csv").read_text().replace("pictures/", f"{name}_pictures/")
        (tmp_path / f"{name}.csv").write_text(text)
    train = load(table(tmp_path), "train")
    assert train.class_names == ("01", "02", "x")
    (_, weather), _ = next(iter(train.batches(len(train), augment=False)))
    assert len(set(weather[:, 0].tolist())) > 20
    assert weather.dtype == torch.float32


def test_a_column_that_is_there_twice_is_one_line(tmp_path: Path) -> None:
    written(tmp_path)
    file = tmp_path / "samples.csv"
    head, *lines = file.read_text().splitlines()
    file.write_text("\n".join([f"{head},label", *(f"{line},x" for line in lines)]))
    with pytest.raises(UserError, match="2 columns 'label'; allowed: photo, celsius, wind, label, label"):
        load(table(tmp_path), "train")


def changed(row: int, column: int, value: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        lines = file.read_text().splitlines()
        cells = lines[row].split(",")
        cells[column] = value
        file.write_text("\n".join([*lines[:row], ",".join(cells), *lines[row + 1 :]]))

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (changed(3, 0, "away.png"), r"samples.csv': row 3: column 'photo' names 'away.png', which is no file in"),
        (changed(4, 0, ""), r"samples.csv': row 4: nothing in column 'photo'"),
        (changed(5, 1, "warm"), r"samples.csv': row 5: 'warm' in column 'celsius'; allowed: finite numbers"),
        (changed(6, 2, ""), r"samples.csv': row 6: '' in column 'wind'; allowed: finite numbers"),
        (changed(7, 1, "inf"), r"samples.csv': row 7: 'inf' in column 'celsius'; allowed: finite numbers"),
        (changed(2, 3, ""), r"samples.csv': row 2: nothing in column 'label'"),
        (changed(0, 1, "heat"), r"samples.csv': no column 'celsius'; allowed: photo, heat, wind, label"),
        (changed(0, 1, "wind"), r"samples.csv': no column 'celsius'; allowed: photo, wind, wind, label"),
        (changed(0, 1, "label"), r"samples.csv': no column 'celsius'"),
        (changed(3, 0, "../outside.png"), r"row 3: column 'photo' names '../outside.png'; allowed: files below"),
        (changed(3, 0, "a" * 300), r"row 3: column 'photo' names 'a+', which is no file in"),
        (
            lambda file: file.write_bytes(file.read_bytes().replace(b",ac", b",K\xe4fer")),
            r"samples.csv': cannot be read",
        ),
        (lambda file: file.write_text(HEAD + "\n"), r"samples.csv': has no rows"),
        (lambda file: file.write_text("a,b\n1\n"), r"samples.csv': cannot be read"),
        (lambda file: file.unlink(), r"no tables of samples; allowed: \*{.csv,.parquet}"),
    ],
)
def test_a_broken_row_is_one_line_with_file_and_number(
    tmp_path: Path, change: Callable[[Path], None], told: str
) -> None:
    written(tmp_path)
    change(tmp_path / "samples.csv")
    with pytest.raises(UserError, match=told):
        load(table(tmp_path), "train")


def test_a_broken_picture_is_told_with_its_row(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "pictures" / "4.png").write_bytes(b"no picture")
    splits = load_splits(table(tmp_path))
    with pytest.raises(UserError, match=r"image '.*4.png' of row 5 of '.*samples.csv': cannot be decoded"):
        list(chain.from_iterable(split.batches(4) for split in splits.values()))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"inputs": None}, "data.inputs is for data.kind=table, which needs it"),
        (
            {"inputs": {"noise": "sound"}},
            "data.inputs={noise: sound}; allowed: one image, or two or more inputs, of which",
        ),
        ({"inputs": {"note": "text"}}, "data.inputs={note: text}; allowed: one image, or two or more inputs, of which"),
        ({"inputs": {}}, "data.inputs={none}; allowed: one image, or two or more inputs, of which one is an image"),
        ({"inputs": {"a": ("x",), "b": ("y",)}}, "allowed: one image, or two or more inputs, of which one is an image"),
        ({"kind": "imagefolder"}, "data.inputs is for data.kind=table, which needs it, not imagefolder"),
        ({"inputs": {"my photo": "image", "b": ("y",)}}, "String should match pattern"),
    ],
)
def test_inputs_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        table(tmp_path, **options)


@pytest.mark.parametrize("targets", [None, ("celsius", "label")])
def test_a_table_of_one_image_gives_images_as_other_data_do(tmp_path: Path, targets: tuple[str, ...] | None) -> None:
    written(tmp_path, 96)
    settings = table(tmp_path, inputs={"photo": "image"}, targets=targets)
    assert (settings.sample, settings.problem) == ("image", "several_classes" if targets else "classification")
    train = load(settings, "train")
    assert (train.form.line, train.form.names, train.form.facts) == ("3x16x16", (), {"in_chans": 3})
    x_BCHW, target = next(iter(train.batches(6, resolution=8, seed=0)))
    assert isinstance(x_BCHW, torch.Tensor)
    assert x_BCHW.shape == (6, 3, 8, 8)
    assert target.shape == ((6, 2) if targets else (6,))
    names = ("celsius: 5", "celsius: 25") if targets else ()
    assert train.class_names[: len(names)] == names
    assert train.class_names[len(names) :] == tuple(
        f"{'label: ' * bool(targets)}{one}" for one in ("ac", "ad", "bc", "bd")
    )
    assert describe(train).inputs is None
    changed(4, 0, "away.png")(tmp_path / "samples.csv")
    with pytest.raises(UserError, match=r"row 4: column 'photo' names 'away.png'"):
        load(settings, "train")


def test_the_description_tells_inputs_and_their_scale(tmp_path: Path) -> None:
    written(tmp_path / "one")
    written(tmp_path / "other", 28)
    one, other = (describe(load(table(tmp_path / name), "train")) for name in ("one", "other"))
    assert one.described()["inputs"].startswith("inputs photo and weather (celsius 1")
    assert one.described()["inputs"] != other.described()["inputs"]
    assert one.differing(other) == ["inputs"]  # the other training split has another mean
    one.write(tmp_path / "data.json")
    again = DataDescription.read(tmp_path / "data.json")
    assert again == one
    assert again.inputs is not None
    assert list(again.inputs) == ["photo", "weather"]


def test_other_rows_of_training_are_told_what_to_do_and_other_rows_beside_them_are_taken(tmp_path: Path) -> None:
    for name, counts in (("one", (24, 8, 8)), ("other", (28, 8, 8)), ("beside", (24, 12, 16))):
        for split, count in zip(("train", "val", "test"), counts, strict=True):
            written(tmp_path / name / split, count)
    made = tmp_path / "supernet"
    made.mkdir()
    remember(load(table(tmp_path / "one"), "train"), made)
    with pytest.raises(
        UserError, match=r"weather \(celsius .*; words, means and deviations .* keep that run's in train/"
    ):
        check_same(load(table(tmp_path / "other"), "train"), made)
    check_same(load(table(tmp_path / "beside"), "train"), made)
    renamed = table(tmp_path / "one", inputs={"photo": "image", "weather": ("wind", "celsius")})
    with pytest.raises(UserError, match="give the data options of the run that made it"):
        check_same(load(renamed, "train"), made)


def test_texts_and_sounds_of_a_table_are_words_and_spectrograms(tmp_path: Path) -> None:
    train = load(garden.settings(garden.written(tmp_path)), "train")
    assert train.form.line == "photo 3x16x16, noise 1x16x16, note 6, weather 1"
    assert train.notes == ("data: 25.0% of the texts have more than 6 words and are cut",)
    (photo, noise, note, _), target = next(iter(train.batches(len(train))))
    assert (photo.dtype, noise.dtype, note.dtype) == (torch.float32, torch.float32, torch.int64)
    names = [train.class_names[label] for label in target]
    vocabulary = train.scaling.vocabulary
    assert vocabulary is not None
    assert train.form.facts["num_words"] == vocabulary.size
    for word in ("dry", "wet"):
        told = (note == vocabulary.numbers[word]).any(1)
        assert told.tolist() == [name.endswith(word) for name in names]
    loudest = noise[:, 0].mean(2).argmax(1)
    low = torch.tensor(["low" in name for name in names])
    assert loudest[low].max() < loudest[~low].min()
    changed = load(garden.settings(tmp_path, augment=True), "train")
    (_, other, _, _), _ = next(iter(changed.batches(len(train), seed=0)))
    assert len(other.flatten(1).unique(dim=0)) > 10 > len(noise.flatten(1).unique(dim=0))
    smaller = next(iter(train.batches(4, resolution=8)))[0]
    assert [tuple(one.shape[1:]) for one in smaller] == [(3, 8, 8), (1, 8, 8), (6,), (1,)]
    described = describe(train)
    described.write(tmp_path / "data.json")
    assert DataDescription.read(tmp_path / "data.json") == described
    assert "note (6 words, of a vocabulary of" in described.described()["inputs"]


def sound(rate_hz: int) -> bytes:
    stream = io.BytesIO()
    wavfile.write(stream, rate_hz, np.zeros(100, np.int16))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "high.wav",
            sound(8000),
            r"sound '.*high.wav' of row 3 of '.*days.csv': 8000 Hz; allowed: 4000 Hz, as '.*low.wav",
        ),
        ("high.wav", b"no sound", r"sound '.*high.wav' of row 3 of '.*days.csv': cannot be decoded"),
        ("low.wav", sound(100), r"of row 3 of .*: 4000 Hz; allowed: 100 Hz, as '.*low.wav' of row 1 of"),
    ],
)
def test_a_broken_sound_is_told_with_its_row(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    garden.written(tmp_path)
    (tmp_path / "files" / name).write_bytes(content)
    with pytest.raises(UserError, match=told):
        load(garden.settings(tmp_path), "train")


def test_a_text_without_words_is_told_with_its_row_and_texts_with_none_in_common_as_such(tmp_path: Path) -> None:
    file = garden.written(tmp_path) / "days.csv"
    whole = file.read_text()
    file.write_text(whole.replace("wet leaves", "  ", 1))
    with pytest.raises(UserError, match=r"days.csv': row 5: column 'note' has no words; fill or remove it"):
        load(garden.settings(tmp_path), "train")
    file.write_text(whole)
    with pytest.raises(UserError, match=r"no word is in the texts of train 1000 times; lower data.vocabulary"):
        load(garden.settings(tmp_path, vocabulary={"least_count": 1000}), "train")
    with pytest.raises(ValidationError, match=r"data.words is for data.kind=table, which needs it, not digits"):
        DataSettings(kind="digits", words=8)
