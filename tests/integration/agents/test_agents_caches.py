"""Cold caches are another metric than warm ones, and are really cold."""

import numpy as np
import pytest

from profiling_agents.client import AgentClient, MeasureSettings
from profiling_agents.sensing.machine import last_level_cache_bytes
from tests.support.agents import agent_models as models
from tests.support.agents.agents_caches import CORE, ROUNDS


@pytest.mark.skipif(last_level_cache_bytes(CORE) is None, reason="this machine does not say how large its caches are")
def test_a_device_measures_a_model_with_cold_caches(agent: AgentClient, backend: str) -> None:
    job = models.convolution(backend, "conv", channels_in=64, channels_out=64, size=8)
    settings = MeasureSettings(time_cap_ms=100.0)
    slower = []
    for _ in range(ROUNDS):
        (warm,) = agent.measure([job], settings)
        (cold,) = agent.measure([job], settings.model_copy(update={"cache": "cold"}))
        assert (warm.state, cold.state, cold.repeats) == ("ok", "ok", 1)
        assert warm.p50_ms is not None
        assert cold.p50_ms is not None
        slower.append(cold.p50_ms / warm.p50_ms)
    assert np.median(slower) > 1.1
