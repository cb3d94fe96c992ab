"""Tables are what they were: each operator over the choices that it depends on, and the latencies of a look-up table."""

import pytest

from tasks.prediction.sums import Sums
from tests.support.golden import predictions, records
from tests.support.golden.fixtures import Golden
from tests.support.golden.networks import cases, network

NETWORKS = ("smallest", "attention", "nested", "mobilenetv2", "levit", "densenet121", "hrnet_w18_small")
RTOL = 1e-9
"""Sums of float64 numbers, in any order; all else is exact."""


@pytest.mark.long_cases("mobilenetv3_small_050")
@pytest.mark.parametrize("name", cases(NETWORKS))
def test_tables_of_a_network_are_what_they_were(name: str, golden: Golden) -> None:
    net = network(name)
    sums = Sums.compile(net, {feature: predictions.latency_ms(feature) for feature in net.unique_operators()})
    found = {
        "operator_terms": records.operator_terms(net, predictions.latency_ms),
        "latency_ms": records.choice_means(sums.tables, sums.cardinalities),
    }
    golden(f"tables_{name}", found, rtol=RTOL)
