"""The rows of a bundle over all levels, and a day that is played with them."""

import argparse
from pathlib import Path

import pytest

from adaptive_runtime.offload.split import COORDINATOR, PlacementPlans, SplitSubNet
from adaptive_runtime.policy import ChoiceLimits
from benchmarks.day import RESPONSE, cells, judged, played
from benchmarks.day_played import play
from benchmarks.day_rows import HEADER_BYTES, NOMINAL_MBPS, NOMINAL_MS, DeviceModel, rows_of
from benchmarks.simulation import LevelRows, PlayedScenario
from tests.support.runtime.placed import SERVER, PlacedBundle, write_placed_bundle
from tests.support.runtime.scenario_rows import scenario

DEVICE = DeviceModel(slower=10.0, watts=2.0, idle_watts=0.5)
INPUT_BYTES = 3 * 16 * 16


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> PlacedBundle:
    return write_placed_bundle(tmp_path_factory.mktemp("placed") / "bundle", "int8")


@pytest.fixture(scope="module")
def rows(bundle: PlacedBundle) -> LevelRows:
    return rows_of(bundle.folder, bundle.manifest, DEVICE)


def test_rows_on_coordinator_are_those_of_the_bundle_on_a_slower_device(rows: LevelRows, bundle: PlacedBundle) -> None:
    on_coordinator = [row for row, one in enumerate(rows.levels) if one.placement == COORDINATOR]
    assert [rows.levels[row].subnet for row in on_coordinator] == [one.digest for one in bundle.manifest.subnets]
    for row, subnet in zip(on_coordinator, bundle.manifest.subnets, strict=True):
        assert rows.table.latency_ms[row] == pytest.approx(10 * subnet.likely_ms)
        assert rows.table.energy_mj_V[row] == pytest.approx(20 * subnet.likely_ms)


def test_rows_over_the_other_device_are_those_of_the_bundle(rows: LevelRows, bundle: PlacedBundle) -> None:
    large = bundle.manifest.subnets[0].placement
    assert large is not None
    ((row, plans),) = rows.placed.items()
    assert (rows.levels[row].subnet, rows.levels[row].placement) == (bundle.large, SERVER)
    assert rows.table.accuracy[row] == large.accuracy
    split = SplitSubNet.open(bundle.folder, large.segments)
    exact = [one for one in PlacementPlans.read(bundle.folder / large.plans, split).plans if one.peers]
    assert [one.devices for one in plans] == [one.devices for one in exact]
    for one, before in zip(plans, exact, strict=True):
        assert (one.coordinator_ms, one.others_ms) == pytest.approx((10 * before.coordinator_ms, before.others_ms))
        use, exact_use = one.links[SERVER], before.links[SERVER]
        assert use.up_bytes == exact_use.up_bytes / 4 + HEADER_BYTES * use.messages


def test_a_placed_row_takes_the_link_and_the_power_of_sending(rows: LevelRows) -> None:
    ((row, plans),) = rows.placed.items()
    whole = next(plan for plan in plans if COORDINATOR not in plan.devices)
    sent_ms = (INPUT_BYTES + 5 + 2 * HEADER_BYTES) * 8e-3 / NOMINAL_MBPS
    assert rows.table.latency_ms[row] == pytest.approx(whole.others_ms + NOMINAL_MS + sent_ms, rel=0.01)
    assert rows.table.energy_mj_V[row] == pytest.approx(0.5 * rows.table.latency_ms[row] + 3.0, abs=1.0)


@pytest.mark.long
def test_a_short_day_is_played_and_judged(bundle: PlacedBundle, tmp_path: Path) -> None:
    file = tmp_path / "day.json"
    file.write_text(scenario().model_dump_json())
    words = {"scenario": file, "bundle": bundle.folder, "minutes": 1.0, "slower": 1.0, "slack": 2.0, "quantile": 0.99}
    day = played(argparse.Namespace(**words, watts=2.0, idle_watts=0.3, seed=0))
    found = day.systems()
    assert len(cells(found)) == len(found) == 11
    assert judged(found)["99% in time"] == (found[-2].attainment >= 0.99)


@pytest.mark.long
def test_with_real_processes_another_device_serves_as_long_as_it_is_there(
    bundle: PlacedBundle, rows: LevelRows, tmp_path: Path
) -> None:
    there = scenario().phases[2].model_copy(update={"lasts_s": 2.0, "requests_per_s": 10.0})
    gone = there.model_copy(update={"name": "gone", "battery": there.battery[1:] * 2, "peers": {}})
    both = scenario().model_copy(update={"phases": (there, gone)})
    limits = ChoiceLimits(budget_ms=60_000.0, quantile=0.99)
    day = PlayedScenario.drawn(both, rows, limits, RESPONSE, seed=0, policy="energy first")
    systems = {"all": frozenset(range(len(rows.table)))}
    systems_played = play(bundle.folder, day, systems, tmp_path, slower=1, processes=(1, 0), images=bundle.x)
    found = systems_played["all"]
    served = found.outcome(both.duration_s).rows_R
    assert served is not None
    (over,) = rows.placed
    assert served[0] == over
    assert served[-1] != over
    assert len(found.decided_ms) == len(served)
