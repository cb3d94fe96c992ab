"""The look-up table is append-only, survives kills, and holds no latency that is none."""

import json
import math
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import tailor_ir
from tasks.base.errors import UserError
from tasks.measuring.lut import Lut
from tests.support.tables.lut_entries import DEVICE, LATE, entry, failed, rewrite


def missing(lut: Lut, digests: str) -> list[str]:
    return [digest for digest in digests if lut.get(digest) is None]


def test_entries_are_read_back_as_written(tmp_path: Path) -> None:
    lut = Lut.open(tmp_path, DEVICE)
    lut.append([entry("a", p50_ms=0.001234567), failed("b")])
    lut.append([entry("c", noisy=True)])
    again = Lut.open(tmp_path)
    assert set(again.entries()) == {entry("a", p50_ms=0.001234567), failed("b"), entry("c", noisy=True)}
    assert again.device == DEVICE
    assert missing(again, "abcd") == ["d"]


def test_parts_are_only_added_never_changed(tmp_path: Path) -> None:
    lut = Lut.open(tmp_path, DEVICE)
    lut.append([entry("a")])
    first = {path: path.read_bytes() for path in tmp_path.iterdir()}
    Lut.open(tmp_path, DEVICE).append([entry("a", p50_ms=0.7)])
    assert all(path.read_bytes() == content for path, content in first.items())
    assert len(list(tmp_path.iterdir())) == 2
    found = Lut.open(tmp_path).get("a")
    assert found is not None
    assert found.p50_ms == 0.7


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, None])
@pytest.mark.parametrize("name", ["p50_ms", "p90_ms"])
def test_a_latency_that_is_no_positive_number_is_refused(name: str, value: float | None) -> None:
    with pytest.raises(ValueError, match=f"LUT entry of Conv a: {name} = .*allowed: a number above 0"):
        entry("a", **{name: value})


@pytest.mark.parametrize("changes", [{"reason": None}, {"reason": ""}, {"p50_ms": 1.0}])
def test_a_failure_has_a_reason_and_no_time(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a failed entry has a reason and no times"):
        replace(failed("a"), **changes)


def test_entries_of_another_build_or_device_are_not_mixed(tmp_path: Path) -> None:
    Lut.open(tmp_path, DEVICE).append([entry("a")])
    other = replace(DEVICE, build="def")
    lut = Lut.open(tmp_path, other)
    assert lut.get("a") is None
    lut.append([entry("a", p50_ms=9.0)])
    found = Lut.open(tmp_path, DEVICE).get("a")
    assert found is not None
    assert found.p50_ms == 0.5
    with pytest.raises(UserError, match="holds 2 devices"):
        Lut.open(tmp_path)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_entry_that_was_measured_last_counts_whichever_was_written_last(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    measured = [entry("a", p50_ms=1.0), failed("a", measured_at=LATE)]
    lut = Lut.open(tmp_path, DEVICE)
    for index in order:
        lut.append([measured[index]])
    assert lut.get("a") == Lut.open(tmp_path).get("a") == measured[1]


@pytest.mark.parametrize(
    "moment", ["yesterday", "2026-01-01T00:00:00", "2026-01-01T00:00:00+01:00", "2026-01-01T00:00:00Z"]
)
def test_a_time_that_cannot_be_ordered_is_refused(moment: str) -> None:
    with pytest.raises(ValueError, match=r"measured_at = .*allowed: UTC in ISO 8601"):
        entry("a", measured_at=moment)


def test_ways_of_measuring_and_settings_are_kept_apart(tmp_path: Path) -> None:
    alone, inside = entry("a", p50_ms=1.0, measured_at=LATE), entry("a", p50_ms=2.0, method="in situ")
    longer = entry("a", p50_ms=3.0, settings='{"time_cap_ms":99}')
    only_alone = entry("b")
    Lut.open(tmp_path, DEVICE).append([alone, inside, longer, only_alone])
    assert set(Lut.open(tmp_path).entries()) == {inside, only_alone}
    assert set(Lut.open(tmp_path, methods=["alone"]).entries()) == {alone, only_alone}
    assert Lut.open(tmp_path, methods=["alone", "in situ"]).get("a") == alone
    assert Lut.open(tmp_path, settings={longer.settings}).entries() == (longer,)
    assert missing(Lut.open(tmp_path, methods=["in situ"]), "ab") == ["b"]


def test_a_failure_inside_a_network_leaves_what_was_measured_alone(tmp_path: Path) -> None:
    Lut.open(tmp_path, DEVICE).append([entry("a"), failed("a", method="in situ"), failed("b", method="in situ")])
    lut = Lut.open(tmp_path)
    assert lut.get("a") == entry("a")
    assert lut.get("b") == failed("b", method="in situ")


def damage(folder: Path, **values: float) -> None:
    """Overwrite columns of the only part."""
    (part,) = folder.iterdir()
    table = parquet.read_table(part)
    rows = [row | values for row in table.to_pylist()]
    rewrite(part, table.from_pylist(rows, schema=table.schema))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_one_line_with_the_entry_and_what_measures_it(tmp_path: Path, value: float) -> None:
    Lut.open(tmp_path, DEVICE).append([entry("a"), entry("b")])
    damage(tmp_path, p50_ms=value)
    line = (
        r"LUT '.*': LUT entry of Conv a: p50_ms = .*; allowed: a number above 0 \(and 1 more\); .*autotailor profile … "
    )
    with pytest.raises(UserError, match=line) as caught:
        Lut.open(tmp_path)
    assert "\n" not in str(caught.value)
    lut = Lut.open(tmp_path, DEVICE, leave_out_invalid=True)
    assert (missing(lut, "ab"), len(lut.invalid)) == (["a", "b"], 2)
    lut.append([entry("a", measured_at=LATE), entry("b", measured_at=LATE)])
    assert len(Lut.open(tmp_path).entries()) == 2


def test_missing_operators_are_named_with_what_measures_them(tmp_path: Path, supernet: Path) -> None:
    features = list(tailor_ir.load(supernet).unique_operators())
    lut = Lut.open(tmp_path, DEVICE)
    with pytest.raises(
        UserError,
        match=rf"has no entry for .*{features[0].digest}.* and {len(features) - 3} more; autotailor profile … ",
    ):
        lut.require(features)
    lut.append([entry(feature.digest) for feature in features[1:]])
    with pytest.raises(UserError, match=rf"has no entry for {features[0].operator} {features[0].digest}; "):
        lut.require(features)
    lut.append([failed(features[0].digest)])
    lut.require(features)


def test_a_table_of_another_build_says_what_differs(tmp_path: Path, supernet: Path) -> None:
    feature = next(iter(tailor_ir.load(supernet).unique_operators()))
    Lut.open(tmp_path, DEVICE).append([entry(feature.digest)])
    lut = Lut.open(tmp_path, replace(DEVICE, build="def", description="newer"))
    line = r"was measured on another device \(build abc, here def\); autotailor profile … with this device"
    with pytest.raises(UserError, match=line):
        lut.require([feature])


def test_a_snapshot_has_the_wanted_operators_only_and_equal_entries_make_equal_files(tmp_path: Path) -> None:
    lut = Lut.open(tmp_path / "one", DEVICE)
    lut.append([entry("c"), entry("a"), entry("b", method="in situ")])
    lut.append([entry("a", p50_ms=0.7, measured_at=LATE)])
    snapshot = lut.snapshot(tmp_path / "copy", ["a", "b", "d"])
    assert set(snapshot.entries()) == {entry("a", p50_ms=0.7, measured_at=LATE), entry("b", method="in situ")}
    other = Lut.open(tmp_path / "two", DEVICE)
    other.append(snapshot.entries())
    other.snapshot(tmp_path / "again", ["b", "a"])
    (copy,), (again,) = (list((tmp_path / name).iterdir()) for name in ("copy", "again"))
    assert (copy.name, copy.read_bytes()) == (again.name, again.read_bytes())


def test_a_part_from_before_a_column_existed_is_read(tmp_path: Path) -> None:
    Lut.open(tmp_path, DEVICE).append([entry("a")])
    (part,) = tmp_path.iterdir()
    older = ["method", "settings", "description", "cache", "cost_ms", "energy_mj"]
    rewrite(part, parquet.read_table(part).drop_columns(older))
    assert Lut.open(tmp_path).entries() == (entry("a"),)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda table: table.append_column("phase", table["digest"]), "columns from a later version: phase; update"),
        (lambda table: table.drop_columns(["p50_ms"]), r"is no part of a look-up table \(without p50_ms\)"),
    ],
)
def test_a_part_of_another_version_is_refused_by_name(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], line: str
) -> None:
    Lut.open(tmp_path, DEVICE).append([entry("a")])
    (part,) = tmp_path.iterdir()
    part = rewrite(part, change(parquet.read_table(part)))
    with pytest.raises(UserError, match=f"{part.name}.*{line}"):
        Lut.open(tmp_path)


def test_a_full_disk_is_one_line_and_leaves_what_was_there(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the same error on the same call."""
    lut = Lut.open(tmp_path, DEVICE)
    lut.append([entry("a")])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(UserError, match=r"cannot be written \(File too large\); make room"):
            lut.append([entry("b")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert missing(lut, "ab") == ["b"]


def test_energy_is_read_back_and_its_absence_stays_none(tmp_path: Path) -> None:
    Lut.open(tmp_path, DEVICE).append([entry("a", energy_mj=1.25), entry("b")])
    lut = Lut.open(tmp_path)
    known, unknown = lut.get("a"), lut.get("b")
    assert known is not None
    assert unknown is not None
    assert (known.energy_mj, unknown.energy_mj) == (1.25, None)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_an_energy_that_is_no_positive_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"LUT entry of Conv a: energy_mj = .*allowed: a number above 0, or none"):
        entry("a", energy_mj=value)


def test_what_has_no_time_has_no_energy() -> None:
    with pytest.raises(ValueError, match="a failed entry has no energy"):
        failed("a", energy_mj=1.0)


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    Lut.open(tmp_path, DEVICE).append([entry("a")])
    (part,) = tmp_path.iterdir()
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(UserError, match=f"{part.name}.*cannot be read.*measured again"):
        Lut.open(tmp_path, DEVICE)


def test_summary_names_every_failure(tmp_path: Path) -> None:
    lut = Lut.open(tmp_path, DEVICE)
    lut.append([entry("a"), entry("b", noisy=True), failed("c")])
    summary = json.loads(json.dumps(lut.summary(), allow_nan=False))
    assert (summary["ok"], summary["failed"], summary["noisy"]) == (2, 1, 1)
    assert summary["failures"] == [{"operator": "Conv", "digest": "c", "reason": "ncnn has no layer for 'aten::det'"}]


def test_a_killed_writer_leaves_only_whole_parts(tmp_path: Path) -> None:
    """SIGKILL in the middle of writing: what was reported as written is there, and everything can be read."""
    script = """
        import sys
        from pathlib import Path
        sys.path[:0] = sys.argv[2:]
        from tests.support.tables.lut_entries import DEVICE, entry
        from tasks.measuring.lut import Lut
        lut = Lut.open(Path(sys.argv[1]), DEVICE)
        for number in range(100_000):
            lut.append([entry(f"{number}-{index}") for index in range(50)])
            print(number, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), *sys.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == 20:
                child.send_signal(signal.SIGKILL)
                break
        reported = [int(line), *(int(rest) for rest in child.stdout)]
    assert child.returncode == -signal.SIGKILL
    lut = Lut.open(tmp_path, DEVICE)
    assert {f"{number}-{index}" for number in range(max(reported) + 1) for index in range(50)} <= {
        one.digest for one in lut.entries()
    }
