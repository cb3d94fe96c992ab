"""Motion and series: signals that follow from seed and number, tables cut into windows, and broken rows told by number."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from tasks.base.errors import UserError
from tasks.data import DataSettings, load_splits, open_source
from tasks.data.signals import SeriesWindows, SynthesisedMotion
from tasks.data.signals.synthesised import ACTIVITIES, NAMES

RATE_HZ = 20.0
PITCHES_HZ = {"fast": 6.0, "slow": 1.5}
Rows = dict[str, list[object]]


def motion(**options: object) -> DataSettings:
    return DataSettings.model_validate({"kind": "motion", **options})


def series(path: Path, **options: object) -> DataSettings:
    own = {
        "kind": "series",
        "path": path,
        "clip_s": 3.2,
        "resolution": 16,
        "channels": 1,
        "mean": (0.0,),
        "deviation": (1.0,),
    }
    return DataSettings.model_validate(own | options)


@pytest.fixture(scope="module")
def source() -> SynthesisedMotion:
    return SynthesisedMotion(motion())


@pytest.mark.parametrize(("clip_s", "window"), [(5.12, 64), (2.56, 32), (0.4, 8)])
def test_a_window_is_at_most_a_quarter_of_a_motion(clip_s: float, window: int) -> None:
    made = SynthesisedMotion(motion(clip_s=clip_s))
    assert made.spectrogram.window == window
    assert made.images(np.arange(2), None).shape == (2, 3, 32, 32)


def recorded(names: Sequence[str], seconds: float = 10.0, *, rate_hz: float = RATE_HZ) -> Rows:
    """A series for each name, whose label is what comes before the hyphen."""
    rows: Rows = {"series": [], "time_s": [], "label": [], "x": []}
    times_s = np.arange(round(seconds * rate_hz)) / rate_hz
    for name in names:
        label = name.split("-")[0]
        rows["series"] += [name] * len(times_s)
        rows["time_s"] += (5 + times_s).tolist()
        rows["label"] += [label] * len(times_s)
        rows["x"] += (2 * np.sin(2 * np.pi * PITCHES_HZ[label] * times_s)).tolist()
    return rows


def names(count: int) -> list[str]:
    return [f"{label}-{number}" for number in range(count) for label in PITCHES_HZ]


def write_csv(rows: Rows, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.csv.write_csv(pyarrow.table(rows), file)


def test_a_signal_follows_from_its_seed_and_number_alone(source: SynthesisedMotion) -> None:
    indices = np.random.default_rng(0).permutation(6000)[:40]
    together = source.images(indices, None)
    assert together.shape == (40, 3, 32, 32)
    assert together.dtype == torch.float32
    assert together.min() >= 0
    assert together.max() <= 1
    alone = torch.cat([source.images(indices[[place]], None) for place in range(40)])
    assert torch.allclose(alone, together, rtol=0, atol=1e-5)
    other = SynthesisedMotion(motion(seed=1)).images(indices, None)
    assert (other - together).abs().mean() > 0.02


def test_training_signals_are_made_anew_in_each_epoch(source: SynthesisedMotion) -> None:
    indices, rng = np.arange(20), np.random.default_rng(0)
    one, other = (source.images(indices, rng.random((20, 5))) for _ in range(2))
    assert (one - other).abs().mean() > 0.01
    draws = rng.random((20, 5))
    assert torch.equal(source.images(indices, draws), source.images(indices, draws))


@pytest.mark.parametrize("name", NAMES)
def test_kinds_of_motion_are_finite_and_of_the_strength_of_people_and_cars(name: str) -> None:
    corners = np.stack(np.meshgrid(*[[0.0, 1.0]] * 4), -1).reshape(-1, 4).astype(np.float32)
    t_T = np.linspace(0, 10.0, 500, dtype=np.float32)
    felt = ACTIVITIES[name](np.tile(t_T, (len(corners), 1)), corners)
    assert felt.shape == (16, 3, 500)
    assert np.isfinite(felt).all()
    assert 0.005 < np.abs(felt).max() < 4.0


def test_a_still_device_feels_gravity_alone_however_it_is_turned(source: SynthesisedMotion) -> None:
    still = np.flatnonzero(source.labels[:200] == NAMES.index("still"))
    strength = np.linalg.norm(source.signals(still).mean(2), axis=1)
    assert np.abs(strength - 1).max() < 0.05


def test_gravity_alone_makes_no_edges(source: SynthesisedMotion) -> None:
    lying = np.broadcast_to(np.array([0.0, 0.6, 0.8], np.float32)[:, None], (1, 3, 256))
    columns = source.spectrogram.of(lying)
    assert np.ptp(columns, axis=3).max() < 1e-3
    assert columns[0, :, 4:].max() < columns[0, 1:, 0].min() - 0.3, "what a window lets through"


def test_running_has_more_power_at_its_rate_of_steps_than_walking(source: SynthesisedMotion) -> None:
    strength = {}
    for name in ("walking", "running"):
        signals = source.signals(np.flatnonzero(source.labels[:400] == NAMES.index(name)))
        strength[name] = (signals - signals.mean(2, keepdims=True)).std((1, 2))
    assert strength["running"].min() > np.median(strength["walking"])


def test_splits_have_all_kinds_and_fewer_may_be_asked_for() -> None:
    splits = load_splits(motion(images=120, classes=4, resolution=16))
    assert {name: len(split) for name, split in splits.items()} == {"train": 80, "validation": 20, "test": 20}
    x_BCHW, target = next(splits["train"].batches(16, seed=0))
    assert x_BCHW.shape == (16, 3, 16, 16)
    assert set(target.tolist()) <= set(range(4))
    with pytest.raises(UserError, match=r"data\.classes: there are 10 kinds of motion, not 11; ask for fewer"):
        load_splits(motion(classes=11))
    with pytest.raises(ValueError, match=r"data\.channels=1 with data\.kind=motion"):
        motion(channels=1)


def test_series_are_cut_into_windows_and_each_is_in_one_split(tmp_path: Path) -> None:
    write_csv(recorded(names(6)), tmp_path / "a.csv")
    pyarrow.parquet.write_table(pyarrow.table(recorded(names(6), 2.0)), tmp_path / "b.parquet")
    source, splits = open_source(series(tmp_path))
    assert isinstance(source, SeriesWindows)
    assert source.class_names == ("fast", "slow")
    assert np.bincount(source.series_W).tolist() == [3] * 12 + [1] * 12
    of_split = {name: set(source.series_W[windows].tolist()) for name, windows in splits.items()}
    assert sorted(len(own) for own in of_split.values()) == [4, 4, 16]
    assert set.union(*of_split.values()) == set(range(24))
    made = source.spectrogram
    assert (made.sampling_rate_hz, made.samples, made.channels, made.full_scale) == (20.0, 64, 1, pytest.approx(2.0))


def test_windows_show_the_pitch_of_their_label_and_training_moves_them(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_csv(recorded(names(4)), tmp_path / split / "rows.csv")
    splits = load_splits(series(tmp_path))
    assert {name: len(split) for name, split in splits.items()} == {"train": 24, "validation": 24, "test": 24}
    for x_BCHW, target in (*splits["test"].batches(8), *splits["train"].batches(8, seed=1)):
        brightest_B = x_BCHW[:, 0].mean(2).argmax(1)
        assert torch.equal(brightest_B < 6, target == 1)
    plain, moved = (next(splits["train"].batches(24, seed=1, augment=augment))[0] for augment in (False, True))
    assert (plain - moved).abs().max() > 0.01


def _changed(column: str, row: int, value: object) -> Callable[[Rows], Rows]:
    def change(rows: Rows) -> Rows:
        return rows | {column: [*rows[column][:row], value, *rows[column][row + 1 :]]}

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: {name: rows[name] for name in ("series", "time_s", "x")},
            "no column 'label'; allowed: series, time_s",
        ),
        (lambda rows: rows | {"y": rows["x"]}, r"2 channels \(x, y\); allowed: .*one or three"),
        (lambda rows: rows | {"x": ["1", "up", *rows["label"][2:]]}, "row 2: 'up' in column 'x'; allowed: numbers"),
        (lambda rows: rows | {"x": [True] * len(rows["x"])}, "column 'x' is bool; allowed: numbers"),
        (_changed("x", 41, None), "row 42: no number in column 'x'"),
        (_changed("label", 7, None), "row 8: nothing in column 'label'"),
        (_changed("label", 7, "slow"), "row 8: 'slow' in a series of 'fast'; allowed: one label"),
        (_changed("time_s", 9, 5.5), "row 10: 0.1 s after the row before; allowed: 0.05 s; resample it"),
        (lambda rows: rows | {"time_s": [0.0] * len(rows["x"])}, "time steps of 0 s; allowed: time_s that goes up"),
        (lambda rows: {name: [] for name in rows}, "has no rows|is null; allowed: numbers"),
    ],
)
def test_a_broken_table_is_one_line_with_file_and_row(
    tmp_path: Path, change: Callable[[Rows], Rows], message: str
) -> None:
    pyarrow.parquet.write_table(pyarrow.table(change(recorded(names(6)))), tmp_path / "rows.parquet")
    with pytest.raises(UserError, match=rf"series '.*rows\.parquet': ({message})"):
        load_splits(series(tmp_path))


def test_tables_of_other_rates_or_channels_are_one_line(tmp_path: Path) -> None:
    write_csv(recorded(names(6)), tmp_path / "a.csv")
    write_csv(recorded(names(6), rate_hz=50.0), tmp_path / "b.csv")
    with pytest.raises(UserError, match=r"series '.*b\.csv': 50 Hz; allowed: 20 Hz, as '.*a\.csv'; resample it"):
        load_splits(series(tmp_path))
    rows = recorded(names(6))
    write_csv({("z" if name == "x" else name): column for name, column in rows.items()}, tmp_path / "b.csv")
    with pytest.raises(UserError, match=r"series '.*b\.csv': channels z; allowed: x, as '.*a\.csv'"):
        load_splits(series(tmp_path))


def test_what_is_no_folder_of_series_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tables of series; allowed: \*{.csv,.parquet}"):
        load_splits(series(tmp_path))
    with pytest.raises(UserError, match=r"does not exist; choose another with data\.path=FOLDER"):
        load_splits(series(tmp_path / "absent"))
    (tmp_path / "a.csv").write_bytes(b"")
    with pytest.raises(UserError, match=r"series '.*a\.csv': cannot be read"):
        load_splits(series(tmp_path))
    write_csv(recorded(names(6)), tmp_path / "a.csv")
    with pytest.raises(UserError, match=r"data\.channels: 3, and '.*a\.csv' has 1 channels; data\.channels=1"):
        load_splits(series(tmp_path, channels=3))
