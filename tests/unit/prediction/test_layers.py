"""SubNets layer by layer: their layers add up to the predicted latency, and can be laid side by side."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tailor_ir
from tasks.base.places import places
from tasks.measuring.lut import Lut
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.layers import Layers, title
from tasks.search.terminal import architecture, side_by_side
from tests.support.ir.networks import small_net
from tests.support.tables.lut_entries import DEVICE, entry, failed

CORRECTION = Correction(offset_ms=0.3, overhead_ms=0.002, factor=0.8, factors={"Conv": 0.7})


@pytest.fixture(scope="module")
def net(supernet: Path) -> tailor_ir.SuperNet:
    return tailor_ir.load(supernet)


@pytest.fixture
def lut(net: tailor_ir.SuperNet, tmp_path: Path) -> Lut:
    rng = np.random.default_rng(0)
    lut = Lut.open(tmp_path / "lut", DEVICE)
    times = {feature: float(rng.uniform(0.01, 2.0)) for feature in net.unique_operators()}
    lut.append(entry(f.digest, operator=f.operator, p50_ms=ms, p90_ms=ms) for f, ms in times.items())
    return lut


def all_codes(net: tailor_ir.SuperNet) -> np.ndarray:
    counts = [range(len(variable.choices)) for variable in net.space.variables]
    return np.unique(net.space.canonical_codes(np.array(list(product(*counts)))), axis=0)


def test_layers_and_sections_of_every_subnet_add_up_to_its_prediction(net: tailor_ir.SuperNet, lut: Lut) -> None:
    layers = Layers(net, lut, CORRECTION)
    codes = all_codes(net)
    for code, predicted_ms in zip(codes, LatencyPredictor.compile(net, lut, CORRECTION).predict(codes), strict=True):
        config = net.space.decode(code)
        found = layers.of(config)
        of_layers = [one.predicted_ms for one in found.values() if one.predicted_ms is not None]
        of_sections = [one.predicted_ms for one in layers.sections(config) if one.predicted_ms is not None]
        assert len(of_layers) == len(net.operators(config))
        assert sum(of_layers) + layers.offset_ms == pytest.approx(predicted_ms, rel=1e-12)
        assert sum(of_sections) == pytest.approx(sum(of_layers), rel=1e-12)
        assert sum(one.macs for one in found.values()) == net.macs(config)
        assert sum(one.parameters for one in found.values()) == net.parameters(config)


def test_a_skipped_block_has_no_layers_and_is_counted(net: tailor_ir.SuperNet, lut: Lut) -> None:
    layers = Layers(net, lut, CORRECTION)
    shallow = net.space.canonical({**net.max_config, "stage.2.depth": -1, "stage.2.width_mult": 0.5, "resolution": 16})
    assert list(layers.of(net.max_config)) == list(range(len(layers.places)))
    left = {layers.places[number].name for number in layers.of(shallow)}
    assert {place.name for place in layers.places} - left == {"stage.2.block.2"}
    stage = next(section for section in layers.sections(shallow) if section.name == "stage.2")
    assert (stage.blocks, stage.all_blocks, stage.channels) == (1, 2, 8)
    text = layers.architecture(shallow)
    assert text[0] == "resolution 16"
    assert any(line.startswith("stage.2: 1 of 2 blocks, 8 channels, 2×2, expand_ratio 1") for line in text)
    assert not any(line.startswith(("stem", "head")) for line in text)


def test_a_block_that_is_replaced_is_named_with_its_alternative(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"alternatives": ["merged", "pruned_0.5"]}
    net = tailor_ir.compile(small_net(blocks=4), torch.zeros(1, 3, 32, 32), sizes)
    lut = Lut.open(tmp_path / "lut", DEVICE)
    lut.append(entry(one.digest, operator=one.operator, p50_ms=1.0, p90_ms=1.0) for one in net.unique_operators())
    layers = Layers(net, lut, CORRECTION)
    wanted = {"stage.1.block.1.block": "pruned_0.5", "stage.1.block.4.block": "merged_2"}
    (stage,) = (one for one in layers.sections(net.space.canonical({**net.max_config, **wanted})) if one.stage)
    assert (stage.blocks, stage.all_blocks) == (3, 4)
    assert "block.1 pruned_0.5, block.4 merged_2" in stage.text
    assert "original" not in stage.text
    assert not any(section.choices for section in layers.sections(net.max_config))


def test_two_subnets_are_side_by_side_in_the_order_of_the_largest(net: tailor_ir.SuperNet, lut: Lut) -> None:
    layers = Layers(net, lut, CORRECTION)
    predictor = LatencyPredictor.compile(net, lut, CORRECTION)
    pair = [net.max_config, net.min_config]
    rows = side_by_side(layers, *pair)
    assert [row["layer"] for row in rows] == list(range(len(layers.places)))
    assert {row["place"] for row in rows if row["second"] is None} == {"stage.2.block.2"}
    first_ms, second_ms = predictor.predict(net.space.canonical_codes(net.space.encode(pair)))
    differences_ms = [row["difference_ms"] for row in rows if row["difference_ms"] is not None]
    assert len(differences_ms) == len(rows)
    assert sum(differences_ms) == pytest.approx(second_ms - first_ms, rel=1e-9)
    assert all(row["difference_ms"] == 0 for row in side_by_side(layers, pair[0], pair[0]))
    swapped = side_by_side(layers, *pair[::-1])
    assert [row["difference_ms"] for row in swapped] == [-difference_ms for difference_ms in differences_ms]
    assert [row["layer"] for row in architecture(layers, pair[1])["layers"]] == [
        row["layer"] for row in rows if row["second"]
    ]


def test_an_operator_without_a_latency_is_unknown_and_not_zero(net: tailor_ir.SuperNet, lut: Lut) -> None:
    last = net.operators(net.max_config)[-1]
    lut.append([replace(failed(last.digest), operator=last.operator, measured_at="2027-01-01T00:00:00+00:00")])
    layers = Layers(net, lut, CORRECTION)
    rows = side_by_side(layers, net.max_config, net.min_config)
    assert rows[-1]["first"] is not None
    assert (rows[-1]["first"]["predicted_ms"], rows[-1]["difference_ms"]) == (None, None)
    assert layers.sections(net.max_config)[-1].predicted_ms is None


def test_operators_are_called_by_window_stride_and_what_is_fused() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 5, 1, 2, groups=8), nn.Conv2d(8, 8, (1, 3), groups=2),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 8 * 7, 10),
    )  # fmt: skip
    net = tailor_ir.compile(network.eval(), torch.zeros(1, 3, 32, 32), {})
    titles = [title(feature) for feature in net.operators(net.max_config)]
    assert titles[:4] == ["Conv 3×3 /2 + Relu", "Conv 5×5 depthwise", "Conv 1×3 2 groups", "MaxPool 2×2 /2"]
    assert titles[-1] == "Linear"


def test_places_are_stages_and_what_is_around_them(net: tailor_ir.SuperNet) -> None:
    found = places(net.structure.regions)
    assert len(found) == len(net.structure.regions.blocks)
    sections = list(dict.fromkeys(place.section for place in found))
    assert sections == ["stem", "stage.1", "stage.2", "stage.3", "stage.4", "head"]
    assert {place.block for place in found if place.section == "stage.2"} == {"stage.2.block.1", "stage.2.block.2"}
    assert all(place.stage == place.section.startswith("stage.") == bool(place.block) for place in found)
