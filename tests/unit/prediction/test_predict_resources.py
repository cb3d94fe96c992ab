"""Memory, multiply-accumulates, parameters and energy of populations: the same as of single SubNets."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

import tailor_ir
from profiling_agents.messages import MIB
from tailor_ir.memory import ONNXRUNTIME, Rules
from tasks.base.errors import UserError
from tasks.prediction import resources
from tasks.prediction.resources import (
    EnergyPredictor,
    EnergySettings,
    MemoryPredictor,
    lone_energy_mj,
    operator_energy_mj,
)
from tasks.prediction.sums import Sums, mac_sums, parameter_sums
from tests.support.ir.elastic_networks import NETWORKS, compiled

SUBNETS = 150
RULES = (ONNXRUNTIME, Rules(channel_block=1, same_shape=False), Rules(channel_block=8), Rules(same_shape=False))
DEFAULTS = EnergySettings()


@cache
def network(name: str) -> tailor_ir.SuperNet:
    return compiled(name)


def population(net: tailor_ir.SuperNet, seed: int = 0) -> np.ndarray:
    """The largest, the smallest, and random SubNets, not canonical: choices of skipped blocks are random, too."""
    rng = np.random.default_rng(seed)
    random = rng.integers(0, net.space.cardinalities, size=(SUBNETS, len(net.space.variables)))
    return np.concatenate([net.space.encode([net.max_config, net.min_config]), random])


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_peak_memory_of_a_population_is_that_of_each_subnet(name: str, rules: Rules) -> None:
    net = network(name)
    codes = population(net)
    alone = [net.peak_activation_bytes(net.space.decode(row), rules) for row in codes]
    assert MemoryPredictor.compile(net, rules).peak_bytes(codes).tolist() == alone
    assert len(set(alone)) > 1


@pytest.mark.parametrize("name", NETWORKS)
def test_counts_of_a_population_are_those_of_each_subnet(name: str) -> None:
    net = network(name)
    codes = population(net)
    configs = [net.space.decode(row) for row in codes]
    assert mac_sums(net).predict(codes).tolist() == [net.macs(config) for config in configs]
    assert parameter_sums(net).predict(codes).tolist() == [net.parameters(config) for config in configs]


def test_memory_is_parameters_and_activations() -> None:
    net = network("convolution and BatchNorm")
    predictor, codes = MemoryPredictor.compile(net), population(net)
    parts = 4 * parameter_sums(net).predict(codes) + predictor.peak_bytes(codes)
    np.testing.assert_array_equal(predictor.predict(codes), parts / MIB)


def test_a_population_of_none_has_no_memory() -> None:
    net = network("convolution and BatchNorm")
    assert MemoryPredictor.compile(net).peak_bytes(net.space.encode([])).tolist() == []


def test_energy_of_a_population_is_the_sum_over_the_operators_and_weights_of_each_subnet() -> None:
    net = network("attention, linear and LayerNorm")
    codes = population(net)
    expected = []
    for row in codes:
        operators = net.operators(net.space.decode(row))
        weights = 4 * sum(feature.parameters for feature in operators)
        pj_per_byte = 12.5 if weights <= 2**20 else 243.75
        expected.append(sum(operator_energy_mj(f, DEFAULTS) for f in operators) + weights * pj_per_byte * 1e-9)
    np.testing.assert_allclose(EnergyPredictor.compile(net, DEFAULTS).predict(codes), expected, rtol=1e-12)


def test_measured_energy_takes_precedence_and_none_and_zero_are_unknown() -> None:
    net = network("convolution and BatchNorm")
    row = net.space.encode([net.max_config])
    operators = net.operators(net.max_config)
    model = EnergyPredictor.compile(net, DEFAULTS).predict(row)
    all_measured = {feature.digest: 2.0 for feature in net.unique_operators()}
    assert EnergyPredictor.compile(net, DEFAULTS, all_measured).predict(row).tolist() == [2.0 * len(operators)]
    unknown = {feature.digest: value for feature, value in zip(operators, (None, 0.0), strict=False)}
    assert EnergyPredictor.compile(net, DEFAULTS, unknown).predict(row).tolist() == model.tolist()


def test_where_some_operators_are_measured_the_model_of_the_rest_is_scaled_to_them() -> None:
    """By hand: of three ratios between sensor and model, 40, 50 and 60, the middle one counts."""
    net = network("convolution and BatchNorm")
    codes = population(net)
    model = {f: operator_energy_mj(f, DEFAULTS) + 4 * f.parameters * 12.5e-9 for f in net.unique_operators()}
    ratios = dict(zip((f for f in model if f.macs), (40.0, 60.0, 50.0), strict=False))
    measured = {feature.digest: ratio * model[feature] for feature, ratio in ratios.items()}
    expected = [sum(ratios.get(f, 50.0) * model[f] for f in net.operators(net.space.decode(code))) for code in codes]
    predictor = EnergyPredictor.compile(net, DEFAULTS, measured)
    np.testing.assert_allclose(predictor.predict(codes), expected, rtol=1e-12)
    batches = EnergyPredictor.compile(net, DEFAULTS, {digest: 8 * mj for digest, mj in measured.items()}, 8)
    np.testing.assert_allclose(batches.predict(codes), expected, rtol=1e-12)


def test_weights_that_fit_into_no_cache_come_from_memory_each_time() -> None:
    feature = max(network("convolution and BatchNorm").unique_operators(), key=lambda f: f.parameters)
    small = EnergySettings(cache_bytes=(1024, 4 * feature.parameters - 4))
    large = EnergySettings(cache_bytes=(1024, 4 * feature.parameters))
    for settings, pj_per_byte in ((small, 243.75), (large, 12.5)):
        weights = 4 * feature.parameters * pj_per_byte * 1e-9
        assert lone_energy_mj(feature, settings) == pytest.approx(
            operator_energy_mj(feature, settings) + weights, rel=1e-12
        )


def test_an_operator_costs_its_macs_and_the_bytes_of_each_level() -> None:
    """By hand: a 1 x 1 convolution between 16 and 32 channels, 8 x 8 positions."""
    feature = next(
        f
        for f in network("depthwise convolution, centre of the kernel").unique_operators()
        if f.operator == "Conv" and f.macs == 16 * 16 * 64 * 2 and not f.epilogue
    )
    activations = 4 * sum(int(np.prod(s)) for s in (*feature.input_shapes, *feature.output_shapes))
    moved, patches = activations + 4 * feature.parameters, 4 * 2 * feature.macs / (512 / 4) ** 0.5
    near = feature.macs * 4.6 + max(moved, patches) * 2.5
    assert operator_energy_mj(feature, DEFAULTS) == pytest.approx(near * 1e-9, rel=1e-12)
    small = EnergySettings(cache_bytes=(1024, 2**20))
    far = near + max(activations, 4 * 2 * feature.macs / (1024 / 4) ** 0.5) * 12.5
    assert operator_energy_mj(feature, small) == pytest.approx(far * 1e-9, rel=1e-12)


def test_smaller_caches_never_cost_less() -> None:
    net = network("grouped convolution and GroupNorm")
    codes = population(net)
    large = EnergyPredictor.compile(net, EnergySettings(cache_bytes=(2**16, 2**22))).predict(codes)
    small = EnergyPredictor.compile(net, EnergySettings(cache_bytes=(2**12, 2**14))).predict(codes)
    assert (small >= large).all()
    assert (small > large).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cache_bytes": (2**20, 2**15)}, "allowed: ascending, above register_bytes"),
        ({"register_bytes": 2**16}, "allowed: ascending, above register_bytes"),
        ({"cache_pj_per_byte": (2.5,)}, "a number from 0 on for each of 2"),
        ({"cache_pj_per_byte": (2.5, -1.0)}, "a number from 0 on for each of 2"),
        ({"dram_pj_per_byte": -1}, "greater than or equal to 0"),
        ({"channel_block": 0}, "greater than or equal to 1"),
    ],
)
def test_a_device_that_cannot_be_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        resources.Settings.model_validate(settings)


def test_predictors_are_read_as_they_were_written(tmp_path: Path) -> None:
    net = network("convolution and BatchNorm")
    codes, file = population(net), tmp_path / "predictor.json"
    macs, energy = mac_sums(net), EnergyPredictor.compile(net, DEFAULTS)
    macs.save(file)
    np.testing.assert_array_equal(Sums.load(file).predict(codes), macs.predict(codes))
    energy.save(file)
    np.testing.assert_array_equal(EnergyPredictor.load(file).predict(codes), energy.predict(codes))


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        '{"cardinalities":[2],"tables":[{"columns":[1],"values":[1.0]}]}',
        '{"cardinalities":[2],"tables":[{"columns":[0],"values":[1.0]}]}',
        '{"cardinalities":[2],"tables":[{"columns":[0],"values":[1.0,NaN]}]}',
        '{"cardinalities":[2],"tables":[{"columns":[0],"values":[1.0,Infinity]}]}',
    ],
)
def test_a_file_that_is_no_predictor_is_named_in_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "macs.json"
    file.write_text(text)
    with pytest.raises(UserError, match=r"macs\.json'.*run the predict stage again: autotailor predict") as caught:
        Sums.load(file)
    assert "\n" not in str(caught.value)


def test_the_stage_writes_what_the_largest_and_the_smallest_subnet_need(tmp_path: Path) -> None:
    net = network("convolution and BatchNorm")
    net.save(tmp_path / "supernet")
    result = resources.run(resources.Settings(), tmp_path / "supernet", tmp_path)
    assert json.loads((tmp_path / resources.RESOURCES_FILE).read_text()) == result
    for row, config in zip(result["subnets"], (net.max_config, net.min_config), strict=True):
        peak = net.peak_activation_bytes(config)
        assert (row["macs"], row["parameters"]) == (net.macs(config), net.parameters(config))
        assert row["peak_activations_mib"] == peak / MIB
        assert row["peak_arena_mib"] == net.peak_arena_bytes(config) / MIB >= row["peak_activations_mib"]
        assert row["memory_mib"] == (4 * net.parameters(config) + peak) / MIB
        assert row["energy_mj"] > 0
    largest, smallest = result["subnets"]
    assert largest["energy_mj"] > smallest["energy_mj"]
    assert largest["memory_mib"] > smallest["memory_mib"]
