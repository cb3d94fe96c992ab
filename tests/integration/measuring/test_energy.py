"""Energy by a device's sensors: agents tell it, tables and validated SubNets keep it, and unknown stays unknown."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tailor_ir
from flows.cli import main
from profiling_agents.client import AgentClient, MeasureSettings, local_agent
from tasks.base.progress import Silent
from tasks.measuring import operators as enumeration
from tasks.measuring import profile
from tasks.measuring.lut import Lut
from tasks.measuring.profile import plan
from tasks.prediction import latency, resources
from tasks.prediction.resources import EnergyPredictor
from tasks.prediction.settings import Settings
from tests.support.tables.lut_entries import DEVICE, entry
from tests.support.tables.power_source import rapl

WATTS = 20.0
FACTOR = 3.0  # the counter of a shared machine is late
CROWDED = 10.0  # energy is counted by the clock: it grows with what else runs
OPERATORS = 4
MEASURE = MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=1, energy_ms=500.0)
SUBNET = MeasureSettings(time_cap_ms=5.0, warmup_ms=1.0, min_blocks=1, layers_ms=5.0, patience=0.0)


@pytest.fixture(scope="module")
def few(supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The operators of the SuperNet with the most multiply-accumulates."""
    folder = tmp_path_factory.mktemp("few")
    enumeration.run(supernet, folder, Silent())
    features = sorted(enumeration.read_operators(folder).values(), key=lambda one: -one.macs)
    enumeration.write_operators(folder / enumeration.OPERATORS_FILE, {one: {} for one in features[:OPERATORS]})
    return folder


@pytest.fixture(scope="module", params=["ncnn", "onnxruntime"])
def powered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentClient]:
    """A leased agent of each runtime whose device has an energy counter."""
    with (
        rapl(WATTS) as root,
        local_agent(request.param, options=["--sensors-root", str(root)]) as client,
        client.lease(),
    ):
        yield client


@pytest.fixture
def rapl_agent() -> Iterator[AgentClient]:
    with (
        rapl(WATTS) as root,
        local_agent("onnxruntime", options=["--sensors-root", str(root)]) as client,
        client.lease(),
    ):
        yield client


def test_an_agent_finds_the_sensors_below_the_root_it_is_given(powered: AgentClient) -> None:
    (sensor,) = powered.capabilities().power_sensors
    assert (sensor.name, sensor.kind, sensor.measures) == ("intel-rapl:0 package-0", "rapl", "energy")


def test_profiling_keeps_the_energy_of_each_operator(
    powered: AgentClient, few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = profile.Settings(method="alone", measure=MEASURE, store=tmp_path / "luts")
    result = profile.run(settings, few, powered, tmp_path, Silent())
    assert (result["measured_now"], result["lut"]["ok"]) == (OPERATORS, OPERATORS)
    ratios = []
    for one in Lut.open(tmp_path / profile.LUT_FOLDER).entries():
        assert one.p50_ms is not None
        assert one.energy_mj is not None
        ratios.append(one.energy_mj / (WATTS * one.p50_ms))
    assert min(ratios) > 1 / FACTOR
    assert np.median(ratios) < CROWDED
    assert main(["lut", "show", f"store={tmp_path / 'luts'}", "--json", str(tmp_path / "show.json")]) == 0
    (shown,) = json.loads((tmp_path / "show.json").read_text())["tables"]
    assert shown["with_energy"] == OPERATORS == sum(counts["with_energy"] for counts in shown["operators"].values())
    assert main(["lut", "export", str(tmp_path / "table.csv"), f"store={tmp_path / 'luts'}"]) == 0
    with (tmp_path / "table.csv").open(newline="") as stream:
        assert all(float(row["energy_mj"]) > 0 for row in csv.DictReader(stream))


@pytest.mark.long
def test_whole_subnets_keep_their_energy_and_the_predictor_is_calibrated_by_it(
    powered: AgentClient, supernet: Path, tmp_path: Path
) -> None:
    enumeration.run(supernet, tmp_path, Silent())
    alone = profile.Settings(method="alone", measure=MEASURE.model_copy(update={"energy_ms": 0.0, "time_cap_ms": 3.0}))
    profile.run(alone, tmp_path, powered, tmp_path, Silent())
    settings = Settings(random_subnets=4, fit_subnets=2, rounds=1, measure=MEASURE)
    rows = latency.run(settings, supernet, tmp_path, powered, tmp_path, Silent())["subnets"]
    assert all(row["energy_mj"] > WATTS * row["measured_ms"] / FACTOR for row in rows)
    out = tmp_path / "resources"
    out.mkdir()
    result = resources.run(resources.Settings(), supernet, out, tmp_path)
    assert (result["energy_from"], result["energy_calibration"]["subnets"]) == ("sensor", 4)
    assert result["energy_held_out"]["n"] == 2
    net = tailor_ir.load(supernet)
    predicted_mj = EnergyPredictor.load(out / resources.ENERGY_FILE).predict(
        net.space.encode([row["config"] for row in rows])
    )
    ratios = [mj / row["energy_mj"] for mj, row in zip(predicted_mj, rows, strict=True)]
    assert 1 / FACTOR < np.median(ratios) < FACTOR


def test_energies_of_operators_are_measured_beside_times_in_situ_and_summed_up(
    supernet: Path, tmp_path: Path, rapl_agent: AgentClient
) -> None:
    """One runtime will do: what differs between them is above."""
    enumeration.run(supernet, tmp_path, Silent())
    measure = MEASURE.model_copy(update={"time_cap_ms": 2.0, "energy_ms": 100.0})
    settings = profile.Settings(measure=measure, subnet=SUBNET, subnets_per_operator=2)
    planned = plan(settings, tmp_path, rapl_agent.capabilities(), supernet)
    result = profile.run(settings, tmp_path, rapl_agent, tmp_path, Silent(), supernet)
    total = result["lut"]["entries"]
    assert result["measured_now"] == planned["to_measure"] == total
    assert planned["estimated_s"] > total * measure.energy_ms / 1e3
    assert set(result["lut"]["methods"]) == {"in situ"}
    assert result["lut"]["with_energy"] == total
    assert profile.run(settings, tmp_path, rapl_agent, tmp_path, Silent(), supernet)["measured_now"] == 0
    energies_mj = Lut.open(tmp_path / profile.LUT_FOLDER).energies_mj()
    out = tmp_path / "resources"
    out.mkdir()
    found = resources.run(resources.Settings(), supernet, out, profiled=tmp_path)
    assert (found["energy_from"], found["energy_operators"]) == ("operators", {"measured": total, "all": total})
    net = tailor_ir.load(supernet)
    codes = net.space.random_codes(20, np.random.default_rng(0))
    expected = [sum(energies_mj[f.digest] for f in net.operators(net.space.decode(code))) for code in codes]
    predicted = EnergyPredictor.load(out / resources.ENERGY_FILE).predict(codes)
    np.testing.assert_allclose(predicted, expected, rtol=1e-9)


def test_a_batch_shares_its_energy_and_what_is_unknown_is_modelled(supernet: Path, tmp_path: Path) -> None:
    batch, energy_mj = 4, 8.0
    net = tailor_ir.load(supernet, batch=batch)
    largest, smallest = (net.operators(config) for config in (net.max_config, net.min_config))
    unknown = next(feature for feature in largest if feature not in smallest)
    known = [feature for feature in net.unique_operators() if feature != unknown]
    lut = Lut.open(tmp_path / profile.LUT_FOLDER, DEVICE)
    lut.append([entry(unknown.digest), *(entry(feature.digest, energy_mj=energy_mj) for feature in known)])
    found = resources.run(resources.Settings(), supernet, tmp_path, None, batch, tmp_path)
    assert found["energy_operators"] == {"measured": len(known), "all": len(known) + 1}
    most_mj, least_mj = (row["energy_mj"] for row in found["subnets"])
    assert least_mj == pytest.approx(len(smallest) * energy_mj / batch, rel=1e-9)
    assert most_mj > sum(feature != unknown for feature in largest) * energy_mj / batch


@pytest.mark.parametrize(("watts", "energy_ms"), [(0.0, 20.0), (WATTS, 0.0)])
def test_energy_that_no_sensor_tells_or_nobody_asks_for_is_none(
    few: Path, tmp_path: Path, watts: float, energy_ms: float
) -> None:
    settings = profile.Settings(method="alone", measure=MEASURE.model_copy(update={"energy_ms": energy_ms}))
    with (
        rapl(watts) as root,
        local_agent("onnxruntime", options=["--sensors-root", str(root)]) as client,
        client.lease(),
    ):
        profile.run(settings, few, client, tmp_path, Silent())
    entries = Lut.open(tmp_path / profile.LUT_FOLDER).entries()
    assert [(one.state, one.energy_mj) for one in entries] == [("ok", None)] * OPERATORS
