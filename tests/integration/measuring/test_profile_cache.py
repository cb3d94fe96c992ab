"""What was measured with cold caches and with warm ones is kept apart in the table, and says which it is."""

from pathlib import Path
from statistics import median

import pytest

from profiling_agents.client import AgentClient
from tasks.base.progress import Silent
from tasks.measuring import operators as enumeration
from tasks.measuring import profile
from tests.integration.measuring.test_profile import QUICK


@pytest.mark.long
def test_cold_and_warm_entries_are_kept_apart(supernet: Path, device: AgentClient, tmp_path: Path) -> None:
    operators = tmp_path / "operators"
    operators.mkdir()
    enumeration.run(supernet, operators, Silent())
    cold = QUICK.model_copy(update={"measure": QUICK.measure.model_copy(update={"cache": "cold"})})
    out = tmp_path / "out"
    count = len(enumeration.read_operators(operators))
    times = {}
    for settings in (QUICK, cold):
        assert profile.run(settings, operators, device, out, Silent())["measured_now"] == count
        table = profile.open_table(settings, out / profile.STORE_FOLDER, device.capabilities())
        entries = table.entries()
        assert {entry.cache for entry in entries} == {settings.measure.cache}
        times_ms = [entry.p50_ms for entry in entries if entry.p50_ms is not None]
        assert len(times_ms) == count
        times[settings.measure.cache] = median(times_ms)
        assert profile.run(settings, operators, device, out, Silent())["measured_now"] == 0
    assert times["cold"] > times["warm"]
