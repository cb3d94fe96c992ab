"""Energy by a device's sensors: agents tell it, tables and validated SubNets keep it, and unknown stays unknown."""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from power_source import rapl

import tailor_ir
from flows.cli import main
from profiling_agents.client import AgentClient, MeasureSettings, local_agent
from tasks import enumerate as enumeration
from tasks import profile
from tasks.lut import Lut
from tasks.predict import resources, validate
from tasks.predict.energy import EnergyPredictor
from tasks.predict.settings import Settings
from tasks.progress import Silent

WATTS = 20.0
FACTOR = 3.0  # the counter of a shared machine is late; no run takes more than what profiling waited for all of them
OPERATORS = 4
MEASURE = MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=1, energy_ms=150.0)


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
        rapl(tmp_path_factory.mktemp("root"), WATTS) as root,
        local_agent(request.param, options=["--sensors-root", str(root)]) as client,
        client.lease(),
    ):
        yield client


def test_an_agent_finds_the_sensors_below_the_root_it_is_given(powered: AgentClient) -> None:
    (sensor,) = powered.capabilities().power_sensors
    assert (sensor.name, sensor.kind, sensor.measures) == ("intel-rapl:0 package-0", "rapl", "energy")


def test_profiling_keeps_the_energy_of_each_operator(powered: AgentClient, few: Path, tmp_path: Path, capsys) -> None:
    settings = profile.Settings(method="alone", measure=MEASURE, store=tmp_path / "luts")
    result = profile.run(settings, few, powered, tmp_path, Silent())
    assert (result["measured_now"], result["lut"]["ok"]) == (OPERATORS, OPERATORS)
    for entry in Lut.open(tmp_path / profile.LUT_FOLDER).entries():
        runs = math.ceil(MEASURE.energy_ms / entry.p50_ms)
        assert WATTS * entry.p50_ms / FACTOR < entry.energy_mj < WATTS * entry.cost_ms / runs * FACTOR
    assert main(["lut", "show", f"store={tmp_path / 'luts'}", "--json", str(tmp_path / "show.json")]) == 0
    (shown,) = json.loads((tmp_path / "show.json").read_text())["tables"]
    assert shown["with_energy"] == OPERATORS == sum(counts["with_energy"] for counts in shown["operators"].values())
    assert main(["lut", "export", str(tmp_path / "table.csv"), f"store={tmp_path / 'luts'}"]) == 0
    with (tmp_path / "table.csv").open(newline="") as stream:
        assert all(float(row["energy_mj"]) > 0 for row in csv.DictReader(stream))


def test_whole_subnets_keep_their_energy_and_the_predictor_is_calibrated_by_it(
    powered: AgentClient, supernet: Path, tmp_path: Path
) -> None:
    enumeration.run(supernet, tmp_path, Silent())
    alone = profile.Settings(method="alone", measure=MEASURE.model_copy(update={"energy_ms": 0.0, "time_cap_ms": 3.0}))
    profile.run(alone, tmp_path, powered, tmp_path, Silent())
    settings = Settings(random_subnets=4, fit_subnets=2, measure=MEASURE)
    rows = validate.run(settings, supernet, tmp_path, powered, tmp_path, Silent())["subnets"]
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
    assert 1 / FACTOR < min(ratios) <= max(ratios) < FACTOR


@pytest.mark.parametrize(("watts", "energy_ms"), [(0.0, 20.0), (WATTS, 0.0)])
def test_energy_that_no_sensor_tells_or_nobody_asks_for_is_none(
    few: Path, tmp_path: Path, watts: float, energy_ms: float
) -> None:
    settings = profile.Settings(method="alone", measure=MEASURE.model_copy(update={"energy_ms": energy_ms}))
    with (
        rapl(tmp_path / "root", watts) as root,
        local_agent("onnxruntime", options=["--sensors-root", str(root)]) as client,
        client.lease(),
    ):
        profile.run(settings, few, client, tmp_path, Silent())
    entries = Lut.open(tmp_path / profile.LUT_FOLDER).entries()
    assert [(entry.state, entry.energy_mj) for entry in entries] == [("ok", None)] * OPERATORS
