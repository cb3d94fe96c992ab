"""Cuts of all SubNets without running them, flows, and parts of a SubNet that together are the whole SubNet."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tailor_ir
from tailor_ir.errors import SpaceError
from tests.support import examples
from tests.support.ir.branches import WideBlocks
from tests.support.ir.networks import from_timm, perturb, small_net

TOLERANCE = 1e-5
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # networks are slow to run again and again
NAMES = ("small", "wide", "alternatives", "exits", "vit_tiny_patch16_224")


@cache
def net_of(name: str) -> tailor_ir.SuperNet:
    sample = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    if name == "small":
        return tailor_ir.compile(small_net(), sample)
    if name == "wide":
        return tailor_ir.compile(perturb(WideBlocks()), sample)
    if name == "alternatives":
        return tailor_ir.compile(small_net(blocks=4), sample, {"alternatives": ["merged", "pruned"]})
    if name == "exits":
        return tailor_ir.compile(small_net(), sample, {"exits": "auto", "*": "auto"})
    network, sample = from_timm(name)
    return tailor_ir.compile(network, sample)


def codes_of(net: tailor_ir.SuperNet, count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return net.space.encode([net.max_config, net.min_config, *(net.space.sample(rng) for _ in range(count))])


@pytest.mark.long_cases("vit_tiny_patch16_224")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(4), deadline=None, phases=NO_SHRINKING)
@given(seed=st.integers(0, 1000))
def test_cuts_of_a_population_are_those_of_its_subnets(name: str, seed: int) -> None:
    net = net_of(name)
    cuts = net.pre_partition()
    codes = codes_of(net, 4, seed)
    found_bytes, found_values = cuts.crossing_bytes(codes), cuts.crossing_values(codes)
    for code, in_bytes, in_values in zip(codes, found_bytes, found_values, strict=True):
        placed = net.placed_operators(net.space.decode(code))
        shapes = {
            value: shape
            for one in placed.operators
            for value, shape in zip(
                (*one.inputs, *one.outputs), (*one.feature.input_shapes, *one.feature.output_shapes), strict=True
            )
        }
        shapes[placed.inputs[0]] = net.input_shape(net.space.decode(code))
        for cut in range(cuts.cuts):
            left = {name for one in cuts.operators[:cut] for name in one.writes} | set(placed.inputs)
            right = {name for one in cuts.operators[cut:] for name in one.names}
            read = {name for one in placed.operators if one.names <= right for name in one.inputs}
            crossing = (read | set(placed.outputs)) & left
            assert in_values[cut] == len(crossing), (name, cut)
            assert in_bytes[cut] == sum(4 * np.prod(shapes[value]) for value in crossing), (name, cut)


@pytest.mark.long_cases("vit_tiny_patch16_224")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(4), deadline=None, phases=NO_SHRINKING)
@given(seed=st.integers(0, 1000))
def test_the_dataflow_of_a_subnet_has_the_same_cuts(name: str, seed: int) -> None:
    net = net_of(name)
    code = codes_of(net, 1, seed)[-1:]
    dataflow = net.pre_partition().under(code[0])
    before = [*dataflow.positions, len(net.pre_partition().operators)]
    in_bytes = [sum(value.bytes for value in dataflow.crossing(cut)) for cut in range(dataflow.cuts)]
    assert in_bytes == net.pre_partition().crossing_bytes(code)[0, before].tolist()
    assert all(value.writer < value.readers[0] for value in dataflow.values)


def run_parts(folder: Path, count: int, x: np.ndarray) -> dict[str, np.ndarray]:
    values: dict[str, np.ndarray] = {}
    for number in range(count):
        session = onnxruntime.InferenceSession(folder / f"{number}.onnx", providers=["CPUExecutionProvider"])
        inputs = [one.name for one in session.get_inputs()]
        values.setdefault(inputs[0], x)
        found = session.run(None, {name: values[name] for name in inputs})
        values.update(zip([one.name for one in session.get_outputs()], found, strict=True))
    return values


@pytest.mark.long_cases("vit_tiny_patch16_224")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(4), deadline=None, phases=NO_SHRINKING)
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(1, 200), max_size=3))
def test_parts_one_after_the_other_are_the_whole_subnet(
    name: str, seed: int, cuts: Sequence[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    net, folder = net_of(name), tmp_path_factory.mktemp("parts")
    config = net.space.decode(codes_of(net, 1, seed)[-1])
    dataflow = net.pre_partition().under(net.space.row(config))
    count = len(dataflow.operators)
    ends = [0, *sorted({cut % count for cut in cuts} - {0}), count]
    groups = [range(start, end) for start, end in pairwise(ends)]
    net.export_parts(config, groups, folder, fold_batch_norm=True)
    x = torch.randn(net.input_shape(config), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        expected = net.build(config)(x).numpy()
    found = run_parts(folder, len(groups), x.numpy())[net.placed_operators(config).outputs[0]]
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()
    for number, end in enumerate(ends[1:-1], start=1):
        session = onnxruntime.InferenceSession(folder / f"{number}.onnx", providers=["CPUExecutionProvider"])
        read = {one.name: tuple(one.shape) for one in session.get_inputs()}
        crossing = {value.name: value.shape for value in dataflow.crossing(end)}
        assert read.items() <= crossing.items()


def test_parts_need_no_neighbouring_operators(tmp_path: Path) -> None:
    net = net_of("wide")
    dataflow = net.pre_partition().under(net.space.row(net.max_config))
    flows = tailor_ir.find_flows(dataflow)
    aside = next(flow for flow in flows if flow.beside)
    first = [at for at in range(aside.operators[0]) if at not in aside.operators]
    rest = [at for at in range(len(dataflow.operators)) if at not in {*first, *aside.operators}]
    net.export_parts(net.max_config, [first, aside.operators, rest], tmp_path)
    x = torch.randn(net.input_shape(net.max_config), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = net.build(net.max_config)(x).numpy()
    found = run_parts(tmp_path, 3, x.numpy())[net.placed_operators(net.max_config).outputs[0]]
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_branches_are_flows_beside_each_other() -> None:
    net = net_of("wide")
    dataflow = net.pre_partition().under(net.space.row(net.max_config))
    flows = tailor_ir.find_flows(dataflow)
    assert sorted(at for flow in flows for at in flow.operators) == list(range(len(dataflow.operators)))
    first = next(flow for flow in flows if flow.beside)
    assert len(first.beside) == 2, "three branches in the first block; sums wait for the first one"
    for number, flow in enumerate(flows):
        assert all(number in flows[other].beside for other in flow.beside)


def test_a_block_is_crossed_by_its_shortcut_too() -> None:
    net = net_of("small")
    cuts = net.pre_partition()
    values = cuts.crossing_values(codes_of(net, 0, 0)[:1])[0]
    assert values[0] == values[1] == values[-1] == 1
    assert values.max() == 2, "inside of a residual block"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[1], [0]], "parts: got 2 operators in 2 parts; each of the"),
        ([], "parts: got 0 operators in 0 parts; each of the"),
    ],
)
def test_groups_that_are_no_parts_are_refused(groups: list[list[int]], message: str, tmp_path: Path) -> None:
    net = net_of("small")
    with pytest.raises(SpaceError, match=message):
        net.export_parts(net.max_config, groups, tmp_path)


def test_a_part_reads_no_later_part(tmp_path: Path) -> None:
    net = net_of("small")
    count = len(net.operators(net.max_config))
    with pytest.raises(SpaceError, match=r"part 0: it reads '.*', which part 1 writes behind it"):
        net.export_parts(net.max_config, [range(1, count), [0]], tmp_path)
