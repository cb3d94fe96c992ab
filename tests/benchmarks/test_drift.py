"""The measurement of drift at a tiny size: every method on every stream, delays, and bars that judge by them."""

import argparse
from typing import Any

import pytest

from benchmarks.drift import METHODS, STREAMS, Prepared, bar_rows, delay_rows, prepared, stream_rows
from tasks.adaptation import AdaptiveSubnet
from tasks.data import DataSettings, load_splits
from tests.adaptation.small_subnets import smallest, supernet


@pytest.fixture(scope="module")
def ready() -> Prepared:
    data = DataSettings.model_validate({"kind": "glyphs", "images": 720, "classes": 5, "resolution": 32, "workers": 1})
    net = supernet("batch")
    return prepared(AdaptiveSubnet.of(net, smallest(net)), load_splits(data))


def options(**given: Any) -> argparse.Namespace:
    defaults = {"streams": ["mixed"], "methods": METHODS, "seeds": 1, "images": 8, "single_images": 2, "severity": 5}
    return argparse.Namespace(**{**defaults, **given})


def test_every_method_is_measured_and_the_source_stays(ready: Prepared) -> None:
    rows = list(stream_rows("tiny", ready, options()))
    assert [row["method"] for row in rows] == list(METHODS)
    assert all(0 <= row["error_points"] <= 100 for row in rows)
    assert ready.source.state() == {}


def test_every_stream_is_measured(ready: Prepared) -> None:
    rows = list(stream_rows("tiny", ready, options(streams=list(STREAMS), methods=["source", "guarded"], seeds=2)))
    assert len(rows) == len(STREAMS) * 2 * 2
    assert [row["bar"].split(":")[0] for row in bar_rows(rows)] == [
        "continual",
        "mixed",
        "clean",
        "correlated",
        "single",
    ]


def test_delays_count_from_the_first_drifted_image(ready: Prepared) -> None:
    rows = list(delay_rows("tiny", ready, options(images=60)))
    assert len(rows) == 10
    found = {row["corruption"]: row["delay_images"] for row in rows}
    contrast = found["contrast"]
    assert contrast is not None
    assert 1 <= contrast <= 40
    assert sum(row["early"] for row in rows) <= 1


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
