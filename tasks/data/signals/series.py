"""Tables of series, in CSV or Parquet: PATH/*, split by shares, or PATH/train/*, PATH/val/*, PATH/test/*.

Columns: `series` (rows of one recording follow each other), `time_s`, `label`, and one or three channels of numbers. A series
is cut into windows of `clip_s`, all of which are in one split. Legend: B batch, W windows, R rows, S series, C channels, T
samples, D draws.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import torch
from numpy.typing import NDArray

from adaptive_runtime.samples.inputs import fitted
from tasks.base.errors import UserError
from tasks.data.settings import DataSettings
from tasks.data.signals.synthesised import MOTION_WINDOW_S, spectrogram_of
from tasks.data.source import UNSCALED, Source, Splits, complete_splits, files_of_splits, numbered

KEYS = ("series", "time_s", "label")
SUFFIXES = (".csv", ".parquet")
COLUMNS = "series, time_s, label, and one or three channels"
STEP_OFF = 0.1
"""Share by which a time step may differ from the usual one."""
RATES_HZ = (0.01, 192_000.0)


@dataclass(frozen=True)
class _Table:
    """A file. values_RC: float32; starts_S: the first row of each series; labels_S: texts; step_s: between two rows."""

    file: Path
    channels: tuple[str, ...]
    values_RC: NDArray[np.float32]
    starts_S: NDArray[np.int64]
    labels_S: NDArray[np.str_]
    step_s: float


class SeriesWindows(Source):
    """All windows of all series, in memory as numbers. `series_W`: the number of each window's series."""

    def __init__(self, settings: DataSettings) -> None:
        """UserError: a missing or empty folder, or broken tables."""
        assert settings.clip_s is not None
        files = files_of_splits(settings, SUFFIXES, "tables of series")
        tables, places = numbered({split: [_read(file) for file in own] for split, own in files.items()})
        first = tables[0]
        for table in tables:
            _check_like(first, table)
        rate_hz = round(1 / first.step_s, 3)
        samples = max(16, round(settings.clip_s * rate_hz))
        self.class_names = tuple(np.unique(np.concatenate([table.labels_S for table in tables])).tolist())
        values_RC = np.concatenate([table.values_RC for table in tables])
        axes = {"channels": len(first.channels), "full_scale": float(np.abs(values_RC).max()) or 1.0}
        self.spectrogram = spectrogram_of(MOTION_WINDOW_S, rate_hz, samples, settings.resolution, **axes)
        self.scaling = UNSCALED._replace(spectrogram=self.spectrogram)
        series = [part for table in tables for part in np.split(table.values_RC, table.starts_S[1:])]
        self._series_CT = [np.ascontiguousarray(values_TC.T) for values_TC in series]
        windows_S = np.array([max(1, one.shape[1] // samples) for one in self._series_CT])
        self.series_W = np.repeat(np.arange(len(series)), windows_S)
        self._place_W = np.arange(len(self.series_W)) - np.repeat(np.cumsum(windows_S) - windows_S, windows_S)
        labels_S = np.concatenate([table.labels_S for table in tables])
        self.labels = np.searchsorted(self.class_names, labels_S)[self.series_W].astype(np.int64)
        if len(first.channels) != settings.channels:
            got = f"{settings.channels}, and '{first.file}' has {len(first.channels)} channels"
            raise UserError("data.channels", got, next_step=f"data.channels={len(first.channels)}")
        split_T = np.repeat(list(places), [len(own) for own in places.values()])
        split_S = np.repeat(split_T, [len(table.starts_S) for table in tables])
        first_W = np.flatnonzero(np.diff(self.series_W, prepend=-1))
        self._first_windows = {split: first_W[split_S == split] for split in places}

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Spectrograms (B, C, H, W) of windows; `draws` move them by up to half their length."""
        samples = self.spectrogram.samples
        moved_B = np.zeros(len(indices)) if draws is None else draws[:, 0] - 0.5
        windows = []
        for index, moved in zip(indices, moved_B, strict=True):
            signal_CT = self._series_CT[self.series_W[index]]
            start = round(samples * (self._place_W[index] + moved))
            start = max(0, min(start, signal_CT.shape[1] - samples))
            windows.append(fitted(signal_CT[:, start : start + samples], samples))
        return torch.from_numpy(self.spectrogram.of(np.stack(windows)))

    def splits(self, settings: DataSettings) -> Splits:
        """Splits of whole series: all windows of a series are in the split of its first one."""
        splits = complete_splits(dict(self._first_windows), self, settings)
        series_W = self.series_W
        return {split: np.flatnonzero(np.isin(series_W, series_W[first])) for split, first in splits.items()}


def _read(file: Path) -> _Table:
    """A table. UserError: the file cannot be read, or a row (numbered from 1) is invalid."""
    try:
        table = pyarrow.csv.read_csv(file) if file.suffix == ".csv" else pyarrow.parquet.read_table(file)
    except (OSError, pyarrow.ArrowException) as error:
        line = str(error).splitlines()[0]
        raise UserError(f"series '{file}'", f"cannot be read ({line})", next_step="remove or replace it") from error
    channels = tuple(name for name in table.column_names if name not in KEYS)
    if missing := [name for name in KEYS if name not in table.column_names]:
        raise UserError(f"series '{file}'", f"no column '{missing[0]}'", allowed=COLUMNS)
    if len(channels) not in (1, 3):
        raise UserError(f"series '{file}'", f"{len(channels)} channels ({', '.join(channels)})", allowed=COLUMNS)
    if not table.num_rows:
        raise UserError(f"series '{file}'", "has no rows", next_step="remove it")
    numbers = {name: _numbers(file, name, table.column(name)) for name in ("time_s", *channels)}
    names_R, labels_R = (_texts(file, name, table.column(name)) for name in ("series", "label"))
    starts_S = np.concatenate([[0], 1 + np.flatnonzero(names_R[1:] != names_R[:-1])])
    inside_R = np.ones(len(names_R), bool)
    inside_R[starts_S] = False
    _check_labels(file, labels_R, inside_R)
    values_RC = np.stack([numbers[name] for name in channels], 1).astype(np.float32)
    step_s = _step_s(file, numbers["time_s"], inside_R)
    return _Table(file, channels, values_RC, starts_S, labels_R[starts_S], step_s)


def _numbers(file: Path, name: str, column: pyarrow.ChunkedArray) -> NDArray[np.float64]:
    if not (pyarrow.types.is_floating(column.type) or pyarrow.types.is_integer(column.type)):
        where = f"series '{file}'"
        for row, value in enumerate(column.to_pylist() if pyarrow.types.is_string(column.type) else (), 1):
            if not _is_number(value):
                raise UserError(
                    where, f"row {row}: '{value}' in column '{name}'", allowed="numbers", next_step="mend it"
                )
        raise UserError(where, f"column '{name}' is {column.type}", allowed="numbers")
    values_R = column.to_numpy().astype(np.float64)
    if len(bad := np.flatnonzero(~np.isfinite(values_R))):
        raise UserError(
            f"series '{file}'", f"row {bad[0] + 1}: no number in column '{name}'", next_step="fill or remove it"
        )
    return values_R


def _is_number(text: str) -> bool:
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True


def _texts(file: Path, name: str, column: pyarrow.ChunkedArray) -> NDArray[np.str_]:
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0]) + 1
        raise UserError(f"series '{file}'", f"row {row}: nothing in column '{name}'", next_step="fill or remove it")
    return column.cast(pyarrow.string()).to_numpy().astype(np.str_)


def _check_labels(file: Path, labels_R: NDArray[np.str_], inside_R: NDArray[np.bool_]) -> None:
    changed = np.flatnonzero(inside_R[1:] & (labels_R[1:] != labels_R[:-1]))
    if len(changed):
        row = changed[0] + 1
        got = f"row {row + 1}: '{labels_R[row]}' in a series of '{labels_R[row - 1]}'"
        raise UserError(
            f"series '{file}'", got, allowed="one label for a series", next_step="begin another series there"
        )


def _step_s(file: Path, time_R: NDArray[np.float64], inside_R: NDArray[np.bool_]) -> float:
    """The time step between two rows of a series. UserError: the steps differ, or there is none."""
    rows = np.flatnonzero(inside_R)
    if not len(rows):
        raise UserError(f"series '{file}'", "every series has one row", allowed="several rows of a series in a row")
    steps_s = time_R[rows] - time_R[rows - 1]
    usual_s = float(np.median(steps_s))
    if usual_s <= 0 or not RATES_HZ[0] <= 1 / usual_s <= RATES_HZ[1]:
        raise UserError(f"series '{file}'", f"time steps of {usual_s:g} s", allowed="time_s that goes up")
    off = np.flatnonzero(np.abs(steps_s - usual_s) > STEP_OFF * usual_s)
    if len(off):
        got = f"row {rows[off[0]] + 1}: {steps_s[off[0]]:g} s after the row before"
        raise UserError(
            f"series '{file}'", got, allowed=f"{usual_s:g} s", next_step="resample it, or begin another series there"
        )
    return usual_s


def _check_like(first: _Table, table: _Table) -> None:
    if table.channels != first.channels:
        got, wanted = ", ".join(table.channels), ", ".join(first.channels)
        raise UserError(f"series '{table.file}'", f"channels {got}", allowed=f"{wanted}, as '{first.file}'")
    if abs(table.step_s - first.step_s) > STEP_OFF * first.step_s:
        got, wanted = f"{1 / table.step_s:g} Hz", f"{1 / first.step_s:g} Hz, as '{first.file}'"
        raise UserError(f"series '{table.file}'", got, allowed=wanted, next_step="resample it")
