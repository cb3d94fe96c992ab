"""The measurement of drift at a tiny size: every method on every stream, delays, and bars that judge by them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.drift import bar_rows, error_lines
from benchmarks.drift_alarms import CALIBRATION, CLEAN, AlarmPlan, as_many_or_more, delay_rows, false_alarm_rows
from benchmarks.drift_streams import METHODS, STREAMS, MeasuredNetwork, StreamPieces, prepared, stream_rows
from tasks.adaptation import AdaptiveSubnet
from tasks.data import DataSettings, load_splits
from tasks.data.drift import CORRUPTIONS
from tests.support.adaptation.small_subnets import smallest, supernet

TINY = StreamPieces(streams=("mixed",), methods=METHODS, seeds=1, images=8, single_images=2, severity=5)


@pytest.fixture(scope="module")
def network() -> MeasuredNetwork:
    data = DataSettings.model_validate({"kind": "glyphs", "images": 720, "classes": 5, "resolution": 32, "workers": 1})
    net = supernet("batch")
    return MeasuredNetwork("tiny", "digest", prepared(AdaptiveSubnet.of(net, smallest(net)), load_splits(data)))


def test_every_method_is_measured_and_the_source_stays(network: MeasuredNetwork, tmp_path: Path) -> None:
    rows = list(stream_rows([network], TINY, tmp_path, lambda: False))
    assert sorted(row["method"] for row in rows) == sorted(METHODS)
    assert all(0 <= row["error_points"] <= 100 for row in rows)
    assert network.ready.source.state() == {}


def test_every_stream_is_measured_once_and_the_next_run_goes_on(network: MeasuredNetwork, tmp_path: Path) -> None:
    plan = TINY._replace(streams=tuple(STREAMS), methods=("source", "guarded"))
    half = iter([False] * len(STREAMS) + [True] * 2 * len(STREAMS))
    first = list(stream_rows([network], plan, tmp_path, lambda: next(half)))
    assert len(first) == len(STREAMS)
    rows = list(stream_rows([network], plan, tmp_path, lambda: False))
    assert len(rows) == 2 * len(STREAMS)
    assert rows[: len(first)] == first
    bars = [row["bar"].split(":")[0] for row in bar_rows(rows)]
    assert bars == ["continual", "mixed", "clean", "correlated", "single"]
    assert list(stream_rows([network], plan, tmp_path, lambda: True)) == rows


def scores(drifted_by: float) -> dict[str, Any]:
    """Of 800 images of which all statistics are normal, and of drifted ones, whose first statistic is larger."""
    rng = np.random.default_rng(0)
    others: dict[str, Any] = {name: rng.normal([drifted_by, 0, 0], size=(60, 3)) for name in CORRUPTIONS}
    return {CALIBRATION: rng.normal(size=(100, 3)), CLEAN: rng.normal(size=(800, 3)), **others}


PLAN = AlarmPlan(pool=800, drifted=60, drawings=3, clean_samples=1500, severity=5)


def test_delays_count_from_the_first_drifted_image() -> None:
    rows = list(delay_rows("tiny", scores(8.0), PLAN))
    assert [row["corruption"] for row in rows] == list(CORRUPTIONS)
    assert all(row["noticed"] == 1 and 1 <= row["median_images"] <= row["p95_images"] <= 20 for row in rows)
    unnoticed = list(delay_rows("tiny", scores(0.0), PLAN))
    assert all(row["noticed"] == 0 and row["median_images"] is None for row in unnoticed)


def test_false_alarms_are_counted_for_drawn_calibrations_and_for_the_networks_own() -> None:
    rows = list(false_alarm_rows("tiny", scores(0.0), PLAN))
    assert [row["clean_images"] for row in rows] == [1500] * 3
    assert all(row["false_alarms"] <= 1 for row in rows)
    shifted = scores(0.0)
    shifted[CALIBRATION] = shifted[CALIBRATION] - 8
    *_, own = false_alarm_rows("tiny", shifted, PLAN)
    assert own["calibration"] == "its own"
    assert own["false_alarms"] >= 2
    assert not own["kept"]


def test_a_rate_is_refuted_by_far_more_alarms_than_stated() -> None:
    assert as_many_or_more(0, 3.0) == 1
    assert as_many_or_more(1, 3.0) == pytest.approx(1 - np.exp(-3))
    assert as_many_or_more(8, 3.0) == pytest.approx(0.0119, abs=1e-4)


def rows_of(stream: str, **errors: list[float]) -> list[dict[str, Any]]:
    return [
        {"network": "n", "stream": stream, "seed": seed, "method": method, "error_points": error}
        for method, values in errors.items()
        for seed, error in enumerate(values)
    ]


def test_bars_compare_the_best_method_and_the_worst_seed_with_the_source() -> None:
    rows = [
        *rows_of("continual", source=[40.0, 44.0], tent=[22.0, 22.0], roid=[20.0, 20.0], guarded=[30.0, 30.0]),
        *rows_of("mixed", source=[40.0, 40.0], tent=[30.0, 30.0]),
        *rows_of("correlated", source=[40.0, 40.0], tent=[80.0, 80.0], guarded=[38.0, 41.5]),
        *rows_of("clean", source=[5.0, 6.0], guarded=[5.0, 6.2]),
    ]
    bars = {row["bar"].split(":")[0]: row for row in bar_rows(rows)}
    assert bars["continual"]["measured"] == "48 % (roid)"
    assert bars["mixed"]["measured"] == "75 % (tent)"
    assert bars["correlated"]["measured"] == "1.50"
    assert {title: row["reached"] for title, row in bars.items()} == {
        "continual": True,
        "mixed": False,
        "correlated": False,
        "clean": True,
    }


def test_errors_tell_of_how_many_seeds_they_are() -> None:
    rows = rows_of("mixed", source=[40.0, 44.0], tent=[30.0])
    assert error_lines(rows, ("source", "tent", "sar")) == [["n", "mixed", "42.0 ± 2.0 (2)", "30.0 ± 0.0 (1)", "–"]]


def test_a_method_of_fewer_seeds_is_compared_with_the_sources_same_seeds() -> None:
    (bar,) = bar_rows(rows_of("mixed", source=[40.0, 80.0], tent=[20.0]))
    assert (bar["measured"], bar["seeds"]) == ("50 % (tent)", 1)
