"""The comparison with a golden file finds each difference, and says where it is."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.golden.comparison import check, differences, written

VALUE = {"space": {"codes": 12, "names": ["a", "b"]}, "latency_ms": [1.0, 2.0], "none": None}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"space": {"codes": 13, "names": ["a", "b"]}}, "space.codes: golden 12, now 13"),
        ({"space": {"codes": 12, "names": ["a"]}}, 'space.names[1]: golden "b", now nothing'),
        ({"space": {"codes": 12.0, "names": ["a", "b"]}}, "space.codes: golden 12, now 12.0"),
        ({"latency_ms": [1.0, 2.001]}, "latency_ms[1]: golden 2.0, now 2.001"),
        ({"latency_ms": [1.0, 2.0, 3.0]}, "latency_ms[2]: golden nothing, now 3.0"),
        ({"more": True}, "more: golden nothing, now true"),
    ],
)
def test_a_failure_names_the_key_and_both_values(change: dict[str, Any], key: str, tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    check(file, VALUE, 1e-6, update=True)
    with pytest.raises(AssertionError) as failure:
        check(file, VALUE | change, 1e-6, update=False)
    assert key in str(failure.value)
    assert "golden.json" in str(failure.value)


def test_floats_may_differ_by_the_stated_tolerance_and_integers_by_nothing() -> None:
    assert not list(differences({"ms": 1.0}, {"ms": 1.0 + 1e-10}, 1e-9))
    assert list(differences({"ms": 1.0}, {"ms": 1.0 + 1e-8}, 1e-9))
    assert list(differences({"bytes": 10**12}, {"bytes": 10**12 + 1}, 1e-9))


def test_a_golden_file_is_written_on_request_alone(tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    with pytest.raises(AssertionError, match="--update-golden"):
        check(file, VALUE, 0.0, update=False)
    assert not file.exists()
    check(file, VALUE, 0.0, update=True)
    check(file, VALUE, 0.0, update=False)


def test_golden_files_have_short_lines() -> None:
    text = written({"numbers": list(range(200)), "pairs": [[i, "x" * 20] for i in range(20)]})
    assert max(map(len, text.splitlines())) <= 120
