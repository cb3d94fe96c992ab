"""The bars of adapting on the device judge by the slowest, the longest and the farthest row."""

from typing import Any

from benchmarks.device_adaptation import bars


def verdict(images: int | None, stream: str = "fog", kind: str = "undone") -> dict[str, Any]:
    return {"stream": stream, "kind": kind, "images": images}


def found(**changed: Any) -> dict[str, Any]:
    rows: dict[str, Any] = {
        "times": [
            {"renewed_ms": 40.0, "difference_from_torch": 1e-6},
            {"renewed_ms": 49.0, "difference_from_torch": 2e-6},
        ],
        "steps": [{"statistics": 1e-6, "logits": 9e-5}],
        "errors": [
            {"stream": "clean", "source_points": 3.0, "device_points": 3.0},
            {"stream": "fog", "source_points": 60.0, "device_points": 20.0},
        ],
        "undone": [verdict(64), verdict(200)],
        "torch_imported": False,
    }
    return {**rows, **changed}


def reached(rows: dict[str, Any]) -> list[bool]:
    return [row["reached"] for row in bars(rows)]


def test_all_bars_are_reached_by_good_rows() -> None:
    assert reached(found()) == [True] * 5


def test_one_bad_row_misses_its_bar_alone() -> None:
    slow = [{"renewed_ms": 51.0, "difference_from_torch": 1e-6}]
    assert reached(found(times=slow)) == [False, True, True, True, True]
    assert reached(found(undone=[verdict(64), verdict(None)])) == [True, False, True, True, True]
    assert reached(found(undone=[verdict(201)])) == [True, False, True, True, True]
    assert reached(found(undone=[verdict(64, kind="kept")])) == [True] * 5
    assert reached(found(undone=[verdict(64, "clean", "kept")])) == [True, False, True, True, True]
    assert reached(found(steps=[{"statistics": 2e-4, "logits": 0.0}])) == [True, True, False, True, True]
    worse = [{"stream": "clean", "source_points": 3.0, "device_points": 3.5}]
    assert reached(found(errors=worse)) == [True, True, True, False, True]
