import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_runtime.exits import exit_rates, exits_taken, predict, reach

seeds = st.integers(0, 10**6)


@given(seed=seeds, samples=st.integers(1, 200), exits=st.integers(1, 6), runs=st.integers(1, 5))
def test_expected_latency_is_the_mean_of_simulated_latencies(seed: int, samples: int, exits: int, runs: int) -> None:
    rng = np.random.default_rng(seed)
    confidences, bars = rng.random((samples, exits)), rng.random(exits - 1)
    runs_ms = rng.random((exits, runs)).cumsum(0)
    taken = exits_taken(confidences, bars.tolist())
    found = predict(exit_rates(taken, exits), runs_ms)
    simulated = runs_ms[taken]  # every sample, in every run
    assert found.expected_ms == pytest.approx(simulated.mean(), rel=1e-12)
    for share, value in ((0.5, found.p50_ms), (0.9, found.p90_ms), (0.99, found.p99_ms)):
        assert value == np.quantile(simulated, share, method="inverted_cdf")
    assert found.p50_ms <= found.p90_ms <= found.p99_ms


@given(seed=seeds, exits=st.integers(1, 6))
def test_means_are_sums_over_segments_times_the_samples_that_reach_them(seed: int, exits: int) -> None:
    rng = np.random.default_rng(seed)
    rates, segments = rng.dirichlet(np.ones(exits)), rng.random(exits)
    found = predict(rates, segments.cumsum(), segments)
    assert found.expected_ms == pytest.approx(reach(rates) @ segments)
    assert found.expected_mj == pytest.approx(found.expected_ms)
    assert reach(rates)[0] == pytest.approx(1)


def test_the_99th_percentile_is_that_of_the_exit_that_one_sample_of_fifty_takes() -> None:
    found = predict(np.array([0.9, 0.08, 0.02]), np.array([1.0, 2.0, 5.0]))
    assert (found.p50_ms, found.p90_ms, found.p99_ms) == (1.0, 1.0, 5.0)
