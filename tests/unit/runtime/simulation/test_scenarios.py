"""Scenarios: files with one line for each error, and what systems make of them on a simulated device."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy import ChoiceLimits, DecisionInputs, LoadFactors, VariantLookUp
from adaptive_runtime.state.traces import PressureResponse, Scenario
from benchmarks.simulation import LevelRows, PlayedScenario, ScenarioDevice, ScoredSystem
from benchmarks.simulation.scored import EVERYTHING, NOTICED_S, ORACLE, STAY
from tests.support.docs.documents import ROOT
from tests.support.runtime.scenario_rows import LEVELS, SERVER, level_rows, scenario

DAY = ROOT / "benchmarks" / "scenarios" / "day.json"
BUDGET_MS = 40.0
POLICY = "memory < 5% -> mu by battery, at most 6 MiB; mu by battery"
RESPONSE = PressureResponse(cpu=2.0, bandwidth=1.0)


def drawn() -> PlayedScenario:
    limits = ChoiceLimits(budget_ms=BUDGET_MS)
    return PlayedScenario.drawn(scenario(NOTICED_S), level_rows(), limits, RESPONSE, seed=0, policy=POLICY)


@pytest.fixture(scope="module")
def played() -> PlayedScenario:
    """All phases, long enough for weights to adapt."""
    return drawn()


@pytest.fixture(scope="module")
def systems(played: PlayedScenario) -> dict[str, ScoredSystem]:
    return {one.name: one for one in played.systems()}


def changed(content: dict[str, Any], phase: int, **fields: Any) -> dict[str, Any]:
    phases = [dict(one) for one in content["phases"]]
    phases[phase] |= fields
    return content | {"phases": phases}


def test_a_scenario_that_is_written_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    scenario().write(file)
    assert Scenario.read(file) == scenario()


@pytest.mark.parametrize(
    ("phase", "fields", "line"),
    [
        (0, {"lasts_s": 0}, "phases.0.lasts_s: Input should be greater than 0"),
        (1, {"speed": 1}, "phases.1.speed: Extra inputs are not permitted"),
        (1, {"memory": [0.5, 1.5]}, "phases.1.memory.1: Input should be less than or equal to 1"),
        (1, {"load": "waves"}, "phases.1.load: Input should be 'steps', 'random', 'user' or 'bursts'"),
        (2, {"battery": [0.6, 0.7]}, "phase 'there' has a battery of 70% after 60%, and is not charging"),
        (2, {"battery": [0.7, 0.5]}, "phase 'there' has a battery of 70% after 60%, and is not charging"),
        (2, {"name": "quiet"}, "two phases have one name"),
        (2, {"peers": {SERVER: {"up_mbps": 1}}}, "phases.2.peers.server.down_mbps: Field required (and 1 more)"),
        (3, {"drift": {"corruption": "fog", "severity": 9, "lost": 0.1}}, "phases.3.drift.severity: Input should be"),
    ],
)
def test_what_is_wrong_in_a_scenario_is_one_line(tmp_path: Path, phase: int, fields: dict[str, Any], line: str) -> None:
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps(changed(scenario().model_dump(mode="json"), phase, **fields)))
    with pytest.raises(AdaptiveError) as found:
        Scenario.read(file)
    told = str(found.value)
    assert told.startswith(f"{file}: ")
    assert line in told
    assert told.endswith("correct the scenario")
    assert "\n" not in told


def test_a_battery_may_rise_on_a_supply() -> None:
    content = changed(scenario().model_dump(mode="json"), 2, battery=[0.6, 0.7], charging=True)
    assert Scenario.model_validate_json(json.dumps(content)).at(100.0).battery == pytest.approx(0.65)


def test_a_moment_lies_between_the_ends_of_its_phase() -> None:
    found = scenario().at(45.0)
    assert (found.phase.name, found.since_s) == ("full", 5.0)
    assert found.battery == pytest.approx(0.8 - 0.2 * 5 / 40)
    assert found.memory_mib == pytest.approx(0.3 * 20)
    assert scenario().at(1e6).battery == pytest.approx(0.21)


def test_a_shorter_scenario_has_the_same_phases_and_rates() -> None:
    short = scenario().lasting(20.0)
    assert [phase.lasts_s for phase in short.phases] == [4.0, 4.0, 4.0, 8.0]
    assert short.at(2.0).battery == pytest.approx(scenario().at(20.0).battery)
    trace = short.trace([RESPONSE], seed=1, every_s=0.5)
    assert len(trace.arrivals_s) == 80
    pressures = np.array(trace.cpu)[trace.at(np.array([1.0, 9.0, 19.0]))]
    np.testing.assert_array_equal(pressures, [0.0, 0.5, 0.0])
    assert trace == short.trace([RESPONSE], seed=1, every_s=0.5)


def test_the_day_is_that_of_the_case_study() -> None:
    day = Scenario.read(DAY)
    assert day.phases[0].battery[0] == 0.9
    assert day.at(day.duration_s).battery == pytest.approx(0.21)
    shares = [day.at(time_s).memory_mib / day.memory_total_mib for time_s in np.arange(0, day.duration_s, 600)]
    assert (max(shares), min(shares)) == pytest.approx((0.85, 0.28))
    assert any(phase.drift for phase in day.phases)
    assert {bool(phase.peers) for phase in day.phases} == {True, False}


def test_rows_over_levels_are_found_by_their_level() -> None:
    rows = level_rows()
    assert rows.full == 0
    found = {level: sorted(rows.only(level)) for level in ("subnet", "exit", "engine", "placement")}
    assert found == {"subnet": [0, 3], "exit": [0, 1], "engine": [0, 2], "placement": [0, 4]}
    assert sorted(rows.only("subnet", "placement")) == [0, 3, 4, 5]
    assert [rows.coordinator_of(row) for row in range(len(LEVELS))] == [0, 1, 2, 3, 0, 3]


def test_rows_that_do_not_fit_together_are_refused() -> None:
    rows = level_rows()
    with pytest.raises(AdaptiveError, match="has placement 'server'; allowed: 'coordinator' without a plan"):
        LevelRows(rows.table, LEVELS, {4: rows.placed[4]})
    without = rows.table.of_rows([1, 2, 3, 4, 5])
    with pytest.raises(AdaptiveError, match="row 'large fp32 server' has no row on the coordinator"):
        LevelRows(without, LEVELS[1:], {row - 1: plan for row, plan in rows.placed.items()})


def test_the_device_knows_battery_memory_and_the_devices_that_are_there(played: PlayedScenario) -> None:
    device = ScenarioDevice(played.scenario, played.rows, played.requests)
    factors = LoadFactors(mean=(1.0,) * 4, deviation=(0.0,) * 4)
    inputs = DecisionInputs(now_s=1.5 * NOTICED_S, limits=played.limits, factors=factors)
    alone = device.seen(inputs, running=3)
    assert alone.device is not None
    assert alone.device.battery == pytest.approx(0.7)
    assert alone.device.memory_available_mib == pytest.approx(0.3 * 20 - 4.0)
    assert alone.without == {4, 5}
    there = device.seen(inputs._replace(now_s=2.5 * NOTICED_S), running=None)
    assert there.without == frozenset()
    mean, deviation = there.factors.own[4]
    expected_ms = 2.5 + 4.0 + (3072 + 64) * 8e-3 / 20
    assert mean * 7.5 == pytest.approx(expected_ms, rel=0.2)
    assert 0 < deviation < 0.5


def test_coordinator_stands_in_for_a_device_that_is_gone(played: PlayedScenario) -> None:
    device = ScenarioDevice(played.scenario, played.rows, played.requests)
    arrivals_s = played.requests.trace.arrivals_s_R
    here, gone = np.searchsorted(arrivals_s, [2.5 * NOTICED_S, 0.5 * NOTICED_S])
    assert device.service_ms(4, int(here), BUDGET_MS) < BUDGET_MS / 2
    assert device.service_ms(4, int(gone), BUDGET_MS) == BUDGET_MS
    assert 10 < device.service_ms(4, int(gone), 1.0) < 30


def test_no_system_is_worth_more_than_the_oracle(systems: dict[str, ScoredSystem]) -> None:
    oracle = systems[ORACLE]
    assert all(one.score <= oracle.score for one in systems.values())
    assert oracle.without_memory == 0


def test_all_levels_together_are_ahead_of_each_alone(systems: dict[str, ScoredSystem]) -> None:
    ours = systems[EVERYTHING]
    assert ours.attainment > 0.97
    for name in ("elastic only", "exits only", "engine only", "offloading only", "nothing adapts"):
        assert ours.score > systems[name].score, name
    assert systems["nothing adapts"].without_memory > 0.15
    assert ours.accuracy > systems[STAY].accuracy
    assert ours.energy_mj == systems[STAY].energy_mj


def test_what_runs_besides_takes_energy_and_answers_nothing(played: PlayedScenario) -> None:
    outcome, table = played.play(), played.rows.table
    assert outcome.rows_R is not None
    alone = played.scored("alone", outcome, played.left_R)
    besides_R = np.where(np.arange(len(outcome.rows_R)) % 2, 4, -1)
    both = played.scored("both", replace(outcome, besides_R=besides_R), played.left_R)
    assert (both.attainment, both.accuracy) == (alone.attainment, alone.accuracy)
    more_mj = table.energy_mj_V[4] * (besides_R >= 0)
    assert both.energy_mj == pytest.approx(alone.energy_mj + more_mj.mean())
    kept = VariantLookUp(table).kept_rows
    span_mj = np.ptp(table.energy_mj_V[list(kept)])
    assert alone.score - both.score == pytest.approx(((1 - played.mu_R) * more_mj / span_mj).mean())


def test_a_scenario_is_played_alike_from_one_seed(systems: dict[str, ScoredSystem]) -> None:
    again = drawn()
    assert again.scored(EVERYTHING, again.play(), again.adapted_R) == systems[EVERYTHING]
