"""The profiler's equations are fitted as they are written: known coefficients come back, none is negative."""

import numpy as np
import pytest
import torch

import tailor_ir
from benchmarks.profiler_equations import fitted, layer_terms
from tests.support.ir.networks import small_net

CACHE_BYTES = 4096


def terms() -> np.ndarray:
    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 16, 16), {"*.width_mult": [0.5, 1]})
    return np.array([layer_terms(feature, CACHE_BYTES) for feature in net.unique_operators()])


def test_terms_of_a_layer_are_those_of_the_equations() -> None:
    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 16, 16), {})
    for feature in net.unique_operators():
        macs, intense, hit, missed = layer_terms(feature, CACHE_BYTES)
        sizes = [int(np.prod(shape)) for shape in (*feature.input_shapes, *feature.output_shapes)]
        elements = feature.parameters + sum(sizes)
        assert hit + missed == pytest.approx(elements)
        assert intense == pytest.approx(macs * macs / elements)
        assert hit <= CACHE_BYTES / 4 + 1e-9


def test_known_coefficients_come_back() -> None:
    found = terms()
    latency_ms = found @ np.array([0.0, 3e-7, 1e-6, 5e-6])
    assert fitted(found, latency_ms, "latency") == pytest.approx([0.0, 3e-7, 1e-6, 5e-6], rel=1e-4)
    energy_mj = found @ np.array([1e-6, 0.0, 6e-6, 2e-4])
    assert fitted(found, energy_mj, "energy") == pytest.approx([1e-6, 0.0, 6e-6, 2e-4], rel=1e-4)


def test_no_coefficient_is_negative() -> None:
    found = terms()
    noise = np.random.default_rng(0).uniform(0.5, 2.0, len(found))
    for equation in ("latency", "energy", "MACs"):
        assert (fitted(found, noise, equation) >= 0).all()
