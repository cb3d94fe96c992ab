"""The rows of a bundle over all levels, and a day that is played with them."""

import argparse
from pathlib import Path

import pytest

from adaptive_runtime.bundles import BUNDLE_FILE, BundleManifest
from adaptive_runtime.simulation import LevelRows
from adaptive_runtime.split import HOME
from benchmarks.day import DAY, cells, judged, played
from benchmarks.day_rows import HEADER_BYTES, NOMINAL_MBPS, NOMINAL_MS, DeviceModel, rows_of

DEVICE = DeviceModel(slower=10.0, watts=2.0, idle_watts=0.5, peer="drone", peer_faster=4.0)
INPUT_BYTES = 3 * 16 * 16


@pytest.fixture(scope="module")
def rows(plain_bundle: Path) -> LevelRows:
    return rows_of(plain_bundle, BundleManifest.from_json((plain_bundle / BUNDLE_FILE).read_bytes()), DEVICE)


def test_rows_at_home_are_those_of_the_bundle_on_a_slower_device(rows: LevelRows, plain_bundle: Path) -> None:
    manifest = BundleManifest.from_json((plain_bundle / BUNDLE_FILE).read_bytes())
    at_home = [row for row, one in enumerate(rows.levels) if one.placement == HOME]
    assert [rows.levels[row].subnet for row in at_home] == [one.digest for one in manifest.subnets]
    for row, subnet in zip(at_home, manifest.subnets, strict=True):
        assert rows.table.latency_ms[row] == pytest.approx(10 * subnet.likely_ms)
        assert rows.table.energy_mj_V[row] == pytest.approx(20 * subnet.likely_ms)


def test_another_device_may_run_a_subnet_from_each_cut_on(rows: LevelRows) -> None:
    full = rows.full
    plans = [rows.placed[row] for row in sorted(rows.only("placement") - {full})]
    segments = len(plans[0].devices)
    assert [plan.devices for plan in plans] == [
        (HOME,) * cut + ("drone",) * (segments - cut) for cut in range(segments)
    ]
    assert [plan.home_ms for plan in plans] == sorted(plan.home_ms for plan in plans)
    whole_ms = rows.table.latency_ms[full]
    assert all(plan.home_ms + 4 * plan.others_ms == pytest.approx(whole_ms) for plan in plans)
    first = plans[0].links["drone"]
    assert (first.up_bytes, first.down_bytes) == (INPUT_BYTES + HEADER_BYTES, HEADER_BYTES)


def test_a_placed_row_takes_the_link_and_the_power_of_sending(rows: LevelRows) -> None:
    row = min(rows.only("placement") - {rows.full})
    sent_ms = (INPUT_BYTES + 2 * HEADER_BYTES) * 8e-3 / NOMINAL_MBPS
    latency_ms = rows.table.latency_ms[rows.full] / 4 + NOMINAL_MS + sent_ms
    assert rows.table.latency_ms[row] == pytest.approx(latency_ms)
    assert rows.table.energy_mj_V[row] == pytest.approx(0.5 * latency_ms, rel=0.02)


def test_a_short_day_is_played_and_judged(plain_bundle: Path) -> None:
    words = {"scenario": DAY, "bundle": plain_bundle, "minutes": 1.0, "slower": 0.01, "slack": 2.0, "quantile": 0.99}
    model = {"peer_faster": 8.0, "watts": 2.0, "idle_watts": 0.3, "seed": 0}
    day = played(argparse.Namespace(**words, **model))
    found = day.systems()
    assert len(cells(found)) == len(found) == 11
    assert judged(found)["99% in time"] == (found[-2].attainment >= 0.99)
