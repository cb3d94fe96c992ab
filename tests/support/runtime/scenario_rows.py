"""Rows over all levels, and a scenario, for tests: two SubNets, an exit, two engines, and another device."""

from adaptive_runtime.offload.split import COORDINATOR, LinkUse, PlannedPlacement
from adaptive_runtime.policy import VariantTable
from adaptive_runtime.state.traces import PhaseDrift, PhaseLink, Scenario, ScenarioPhase
from benchmarks.simulation import LevelRows, RowLevels

SERVER = "server"
LINK = PhaseLink(up_mbps=20.0, down_mbps=20.0, round_trip_ms=4.0)
LEVELS = (
    RowLevels("large", engine="fp32"),
    RowLevels("large", "exit 1", "fp32"),
    RowLevels("large", engine="int8"),
    RowLevels("small", engine="fp32"),
    RowLevels("large", engine="fp32", placement=SERVER),
    RowLevels("small", engine="fp32", placement=SERVER),
)


def placed(*, coordinator_ms: float, others_ms: float) -> PlannedPlacement:
    """A plan that sends 3 KiB to the server."""
    return PlannedPlacement(
        devices=(COORDINATOR, SERVER) if coordinator_ms else (SERVER,),
        coordinator_ms=coordinator_ms,
        others_ms=others_ms,
        links={SERVER: LinkUse(messages=1, up_bytes=3072, down_bytes=64)},
    )


def level_rows() -> LevelRows:
    """The table with the plans of its last two rows."""
    table = VariantTable(
        names=tuple(" ".join(filter(None, one)) for one in LEVELS),
        accuracy=(0.95, 0.88, 0.93, 0.85, 0.95, 0.85),
        latency_ms=(20.0, 11.0, 12.0, 5.0, 7.5, 6.0),
        latency_error=(0.02,) * len(LEVELS),
        energy_mj=(40.0, 22.0, 25.0, 10.0, 14.0, 13.0),
        memory_mib=(16.0, 16.0, 6.0, 4.0, 16.0, 4.0),
    )
    plans = {4: (placed(coordinator_ms=0.0, others_ms=2.5),), 5: (placed(coordinator_ms=1.0, others_ms=0.5),)}
    return LevelRows(table, LEVELS, plans)


def scenario(phase_s: float = 40.0) -> Scenario:
    """Quiet, then little memory and load, then a device that is there, then drift and a low battery."""
    peers = {SERVER: LINK}
    drift = PhaseDrift(corruption="contrast", severity=5, lost=0.2, stays=0.25)
    phases = (
        ScenarioPhase(name="quiet", lasts_s=phase_s, requests_per_s=4.0, battery=(0.9, 0.8)),
        ScenarioPhase(
            name="full",
            lasts_s=phase_s,
            requests_per_s=4.0,
            battery=(0.8, 0.6),
            memory=(0.3, 0.3),
            cpu=0.8,
            bandwidth=0.4,
            load="steps",
        ),
        ScenarioPhase(name="there", lasts_s=phase_s, requests_per_s=4.0, battery=(0.6, 0.5), cpu=0.5, peers=peers),
        ScenarioPhase(
            name="dark", lasts_s=2 * phase_s, requests_per_s=4.0, battery=(0.5, 0.21), memory=(0.8, 0.9), drift=drift
        ),
    )
    return Scenario(origin="four phases", memory_total_mib=20.0, phases=phases)
