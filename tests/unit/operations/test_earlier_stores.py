"""Stores as earlier versions wrote them are opened with nothing lost; those of later versions are refused in one line.

What earlier versions wrote is here as literals, so that it stays what it was. The registry of devices has tests of its own.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles.manifest import BundleManifest
from adaptive_runtime.fleet.member import MemberState
from adaptive_runtime.policy.decisions import ChoiceState, read_log
from tasks.base.artifacts.folders import damage
from tasks.base.errors import UserError
from tasks.data.dataset import DataDescription
from tasks.evaluation.models.origin import NetworkOrigin
from tasks.measuring.lut import LutStore
from tasks.operations.fleet.registry import Registry

FIRST_COLUMNS: dict[str, list[Any]] = {
    "digest": ["00000000000000aa", "00000000000000bb"],
    "operator": ["Conv", "Linear"],
    "feature": ["{}", "{}"],
    "backend": ["ncnn"] * 2,
    "build": ["1"] * 2,
    "precision": ["fp32"] * 2,
    "threads": [1] * 2,
    "fingerprint": ["0123456789abcdef"] * 2,
    "state": ["ok", "failed"],
    "reason": [None, "no kernel"],
    "p50_ms": [0.5, None],
    "p90_ms": [0.6, None],
    "spread": [0.1, None],
    "n": [30, 0],
    "noisy": [False, False],
    "measured_at": ["2025-01-01T00:00:00.000000+00:00"] * 2,
}
"""The first parts of look-up tables: alone was the only method, and what caches, cost and energy were nobody wrote down."""

FIRST_DATA = {
    "version": 1,
    "title": "digits",
    "class_names": ["0", "1"],
    "channels": 1,
    "resolution": 8,
    "mean": [0.3],
    "deviation": [0.4],
}
FIRST_NETWORK = {"name": "resnet18", "weights": "timm", "licence": "Apache-2.0"}
FIRST_LOG = {
    "version": 1,
    "table": "ab" * 32,
    "state": {"running": 1, "better_since_s": None, "switched_s": [2.5], "went_up_s": None},
}
FIRST_MEMBER = {"version": 1, "url": "https://fleet:8763", "device": "ab" * 16, "token": "cd" * 32}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A store with one part whose name has no digest."""
    folder = tmp_path / "luts/ncnn-fp32-1t"
    folder.mkdir(parents=True)
    parquet.write_table(pa.table(FIRST_COLUMNS), folder / "part-0.parquet")
    return folder


def test_the_first_look_up_tables_are_read_compacted_and_copied_with_nothing_lost(table: Path, tmp_path: Path) -> None:
    store = LutStore(table.parent)
    rows = {row["digest"]: row for row in store.rows()}
    for place, digest in enumerate(FIRST_COLUMNS["digest"]):
        assert {name: rows[digest][name] for name in FIRST_COLUMNS} == {
            name: values[place] for name, values in FIRST_COLUMNS.items()
        }
        assert rows[digest]["method"] == "alone"
        assert rows[digest]["energy_mj"] is None
    assert LutStore(tmp_path / "other").merge([store])
    assert list(store.compact())
    for found in (store, LutStore(tmp_path / "other")):
        assert {row["digest"]: row for row in found.rows()} == rows


def test_a_look_up_table_of_a_later_version_is_refused(table: Path) -> None:
    parquet.write_table(pa.table({**FIRST_COLUMNS, "volts": [1.0, 1.0]}), table / "part-1.parquet")
    with pytest.raises(UserError, match=r"has columns from a later version: volts; update autotailor$"):
        LutStore(table.parent).rows()


def written(folder: Path, content: Any) -> Path:
    file = folder / "stored.json"
    file.write_text(json.dumps(content))
    return file


def test_the_first_descriptions_of_data_and_networks_are_read(tmp_path: Path) -> None:
    data = DataDescription.read(written(tmp_path, FIRST_DATA))
    assert (data.title, data.class_names, data.mean, data.crop) == ("digits", ("0", "1"), (0.3,), None)
    network = NetworkOrigin.read(written(tmp_path, FIRST_NETWORK))
    assert (network.name, network.weights, network.licence) == ("resnet18", "timm", "Apache-2.0")


def test_a_device_that_enrolled_before_telemetry_was_kept_is_still_enrolled(tmp_path: Path) -> None:
    state = MemberState.from_file(written(tmp_path, FIRST_MEMBER))
    assert (state.url, state.device, state.token) == ("https://fleet:8763", "ab" * 16, "cd" * 32)
    assert state.untold is None
    assert state.waiting == ()


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (DataDescription.read, {**FIRST_DATA, "version": 3}),
        (NetworkOrigin.read, {**FIRST_NETWORK, "version": 2}),
        (BundleManifest.from_file, {"version": 3, "subnets": []}),
        (MemberState.from_file, {**FIRST_MEMBER, "version": 3, "more": 1}),
    ],
)
def test_a_file_of_a_later_version_is_refused_in_one_line(
    tmp_path: Path, read: Callable[[Path], Any], content: dict[str, Any]
) -> None:
    with pytest.raises(
        AdaptiveError, match=r"has version \d, of a later autotailor; allowed: \d; update autotailor"
    ) as told:
        read(written(tmp_path, content))
    assert "\n" not in str(told.value)


def test_a_log_of_decisions_without_rules_is_read_and_a_later_one_refused(tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    log.write_text(json.dumps(FIRST_LOG) + "\n")
    (section,) = read_log(log)
    assert section.head.state == ChoiceState(running=1, switched_s=(2.5,))
    assert section.head.policy is None
    log.write_text(json.dumps({**FIRST_LOG, "version": 2}) + "\n")
    with pytest.raises(AdaptiveError, match=r"decisions.jsonl, line 1: .*version"):
        read_log(log)


def test_a_stage_whose_record_is_of_a_later_version_is_not_taken_for_whole(tmp_path: Path) -> None:
    (tmp_path / "digests.json").write_text(json.dumps({"version": 2, "files": {}}))
    assert damage(tmp_path) == "digests.json has version 2; this version of autotailor reads 1"


def test_a_registry_of_a_later_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "fleet.db")) as database, database:
        database.execute("CREATE TABLE fleet_schema (version INTEGER PRIMARY KEY, window_s FLOAT NOT NULL)")
        database.execute("INSERT INTO fleet_schema VALUES (99, 60.0)")
    with pytest.raises(UserError, match=r"its schema has version 99; allowed: .*; update autotailor here$"):
        Registry.open(f"sqlite:///{tmp_path}/fleet.db")
    with closing(sqlite3.connect(tmp_path / "fleet.db")) as database:
        assert database.execute("SELECT * FROM fleet_schema").fetchall() == [(99, 60.0)]
        assert database.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table'").fetchone() == (1,)
