"""Operators read off the axes: complete, minimal, and measurable."""

from itertools import product

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import tailor_ir
from tests.support.ir.networks import from_timm, small_net


@pytest.fixture(scope="module")
def net() -> tailor_ir.SuperNet:
    return tailor_ir.compile(small_net(), torch.randn(1, 3, 32, 32))


def test_unique_operators_are_exactly_those_of_all_subnets(net: tailor_ir.SuperNet) -> None:
    names = [variable.name for variable in net.space.variables]
    found = {
        feature
        for choices in product(*(variable.choices for variable in net.space.variables))
        for feature in net.operators(dict(zip(names, choices, strict=True)))
    }
    assert found == net.unique_operators().keys()


def test_every_unique_operator_has_a_witness(net: tailor_ir.SuperNet) -> None:
    for feature, config in net.unique_operators().items():
        assert feature in net.operators(config)


def test_terms_add_up_to_the_operators_of_a_subnet(net: tailor_ir.SuperNet) -> None:
    rng = np.random.default_rng(0)
    terms = net.operator_terms()
    for row in net.space.random_codes(20, rng):
        picked = [term.features[tuple(row[list(term.variables)])] for term in terms]
        assert tuple(f for f in picked if f is not None) == net.operators(net.space.decode(row))


def test_macs_and_parameters_of_a_convolution_are_counted_by_hand(net: tailor_ir.SuperNet) -> None:
    stem = net.operators(net.max_config)[0]
    assert stem.operator == "Conv"
    assert stem.epilogue == ("Relu",)
    assert stem.macs == 16 * 16 * 16 * 3 * 9
    assert stem.parameters == 16 * 3 * 9 + 16
    total = net.parameters(net.max_config)
    parameters = sum(p.numel() for p in small_net().parameters())
    scales = 16 + 3 * (32 + 16)  # BatchNorm's scale goes into the weights, its bias becomes the convolution's
    assert total == parameters - scales - 16  # the stem's convolution has a bias already


@pytest.mark.few("mobilenetv3_small_050")
@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "vit_tiny_patch16_224"])
def test_single_operator_models_run_with_the_stated_shapes(name: str) -> None:
    network, sample = from_timm(name)
    net = tailor_ir.compile(network, sample)
    rng = np.random.default_rng(0)
    for feature in net.operators(net.min_config):
        model = tailor_ir.operator_model(feature)
        onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        feeds = {f"in{i}": rng.random(s).astype(np.float32) for i, s in enumerate(feature.input_shapes)}
        outputs = session.run(None, feeds)
        assert tuple(o.shape for o in outputs) == feature.output_shapes
        assert tailor_ir.OperatorFeature.from_json(feature.to_json()) == feature


@pytest.mark.long
def test_attention_between_its_projections_is_one_operator() -> None:
    network, sample = from_timm("vit_tiny_patch16_224")
    net = tailor_ir.compile(network, sample)
    operators = [feature.operator for feature in net.operators(net.max_config)]
    assert operators.count("Attention") == 12
    assert "Softmax" not in operators
