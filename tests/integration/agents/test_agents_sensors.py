"""Sensors read from trees like those of real devices; what cannot be read is None, and 0 is never an energy."""

from profiling_agents.client import AgentClient, MeasureSettings
from profiling_agents.sensing import sensors
from profiling_agents.sensing.machine import available_cores
from tests.support.agents import agent_models as models


def test_an_agent_tells_its_state_and_its_energy_or_none(agent: AgentClient, backend: str) -> None:
    found = agent.capabilities()
    assert [core.number for core in found.state.cores] == list(available_cores())
    assert 0 < found.state.memory_available_mib < found.memory_mib
    assert found.operating_system == sensors.operating_system()
    job = models.convolution(backend, "conv", channels_in=32, channels_out=32, size=16)
    (plain,) = agent.measure([job])
    assert plain.energy_mj is None
    (result,) = agent.measure([job], MeasureSettings(energy_ms=50.0))
    assert result.state == "ok"
    if found.power_sensors:
        assert result.energy_mj is not None
        assert result.p50_ms is not None
        assert 0 < result.energy_mj < result.p50_ms * 1000  # 1 kW
    else:
        assert result.energy_mj is None
