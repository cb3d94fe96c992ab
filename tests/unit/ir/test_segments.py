"""Segments: chained they are the network, each node is in one of them, and their ONNX files compute what they compute."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tailor_ir
from tailor_ir.errors import SpaceError
from tailor_ir.spaces.selectors import SpaceSpec
from tests.support import examples
from tests.support.ir.invariants import difference
from tests.support.ir.networks import from_timm, small_net

TOLERANCE = 1e-5
NETWORKS = ("resnet26", "mobilenetv2_050", "deit_tiny_distilled_patch16_224", "small")


@cache
def compiled(name: str) -> tailor_ir.SuperNet:
    spec: SpaceSpec = {"*": "auto", "exits": "auto"}
    if name == "small":
        sample = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        spec = {"*": "auto", "exits": ["stage.1.block.*"], "alternatives": ["merged", "pruned_0.5"]}
        return tailor_ir.compile(small_net(blocks=4), sample, spec)
    model, sample = from_timm(name)
    return tailor_ir.compile(model, sample, spec)


def drawn(net: tailor_ir.SuperNet, seed: int) -> tailor_ir.Config:
    config = net.space.sample(np.random.default_rng(seed))
    choices = next(one for one in net.space.variables if one.kind == "exit").choices
    return net.space.canonical({**config, "exit": choices[-1 - seed % 3 // 2]})  # one of three leaves early itself


def image(net: tailor_ir.SuperNet, config: tailor_ir.Config, batch: int = 2) -> torch.Tensor:
    return torch.randn(net.input_shape(config, batch), generator=torch.Generator().manual_seed(1))


def flops(run: Callable[[Any], object], given: object, module: nn.Module) -> int:
    module.requires_grad_(False)  # the counter's hooks do not know gradients of the values that are handed over
    with FlopCounterMode(display=False) as counter:
        run(given)
    return int(counter.get_total_flops())


@pytest.mark.long
@settings(max_examples=examples(10), deadline=None)
@given(name=st.sampled_from(NETWORKS), seed=st.integers(0, 1000))
def test_each_segment_gives_what_the_subnet_that_ends_there_gives(name: str, seed: int) -> None:
    net = compiled(name)
    config = drawn(net, seed)
    segments = net.segments(config)
    assert tuple(one.exit for one in segments) == net.exits(config)
    assert segments[-1].exit == str(config["exit"])
    x = image(net, config)
    values = {segments[0].inputs[0]: x}
    with torch.no_grad():
        for segment in segments:
            expected = net.build({**config, "exit": segment.exit})(x)
            assert difference(expected, segment(values)) <= TOLERANCE, segment.exit


@pytest.mark.long
@settings(max_examples=examples(6), deadline=None)
@given(name=st.sampled_from(NETWORKS), seed=st.integers(0, 1000), data=st.data())
def test_every_node_is_computed_in_exactly_one_segment(name: str, seed: int, data: st.DataObject) -> None:
    net = compiled(name)
    config = drawn(net, seed)
    wanted = data.draw(st.lists(st.sampled_from(net.exits(config)), unique=True))
    segments = net.segments(config, exits=wanted)
    assert {one.exit for one in segments} == {*wanted, net.exits(config)[-1]}
    assert segments[0].macs == net.macs({**config, "exit": segments[0].exit})
    x = image(net, config, 1)
    values = {segments[0].inputs[0]: x}
    chain = [flops(segment, values, segment.module) for segment in segments]
    built = net.build(config)
    whole = flops(built, x, built)
    heads = 0
    for segment in segments[:-1]:  # a head's own share: the last layers of its SubNet
        heads += sum(
            one.feature.macs
            for one in net.placed_operators({**config, "exit": segment.exit}).operators
            if any(value.startswith(f"exit/{segment.exit}/") for value in one.outputs)
        )
    assert sum(chain) == whole + 2 * heads
    assert sum(one.macs for one in segments) == net.macs(config) + heads


def test_values_are_handed_over_by_name_and_once() -> None:
    net = compiled("resnet26")
    segments = net.segments(net.max_config)
    known = {*net.structure.graph.inputs}
    for segment in segments:
        assert set(segment.inputs) <= known
        assert known.isdisjoint(segment.outputs)
        known |= {*segment.outputs[1:]}
        assert len(segment.outputs) == (1 if segment is segments[-1] else 2)
    assert not net.segments(net.max_config)[0].module.training


def test_an_exit_inside_a_block_that_stands_for_others_is_not_passed() -> None:
    net = compiled("small")
    merged = next(v for v in net.space.variables if v.name == "stage.1.block.3.block")
    choice = next(one for one in merged.choices if str(one).startswith("merged"))
    config = {merged.name: choice}
    assert "stage.1.block.2" in net.exits({})
    assert "stage.1.block.2" not in net.exits(config)
    assert net.exits(config)[0] == "stage.1.block.1"
    with pytest.raises(SpaceError, match=r"exit stage\.1\.block\.2: the SubNet does not pass it; allowed: stage\.1\.b"):
        net.segments(config, exits=["stage.1.block.2"])


def test_a_subnet_that_leaves_early_ends_at_its_own_exit() -> None:
    net = compiled("resnet26")
    assert net.exits({"exit": "stage.2"}) == ("stage.1", "stage.2")
    assert net.exits({"exit": "stage.1"}) == ("stage.1",)
    assert [one.exit for one in net.segments({"exit": "stage.3"}, exits=["stage.1"])] == ["stage.1", "stage.3"]


def test_a_network_without_exits_has_no_segments() -> None:
    net = tailor_ir.compile(small_net(), torch.zeros(1, 3, 16, 16))
    assert net.exits({}) == ()
    with pytest.raises(SpaceError, match=r"space: the network has no exits, .*; compile it with exits: auto"):
        net.segments({})


@pytest.mark.long
def test_statistics_of_heads_are_those_of_the_subnets_that_end_there() -> None:
    net = compiled("mobilenetv2_050")
    config = net.space.canonical({**net.space.sample(np.random.default_rng(3)), "exit": "last"})
    batches = [image(net, config, 8), image(net, config, 4) + 1]
    statistics: tailor_ir.Statistics = {}
    for name in net.exits(config):
        statistics |= net.recalibrate({**config, "exit": name}, batches)
    stored = net.segments(config)
    values, others = ({stored[0].inputs[0]: batches[0]} for _ in range(2))
    with torch.no_grad():
        for segment, plain in zip(net.segments(config, statistics), stored, strict=True):
            ended = {**config, "exit": segment.exit}
            expected = net.build(ended, net.recalibrate(ended, batches))(batches[0])
            assert difference(expected, segment(values)) <= TOLERANCE
            assert difference(expected, plain(others)) > 100 * TOLERANCE


@pytest.mark.few("False-small", "True-small")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("fold", [False, True])
def test_onnx_files_of_segments_chained_give_what_the_subnets_give(name: str, fold: bool, tmp_path: Path) -> None:
    net = compiled(name)
    for seed in (0, 2):
        config = drawn(net, seed)
        x = image(net, config)
        net.export_segments(config, tmp_path, fold_batch_norm=fold, batch=2)
        net.export_answers(config, tmp_path / "all.onnx", fold_batch_norm=fold, batch=2)
        session = onnxruntime.InferenceSession(tmp_path / "all.onnx", providers=["CPUExecutionProvider"])
        together = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        segments = net.segments(config)
        assert len(together) == len(segments)
        values = {segments[0].inputs[0]: x.numpy()}
        for number, (segment, answer) in enumerate(zip(segments, together, strict=True)):
            session = onnxruntime.InferenceSession(tmp_path / f"{number}.onnx", providers=["CPUExecutionProvider"])
            assert tuple(one.name for one in session.get_inputs()) == segment.inputs
            assert tuple(one.name for one in session.get_outputs()) == segment.outputs
            found = session.run(None, {name: values[name] for name in segment.inputs})
            values.update(zip(segment.outputs, found, strict=True))
            with torch.no_grad():
                expected = net.build({**config, "exit": segment.exit})(x)
            assert difference(expected, torch.from_numpy(found[0])) <= 1e-4
            assert difference(expected, torch.from_numpy(answer)) <= 1e-4
