"""SuperNets of a batch size: operators, exported SubNets and inputs are of that many samples, everything else stays."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import tailor_ir
from tests.support.ir.networks import from_timm

BATCH = 4
NETWORKS = ["mobilenetv3_small_050", "vit_tiny_patch16_224"]


@pytest.fixture(scope="module", params=NETWORKS)
def nets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[tailor_ir.SuperNet]:
    """The same SuperNet for one sample and for four."""
    folder = tmp_path_factory.mktemp("net") / "supernet"
    network, sample = from_timm(request.param)
    tailor_ir.compile(network, sample).save(folder)
    return [tailor_ir.load(folder), tailor_ir.load(folder, batch=BATCH)]


def session_of(model: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def test_operators_are_those_of_the_batch(nets: list[tailor_ir.SuperNet]) -> None:
    one, four = nets
    rng = np.random.default_rng(0)
    config = one.space.sample(rng)
    pairs = list(zip(one.operators(config), four.operators(config), strict=True))
    assert [a.operator for a, _ in pairs] == [b.operator for _, b in pairs]
    assert sum(b.macs for _, b in pairs) == BATCH * sum(a.macs for a, _ in pairs)
    assert {b for _, b in pairs} <= four.unique_operators().keys()
    assert len({b.digest for _, b in pairs} & {a.digest for a, _ in pairs}) < len(pairs) / 2
    for feature in four.operators(config):
        feeds = {f"in{i}": rng.random(s).astype(np.float32) for i, s in enumerate(feature.input_shapes)}
        outputs = session_of(tailor_ir.operator_model(feature)).run(None, feeds)
        assert tuple(output.shape for output in outputs) == feature.output_shapes


def test_terms_add_up_to_the_operators_of_a_subnet(nets: list[tailor_ir.SuperNet]) -> None:
    _, four = nets
    terms = four.operator_terms()
    for row in four.space.random_codes(5, np.random.default_rng(1)):
        picked = [term.features[tuple(row[list(term.variables)])] for term in terms]
        assert tuple(f for f in picked if f is not None) == four.operators(four.space.decode(row))


def test_exported_subnets_give_the_same_for_every_sample(nets: list[tailor_ir.SuperNet], tmp_path: Path) -> None:
    one, four = nets
    config = one.min_config
    x_BCHW = np.random.default_rng(2).standard_normal(four.input_shape(config), dtype=np.float32)
    assert x_BCHW.shape[0] == BATCH
    outputs = []
    for net, parts in ((one, np.split(x_BCHW, BATCH)), (four, [x_BCHW])):
        net.export(config, tmp_path / "net.onnx", fold_batch_norm=True)
        session = session_of((tmp_path / "net.onnx").read_bytes())
        name = session.get_inputs()[0].name
        outputs.append(np.concatenate([session.run(None, {name: part})[0] for part in parts]))
    assert np.abs(outputs[0] - outputs[1]).max() <= 1e-5 * np.abs(outputs[0]).max()


def test_macs_and_parameters_are_those_of_one_sample(nets: list[tailor_ir.SuperNet]) -> None:
    one, four = nets
    assert one.macs(one.max_config) == four.macs(one.max_config)
    assert one.parameters(one.max_config) == four.parameters(one.max_config)
