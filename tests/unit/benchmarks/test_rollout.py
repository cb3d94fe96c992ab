"""Simulated roll-outs end as their bundles deserve it."""

import pytest

from benchmarks import rollout
from benchmarks.rollout_fleet import BundleChange
from tasks.operations.fleet.settings import RolloutSettings


def test_a_much_slower_bundle_is_halted_at_the_first_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "AT_ONCE", 4)
    settings = RolloutSettings(draws=999, false_alarms=0.2, most_windows=24)
    found = list(rollout.played(BundleChange(latency=3.0), 300, 4, settings))
    row = rollout.row_of("slow", found)
    assert (row["halted"], row["in_first_stage"]) == (4, 4)
    assert row["largest_share"] == pytest.approx(10 / 300), "at least ten devices"
    assert set(row["measures"]) <= {"latency", "in_time"}


def test_intervals_are_those_of_clopper_and_pearson() -> None:
    assert rollout.interval(0, 200) == pytest.approx((0.0, 0.01828), abs=1e-5)
    assert rollout.interval(7, 200) == pytest.approx((0.01418, 0.07078), abs=1e-4)
