"""The invariants on networks of the four families: largest = original, elastic = built = exported."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import timm
import torch

import tailor_ir
from tests.support import examples, long
from tests.support.ir.invariants import difference
from tests.support.ir.networks import FAMILIES, from_timm

SUBNETS = examples(20, few=4)
ALSO = ("resnet26", "mobilenetv2_100", "mobilenetv3_large_100", "deit_tiny_distilled_patch16_224")
"""Networks of the same four families as the others."""
ORIGINAL_TOLERANCE = 1e-5  # relative to the output's largest value, fp32
EXPORT_TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=[long(name) if name in ALSO else name for name in FAMILIES])
def pair(request: pytest.FixtureRequest) -> tuple[torch.nn.Module, tailor_ir.SuperNet]:
    model, sample = from_timm(request.param)
    net = tailor_ir.compile(model, sample)
    net.elastic.eval()
    return model, net


@torch.no_grad()
def test_largest_subnet_equals_the_original(pair: tuple[torch.nn.Module, tailor_ir.SuperNet]) -> None:
    model, net = pair
    x = torch.randn(net.input_shape(net.max_config, 4), generator=torch.Generator().manual_seed(2))
    net.elastic.activate(net.max_config)
    assert difference(model(x), net.elastic(x)) <= ORIGINAL_TOLERANCE
    assert difference(model(x), net.build(net.max_config)(x)) <= ORIGINAL_TOLERANCE


@pytest.mark.few("mobilenetv3_small_050")
@torch.no_grad()
def test_elastic_equals_built_equals_exported(pair: tuple[torch.nn.Module, tailor_ir.SuperNet], tmp_path: Path) -> None:
    _, net = pair
    rng = np.random.default_rng(0)
    unique = net.unique_operators()
    for config in [net.min_config, *(net.space.sample(rng) for _ in range(SUBNETS))]:
        x = torch.randn(net.input_shape(config, 2), generator=torch.Generator().manual_seed(3))
        net.elastic.activate(config)
        expected = net.elastic(x)
        assert difference(expected, net.build(config)(x)) <= ORIGINAL_TOLERANCE
        for fold in (False, True):
            net.export(config, tmp_path / "subnet.onnx", fold_batch_norm=fold, batch=2)
            session = onnxruntime.InferenceSession(tmp_path / "subnet.onnx", providers=["CPUExecutionProvider"])
            exported = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
            assert difference(expected, torch.from_numpy(exported)) <= EXPORT_TOLERANCE
        assert set(net.operators(config)) <= unique.keys()


def test_every_family_is_elastic_in_resolution_depth_width_and_expansion(
    pair: tuple[torch.nn.Module, tailor_ir.SuperNet],
) -> None:
    _, net = pair
    kinds = {variable.kind for variable in net.space.variables}
    assert kinds >= {"resolution", "depth", "width_mult", "expand_ratio"}
    assert net.macs(net.min_config) <= 0.5 * net.macs(net.max_config)


@torch.no_grad()
def test_every_variable_changes_the_network(pair: tuple[torch.nn.Module, tailor_ir.SuperNet]) -> None:
    _, net = pair
    full = net.operators(net.max_config)
    for variable in net.space.variables:
        for choice in variable.choices[:-1]:
            assert net.operators({variable.name: choice}) != full, (variable.name, choice)


def test_layers_that_merely_start_equal_do_not_share_a_parameter() -> None:
    model = timm.create_model("test_resnet", num_classes=10)  # fresh: all BatchNorm scales are one
    net = tailor_ir.compile(model, torch.randn(1, 3, 64, 64))
    assert len(net.structure.graph.parameters) == len(list(model.parameters()))


@torch.no_grad()
def test_saved_and_loaded_supernet_gives_the_same_outputs(
    pair: tuple[torch.nn.Module, tailor_ir.SuperNet], tmp_path: Path
) -> None:
    _, net = pair
    net.save(tmp_path / "supernet")
    loaded = tailor_ir.load(tmp_path / "supernet")
    loaded.elastic.eval()
    config = net.space.sample(np.random.default_rng(5))
    x = torch.randn(net.input_shape(config, 2))
    net.elastic.activate(config)
    loaded.elastic.activate(config)
    assert torch.equal(net.elastic(x), loaded.elastic(x))
    assert net.space.variables == loaded.space.variables
