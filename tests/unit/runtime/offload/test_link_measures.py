"""What is measured of links, what probes may take, and traces that are replayed."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.offload.links import DeviceAddress, LinkMeasures, MeasuredLink, ProbeBudget
from adaptive_runtime.offload.links.measures import (
    FIRST_BYTES,
    LEAST_BYTES,
    SHARE,
    SHARES,
    WeightedMean,
    cost_bytes,
    probe_bytes,
)
from benchmarks.simulation.link_trace import BandwidthTrace, LinkRecorder
from tests.support.runtime.device_files import Clock

TRACE = BandwidthTrace(
    origin="drawn",
    duration_s=10.0,
    times_s=(0.0, 4.0, 6.0),
    up_mbps=(5.0, 0.1, 50.0),
    down_mbps=(10.0, 0.2, 100.0),
    round_trip_ms=(4.0, 100.0, 2.0),
)


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=50))
def test_a_weighted_mean_stays_within_its_values_and_knows_their_spread(values: list[float]) -> None:
    mean = WeightedMean()
    for value in values:
        mean.add(value)
    assert min(values) - 1e-9 <= mean.mean <= max(values) + 1e-9
    assert mean.deviation <= max(values) - min(values) + 1e-9
    assert (mean.deviation < 1e-9) == (max(values) - min(values) < 1e-6) or max(values) > min(values)


def test_a_weighted_mean_follows_a_change_and_tells_a_steady_spread() -> None:
    rng = np.random.default_rng(0)
    mean = WeightedMean(0.05)
    for value in rng.normal(10.0, 2.0, 2000):
        mean.add(float(value))
    assert mean.mean == pytest.approx(10.0, abs=1.0)
    assert mean.deviation == pytest.approx(2.0, rel=0.4)
    for _ in range(200):
        mean.add(3.0)
    assert mean.mean == pytest.approx(3.0, abs=0.01)


def test_a_value_that_counts_several_times_weighs_as_the_same_values_one_by_one() -> None:
    once, each = WeightedMean(), WeightedMean()
    for mean in (once, each):
        for _ in range(10):
            mean.add(1.0)
    once.add(3.0, 7.0)
    for _ in range(7):
        each.add(3.0)
    assert once.mean == pytest.approx(each.mean)


def test_a_long_transfer_outweighs_small_payloads_that_a_burst_made_fast() -> None:
    measures = LinkMeasures()
    for _ in range(5):
        measures.up(16_384, 88.0)  # 1.5 Mbit/s
    measures.up(602_112, 4817.0)  # 1 Mbit/s
    found = measures.link.up_mbps
    assert found is not None
    assert 1.0 <= found < 1.05


def test_a_long_transfer_that_is_slow_alone_counts_for_less_than_two_of_them() -> None:
    def after(*takes_ms: float) -> float:
        measures = LinkMeasures()
        for took_ms in (*[1600.0] * 5, *takes_ms):
            measures.up(200_000, took_ms)
        found = measures.link.up_mbps
        assert found is not None
        return found

    assert after() == pytest.approx(1.0)
    assert after(2240.0) > 0.9, "a packet was lost"
    assert after(2240.0, 1600.0, 2240.0, 1600.0) > 0.9
    assert after(2240.0, 2240.0, 2240.0) == pytest.approx(1 / 1.4, rel=0.1), "the link is slower"
    assert after(1000.0) > 1.2, "nothing but the link makes one fast"


def test_bandwidth_is_of_payloads_that_take_time_and_transfers_follow_from_it() -> None:
    measures = LinkMeasures()
    assert measures.link == MeasuredLink()
    assert measures.link.transfer_ms(1, 1) == math.inf
    measures.round_trip(12.0)
    measures.up(LEAST_BYTES - 1, 0.001)
    assert measures.link.up_mbps is None, "a burst says nothing"
    assert measures.link.transfer_ms(0, 0) == 12.0
    assert measures.link.transfer_ms(1, 0) == math.inf
    measures.up(125_000, 100.0)  # 10 Mbit/s
    measures.down(125_000, 50.0)
    link = measures.link
    assert link.up_mbps == pytest.approx(10.0)
    assert link.down_mbps == pytest.approx(20.0)
    assert link.transfer_ms(12_500, 12_500) == pytest.approx(12.0 + 10.0 + 5.0)


def test_a_burst_says_nothing_of_the_bandwidth_and_a_change_says_all() -> None:
    measures = LinkMeasures()
    measures.up(250_000, 20.0)  # 100 Mbit/s
    for _ in range(50):
        measures.up(16_384, 0.05)
    assert measures.link.up_mbps == pytest.approx(100)
    for _ in range(50):
        measures.up(16_384, 26.2)  # slower by far
    assert measures.link.up_mbps == pytest.approx(5, rel=0.01)
    for _ in range(50):
        measures.up(16_384, 0.05)  # faster again; a block tells how much
    measures.up(250_000, 20.0)
    found = measures.link.up_mbps
    assert found is not None
    assert found > 60


def test_small_payloads_that_are_slow_count_together_and_fast_ones_hint() -> None:
    measures = LinkMeasures()
    measures.up(4000, 20.0)
    assert measures.link.up_mbps is None, "nothing to compare with"
    measures.up(125_000, 100.0)  # 10 Mbit/s
    for _ in range(40):
        measures.up(FIRST_BYTES + 2600, 2.1)
    assert not measures.changed
    assert measures.link.up_mbps == pytest.approx(10.0)
    measures.up(FIRST_BYTES + 2600, 0.01)
    assert measures.changed
    assert measures.link.up_mbps == pytest.approx(10.0), "a burst may have carried it"
    measures.up(50_000, 4.0)  # 100 Mbit/s, and no burst
    assert not measures.changed
    assert measures.link.up_mbps == pytest.approx(100.0), "what was before does not count"
    assert measures.restarts == 1
    for _ in range(400):
        measures.up(FIRST_BYTES + 2600, 20.8)
    assert measures.link.up_mbps == pytest.approx(1.0, rel=0.3), "slow ones renew it, several together"
    measures.up(1000, 500.0)
    assert measures.link.up_mbps == pytest.approx(1.0, rel=0.3), "one packet has no time of its own"


def test_a_hint_that_is_none_changes_nothing() -> None:
    measures = LinkMeasures()
    for _ in range(10):
        measures.down(125_000, 100.0)
    measures.down(FIRST_BYTES + 2600, 0.0)
    measures.down(25_000, 21.0)
    assert not measures.changed
    assert measures.restarts == 0
    assert measures.link.down_mbps == pytest.approx(10.0, rel=0.05)


class IdleLink:
    """A link that carries probes alone. burst: so many bytes of a train come at once."""

    def __init__(self, mbps: float, burst: int = 0) -> None:
        self.mbps, self.burst, self.now_s = mbps, burst, 0.0
        self.budget, self.measures = ProbeBudget(0.0), LinkMeasures()
        self.taken = dict.fromkeys(SHARES, 0.0)
        self._block(1 << 16)

    def _block(self, size: int) -> None:
        for add in (self.measures.up, self.measures.down):
            add(size, size * 8e-3 / self.mbps)

    @property
    def believed_mbps(self) -> float:
        return self.measures.link.up_mbps or 0.0

    def wait(self, seconds: float, until_mbps: float = math.inf) -> float:
        """How long it was, until so much is believed at most."""
        start_s = self.now_s
        while self.now_s - start_s < seconds and self.believed_mbps < until_mbps:
            self.now_s += 0.25
            mbps, changed = self.believed_mbps, self.measures.changed
            kind = self.budget.due(self.now_s, mbps, changed=changed)
            if kind is None:
                continue
            longer = self.budget.longer
            self.taken[kind] += cost_bytes(kind, mbps, longer)
            size, before = probe_bytes(kind, mbps, longer), self.measures.restarts
            if kind == "train":
                took_ms = max(size - FIRST_BYTES - self.burst, 0) * 8e-3 / self.mbps
                self.measures.up(size, took_ms)
                self.measures.down(size, took_ms)
            elif kind == "block":
                self._block(size)
                if changed:
                    self.budget.answered(self.now_s, confirmed=self.measures.restarts > before)
        return self.now_s - start_s


@pytest.mark.parametrize(("mbps", "within_s"), [(1.0, 90.0), (5.0, 20.0), (10.0, 12.0), (50.0, 12.0), (200.0, 60.0)])
def test_an_idle_link_that_became_faster_is_noticed_soon(mbps: float, within_s: float) -> None:
    link = IdleLink(mbps)
    link.wait(400.0)
    assert sum(link.taken.values()) <= SHARE * mbps * 125e3 * 400.0
    link.mbps = 8 * mbps
    assert link.wait(600.0, until_mbps=6 * mbps) <= within_s


def test_trains_become_longer_than_the_bursts_of_a_shaper() -> None:
    link = IdleLink(10.0, burst=1800)
    link.wait(400.0)
    assert link.budget.longer > 1
    assert sum(link.taken.values()) <= SHARE * 10.0 * 125e3 * 400.0
    link.mbps = 80.0
    assert link.wait(600.0, until_mbps=60.0) <= 25.0


def test_an_idle_link_that_became_slower_is_noticed_soon() -> None:
    link = IdleLink(10.0)
    link.wait(400.0)
    link.mbps = 1.0
    link.wait(20.0)
    assert link.believed_mbps == pytest.approx(1.0, rel=0.2)


def test_a_shaper_that_lets_bursts_pass_costs_few_blocks() -> None:
    """Its trains hint at a faster link each time, which blocks deny."""
    plain, bursty = IdleLink(5.0), IdleLink(5.0, burst=1 << 16)
    for link in (plain, bursty):
        link.wait(3600.0)
        assert link.believed_mbps == pytest.approx(5.0)
        assert sum(link.taken.values()) <= SHARE * 5.0 * 125e3 * 3600.0
    assert bursty.taken["block"] <= plain.taken["block"] + cost_bytes("block", 5.0), "the saved one"


@given(st.floats(0.05, 1000.0), st.floats(0.05, 3.0), st.integers(10, 3000), st.booleans())
def test_probes_take_at_most_a_thousandth_of_a_link(mbps: float, step_s: float, steps: int, changed: bool) -> None:
    budget, taken = ProbeBudget(0.0), 0.0
    for step in range(1, steps + 1):
        kind = budget.due(step * step_s, mbps, changed=changed)
        taken += 0.0 if kind is None else cost_bytes(kind, mbps)
        assert taken <= SHARE * mbps * 125e3 * step * step_s * (1 + 1e-9)


@pytest.mark.parametrize("mbps", [1.0, 5.0, 100.0])
def test_an_idle_link_is_probed_in_all_ways(mbps: float) -> None:
    budget = ProbeBudget(0.0)
    kinds = [budget.due(second / 4, mbps) for second in range(1, 4 * 600)]
    assert kinds.count("ping") >= 20
    assert kinds.count("train") >= 7
    assert kinds.count("block") >= 3


def test_a_trace_is_the_same_after_it_was_a_file_and_begins_again_at_its_end(tmp_path: Path) -> None:
    TRACE.write(tmp_path / "trace.json")
    found = BandwidthTrace.read(tmp_path / "trace.json")
    assert found == TRACE
    assert [found.at(time_s).up_mbps for time_s in (0.0, 3.9, 4.0, 6.5, 9.9, 10.0, 14.5)] == [5, 5, 0.1, 50, 50, 5, 0.1]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"times_s": [0.0, 4.0, 4.0]}, "times_s do not rise from 0"),
        ({"up_mbps": [1.0]}, "1 values for 3 times"),
        ({"up_mbps": [1.0, 0.0, 1.0]}, "up_mbps.1"),
        ({"duration_s": 5.0}, "a time is not before the end, 5 s"),
        ({"secret": 1}, "secret"),
    ],
)
def test_a_trace_that_cannot_be_is_one_line(change: dict[str, object], line: str, tmp_path: Path) -> None:
    import json

    (tmp_path / "trace.json").write_text(json.dumps({**TRACE.model_dump(), **change}))
    with pytest.raises(AdaptiveError, match=line):
        BandwidthTrace.read(tmp_path / "trace.json")


def test_a_link_is_recorded_as_a_trace() -> None:
    clock = Clock(50.0)
    recorder = LinkRecorder("a link", clock)
    with pytest.raises(AdaptiveError, match="nothing is recorded; use the link first"):
        recorder.trace()
    recorder.add(MeasuredLink())
    for up in (1.0, 2.0, 3.0):
        recorder.add(MeasuredLink(up_mbps=up, down_mbps=2 * up, round_trip_ms=4.0))
        clock.now_s += 2.0
    found = recorder.trace()
    assert (found.times_s, found.up_mbps, found.down_mbps) == ((0.0, 2.0, 4.0), (1.0, 2.0, 3.0), (2.0, 4.0, 6.0))
    assert found.duration_s == 6.0


@pytest.mark.parametrize(
    "url", ["http://host:1", "tcp://host", "tcp://:80", "tcp://host:99999", "host:80", "tls://[::1"]
)
def test_an_address_that_is_none_is_one_line(url: str) -> None:
    with pytest.raises(AdaptiveError, match="allowed: tcp://HOST:PORT, tls://HOST:PORT"):
        DeviceAddress(url=url, token="t" * 16).check()
    with pytest.raises(AdaptiveError, match="allowed: tcp://HOST:PORT, tls://HOST:PORT"):
        DeviceAddress(url="tcp://host:1", token="t" * 16, peer_url=url).check()
    assert "t" * 16 not in repr(DeviceAddress(url=url, token="t" * 16))
