"""Producers that reach back over several blocks keep all invariants; presence is what brute force finds."""

from itertools import product
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tailor_ir
from solvers.tables import with_derived
from tailor_ir.spaces.presence import ALWAYS, NEVER, DerivedColumns, Presence, Selection, find_needs, presence
from tailor_ir.spaces.selectors import Config, SpaceSpec
from tailor_ir.subnets.prefixes import Prefixes
from tests.support import examples
from tests.support.ir.detours import detours_known, with_detours
from tests.support.ir.invariants import check_largest, check_subnet
from tests.support.ir.networks import from_timm, small_net
from tests.support.ir.runtime_memory import HERE, subnet_peaks

SAMPLE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
SPEC: SpaceSpec = {
    "stage.1.depth": [-2, -1, 0],
    "stage.1.width_mult": [0.5, 1],
    "stage.1.block.*.expand_ratio": [1, 2],
    "*.detour": "auto",
}
SMALL_BYTES = 256


@pytest.fixture(scope="module")
def net() -> tailor_ir.SuperNet:
    return with_detours(small_net(), SAMPLE, SPEC)


def all_codes(net: tailor_ir.SuperNet) -> np.ndarray:
    return np.array(list(product(*(range(n) for n in net.space.cardinalities))))


def seen(net: tailor_ir.SuperNet, row: np.ndarray) -> tuple[object, ...]:
    """What a SubNet is: its nodes, what they read, and all their sizes."""
    subnet = net.structure.subnet(row)
    axes = net.structure.axis_map.axes
    names = [name for node in subnet.nodes for name in (*node.inputs, *node.outputs) if name]
    shapes = tuple(subnet.sizes.shape(axes[name]) for name in names)
    return tuple((node.name, node.inputs) for node in subnet.nodes), subnet.outputs, shapes


def test_the_space_has_both_overlapping_detours(net: tailor_ir.SuperNet) -> None:
    detours = [variable.name for variable in net.space.variables if variable.kind == "detour"]
    assert detours == ["stage.1.block.2.detour", "stage.1.block.3.detour"]
    chosen = {selection.value: selection for selection in net.space.selections}
    assert max(len(selection.producers) for selection in chosen.values()) == 3  # itself, its entry, the detour


def test_a_detour_leaves_out_both_blocks_and_the_variables_inside(net: tailor_ir.SuperNet) -> None:
    config = net.space.canonical({"stage.1.block.2.detour": 1})
    assert not any(name.startswith(("stage.1.block.1.expand", "stage.1.block.2.expand")) for name in config)
    assert "stage.1.block.3.expand_ratio" in config
    over = net.space.canonical({"stage.1.block.3.detour": 1, "stage.1.block.2.detour": 1})
    assert "stage.1.block.2.detour" not in over
    assert "stage.1.block.1.expand_ratio" in over
    names = {node.name for node in net.structure.subnet(net.space.row(config)).nodes}
    first, second, third = net.structure.regions.stages[0].blocks
    assert names.isdisjoint(node.name for block in (first, second) for node in block.nodes)
    assert names.issuperset(node.name for node in third.nodes)


def test_counts_and_canonical_codes_are_those_of_brute_force(net: tailor_ir.SuperNet) -> None:
    codes = all_codes(net)
    canonical = net.space.canonical_codes(codes)
    by_subnet: dict[object, set[bytes]] = {}
    for row, code in zip(codes, canonical, strict=True):
        assert seen(net, row) == seen(net, code)
        by_subnet.setdefault(seen(net, row), set()).add(code.tobytes())
    assert all(len(found) == 1 for found in by_subnet.values())
    assert net.space.distinct == len(by_subnet) < len(codes)
    assert len({net.space.digest(net.space.decode(row)) for row in codes}) == len(by_subnet)
    assert np.array_equal(net.space.canonical_codes(canonical), canonical)


def test_the_largest_subnet_is_the_original_network(net: tailor_ir.SuperNet) -> None:
    model = small_net()
    plain = tailor_ir.compile(model, SAMPLE)
    check_largest(net, model, SAMPLE)
    for name, tensor in plain.elastic.tensors().items():
        assert torch.equal(net.elastic.tensor(name), tensor)
    assert net.operators(net.max_config) == plain.operators(plain.max_config)


def test_elastic_built_and_exported_subnets_are_equal(net: tailor_ir.SuperNet, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    detoured: list[Config] = [{"stage.1.block.2.detour": 1}, {"stage.1.block.3.detour": 1}, net.min_config]
    for config in [*detoured, *(net.space.sample(rng) for _ in range(4))]:
        check_subnet(net, config, tmp_path, SAMPLE)


def test_enumeration_finds_what_all_subnets_have_and_each_witness_has_it(net: tailor_ir.SuperNet) -> None:
    unique = net.unique_operators()
    everywhere = {feature for row in all_codes(net) for feature in net.operators(net.space.decode(row))}
    assert set(unique) == everywhere
    assert all(feature in net.operators(config) for feature, config in unique.items())


def test_operator_terms_are_the_operators_of_every_subnet(net: tailor_ir.SuperNet) -> None:
    terms = net.operator_terms()
    codes = net.space.random_codes(40, np.random.default_rng(1))
    for row, extended in zip(codes, net.space.extended(codes), strict=True):
        found = [term.features[tuple(int(extended[column]) for column in term.variables)] for term in terms]
        assert tuple(feature for feature in found if feature is not None) == net.operators(net.space.decode(row))


def test_placed_operators_read_what_others_write(net: tailor_ir.SuperNet) -> None:
    for row in net.space.random_codes(20, np.random.default_rng(2)):
        placed = net.placed_operators(net.space.decode(row))
        known = set(placed.inputs)
        for operator in placed.operators:
            assert known.issuperset(operator.inputs)
            known.update(operator.outputs)
        assert known.issuperset(placed.outputs)


def test_memory_is_what_the_runtime_asks_for(net: tailor_ir.SuperNet, tmp_path: Path) -> None:
    configs = [{"stage.1.block.2.detour": 1}, {"stage.1.block.3.detour": 1}, {"stage.1.depth": -1}, {}]
    rows = np.stack([net.space.row(config) for config in configs])
    together = net.activation_memory(HERE).peak_bytes(rows)
    for config, peak, measured in zip(configs, together, subnet_peaks(net, configs, tmp_path), strict=True):
        assert (
            net.peak_activation_bytes(config, HERE) == peak == pytest.approx(measured.asked, rel=0.05, abs=SMALL_BYTES)
        )
        assert net.peak_arena_bytes(config, HERE) == pytest.approx(measured.arena, rel=0.05, abs=SMALL_BYTES)


def test_subnets_run_together_give_what_each_gives_alone(net: tailor_ir.SuperNet) -> None:
    rng = np.random.default_rng(3)
    configs = [net.space.sample(rng) for _ in range(8)]
    net.elastic.eval()
    for position, found in Prefixes(net.elastic, configs)(SAMPLE):
        net.elastic.activate(configs[position])
        with torch.no_grad():
            assert torch.equal(found, net.elastic(SAMPLE))


def test_a_saved_supernet_keeps_its_detours(net: tailor_ir.SuperNet, tmp_path: Path) -> None:
    net.save(tmp_path / "supernet")
    with detours_known():
        loaded = tailor_ir.load(tmp_path / "supernet")
    assert loaded.space.variables == net.space.variables
    assert loaded.space.distinct == net.space.distinct
    for one in (net, loaded):
        one.elastic.eval().activate({"stage.1.block.2.detour": 1})
    with torch.no_grad():
        assert torch.equal(net.elastic(SAMPLE), loaded.elastic(SAMPLE))


@pytest.mark.long
def test_detours_of_a_real_network_across_a_whole_stage(tmp_path: Path) -> None:
    model, sample = from_timm("mobilenetv2_050")
    net = with_detours(model, sample)
    check_largest(net, model, sample)
    detours: Config = {v.name: 1 for v in net.space.variables if v.kind == "detour"}
    assert len(detours) >= 8
    rng = np.random.default_rng(4)
    for config in [detours, *(net.space.sample(rng) for _ in range(3))]:
        assert set(net.operators(config)) <= net.unique_operators().keys()
        net.export(config, tmp_path / "subnet.onnx")
        x = torch.randn(net.input_shape(config))
        session = onnxruntime.InferenceSession(tmp_path / "subnet.onnx", providers=["CPUExecutionProvider"])
        (exported,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        net.elastic.eval().activate(config)
        with torch.no_grad():
            torch.testing.assert_close(net.elastic(x), torch.from_numpy(exported), rtol=1e-3, atol=1e-4)


# -- masks -----------------------------------------------------------------------------------------------------------


@st.composite
def masks(draw: st.DrawFn) -> Presence:
    variables = draw(st.lists(st.integers(0, 3), unique=True, max_size=3))
    shape = [2 + column % 2 for column in variables]
    bits = draw(st.lists(st.booleans(), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    return presence(variables, np.array(bits).reshape(shape))


CODES = np.array(list(product(*(range(2 + column % 2) for column in range(4)))))


@settings(max_examples=examples(200), deadline=None)
@given(masks(), masks())
def test_masks_combine_as_the_sets_of_subnets_that_they_are(a: Presence, b: Presence) -> None:
    def among(each: Presence) -> np.ndarray:
        return np.broadcast_to(each.among(CODES), len(CODES))

    assert np.array_equal(among(a & b), among(a) & among(b))
    assert np.array_equal(among(a | b), among(a) | among(b))
    assert np.array_equal(among(~a), ~among(a))
    assert a.implies(b) == bool((~among(a) | among(b)).all())
    assert (a == b) == np.array_equal(among(a), among(b))
    assert (a | ~a) == ALWAYS
    assert (a & ~a) == NEVER


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_a_step_is_present_where_an_output_needs_it(seed: int) -> None:
    """Random steps in a row, some of whose values have several earlier producers; against a search from the output."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 9))
    steps = [(tuple(f"v{j}" for j in set(rng.integers(0, i + 1, 2).tolist())), (f"v{i + 1}",)) for i in range(count)]
    selections = []
    for variable, value in enumerate(
        rng.choice(np.arange(2, count + 1), size=min(3, count - 1), replace=False).tolist()
    ):
        producers = (f"v{value}", f"v{int(rng.integers(0, value))}")
        selections.append(
            Selection(value=f"v{value}", producers=producers, variables=(variable,), chosen=rng.permutation(2))
        )
    by_value = {selection.value: selection for selection in selections}
    needs = find_needs(steps, [f"v{count}"], selections, DerivedColumns(3))
    for codes in with_derived(np.array(list(product(range(2), repeat=3))), needs.columns.derived):
        needed: set[int] = set()
        todo = [f"v{count}"]
        while todo:
            name = todo.pop()
            while name in by_value and (producer := by_value[name].producer(codes)) != name:
                name = producer
            at = int(name[1:]) - 1
            if at >= 0 and at not in needed:
                needed.add(at)
                todo += steps[at][0]
        assert {at for at, where in enumerate(needs.steps) if where.at(codes)} == needed
