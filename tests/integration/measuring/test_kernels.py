"""ncnn computes the same by every kernel, and its files name the kernels that were asked for."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import timm
import torch

import tailor_ir
from tasks.base.errors import UserError
from tasks.base.schemas.placed import ChosenImplementations
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.ncnn.conversion import convert, convert_operators
from tasks.evaluation.ncnn.files import (
    MASKS,
    NcnnFiles,
    has_kernels,
    implementations,
    masks_of,
    require_masks,
    with_implementation,
)
from tasks.measuring.subnets import implementations_of
from tests.support.ir.networks import perturb
from tests.support.tables.ncnn_runs import run_ncnn
from tests.support.tables.operator_models import OPERATORS, convolution, model

TOLERANCE = 1e-4  # relative to the largest output; Winograd's algorithm rounds differently


def transposed(channels: int, filters: int, size: int) -> bytes:
    weights = np.random.default_rng(0).standard_normal((channels, filters, 2, 2), dtype=np.float32)
    nodes = [("ConvTranspose", ["in0", "w"], ["out0"], {"kernel_shape": [2, 2], "strides": [2, 2]})]
    return model(nodes, [(1, channels, size, size)], [(1, filters, 2 * size, 2 * size)], {"w": weights})


CONVOLUTIONS = {
    "3x3": (convolution(16, 24, 12), ("sgemm", "direct")),
    "3x3 with stride 2": (convolution(16, 24, 12, stride=2), ("direct",)),
    "grouped": (convolution(16, 32, 12, groups=2), ("direct",)),
    "depthwise": (convolution(16, 16, 12, groups=16), ()),
    "transposed": (transposed(16, 8, 6), ("direct",)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_computes_the_same_by_each_of_its_kernels(name: str, tmp_path: Path) -> None:
    content, expected = CONVOLUTIONS[name]
    (files,) = convert_operators([content])
    assert isinstance(files, NcnnFiles)
    assert implementations(files) == expected
    shape = [dim.dim_value for dim in onnx.load_from_string(content).graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    (own,) = run_ncnn(files, [x], 1, tmp_path)
    for implementation in expected:
        chosen = with_implementation(files, implementation)
        assert set(masks_of(chosen).values()) == {MASKS[implementation]}
        assert chosen.bin == files.bin
        (got,) = run_ncnn(chosen, [x], 1, tmp_path)
        np.testing.assert_allclose(got, own, atol=TOLERANCE * np.abs(own).max(), rtol=0)
    assert masks_of(with_implementation(files, "")) == {}


def test_implementations_and_runtimes_that_do_not_fit_are_one_line() -> None:
    require_masks("1.0.20260114", MASKS)
    require_masks("a build of one's own", MASKS)
    require_masks("1.0.20210525", [])
    with pytest.raises(UserError) as unknown:
        require_masks("1.0.20260114", ["sgemm", "im2col"])
    assert str(unknown.value) == (
        "implementations: got 'im2col' for a convolution in ncnn; allowed: sgemm, direct; "
        "they are of another version of autotailor; profile again: autotailor profile"
    )
    with pytest.raises(UserError) as old:
        require_masks("1.0.20210525", ["sgemm"])
    assert str(old.value) == (
        "ncnn 1.0.20210525 on the device: knows no masks of layers, which files for it name; "
        "install a newer one there: pip install 'ncnn>=1.0.20221128'"
    )


def test_operators_without_a_convolution_have_no_kernels() -> None:
    plain = [content for content in OPERATORS.values() if b"Conv" not in content]
    converted = [one for one in convert_operators(plain) if isinstance(one, NcnnFiles)]
    assert converted
    assert not any(map(implementations, converted))


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext"])
def test_a_whole_subnet_names_the_kernels_of_its_operators_in_fp32_and_fp16(name: str) -> None:
    torch.manual_seed(0)
    network = perturb(timm.create_model(name))
    assert isinstance(network.pretrained_cfg, dict)
    net = tailor_ir.compile(network, torch.zeros(1, *network.pretrained_cfg["input_size"]))
    config = net.space.sample(np.random.default_rng(0))
    features = [feature for feature in net.operators(config) if feature.operator == "Conv"]
    chosen = ChosenImplementations(operators={feature.digest: "direct" for feature in features[::2]})
    names = implementations_of(net, config, chosen)
    content = onnx_of(net, config)
    files, half = convert(content, implementations=names), convert(content, fp16=True, implementations=names)
    plain = convert(content)
    with_kernels = [layer.name for layer in plain.layers() if has_kernels(layer)]
    assert 0 < len(masks_of(files)) < len(with_kernels)
    assert set(masks_of(files)) <= set(with_kernels)
    assert masks_of(half) == masks_of(files)
    assert files.bin == plain.bin
    every = ChosenImplementations(operators={feature.digest: "direct" for feature in features})
    all_named = convert(content, implementations=implementations_of(net, config, every))
    assert list(masks_of(all_named)) == with_kernels
