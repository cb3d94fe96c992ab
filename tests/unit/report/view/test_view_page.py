"""The page of a SuperNet: its numbers are those of the built SubNets, it is complete, escaped, and loads nothing."""

import dataclasses
import re
import time
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir import SuperNet
from tailor_ir.spaces.selectors import Config
from tasks.base.pages.text import amount, count
from tasks.report.view import SupernetView, choices, gather, render, shape, shapes, share, some
from tests.support.ir.networks import from_timm
from tests.support.view.fixtures import Viewed
from tests.unit.report.view.test_describe import built_parameters

HOSTILE = "</code></script><script>alert(1)</script><img src=https://example.org/x.png onerror='x'>"
VOID = {"meta", "br", "img", "input", "link"}
Element = tuple[str, dict[str, str], list[str]]


class Page(HTMLParser):
    """Every element with its attributes and the text inside it; elements must nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(html)
        self.close()
        assert not self._open, [element[0] for element in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element: Element = (tag, {name: value or "" for name, value in attrs}, [])
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        for _, _, text in self._open:
            text.append(data)

    def texts(self, tag: str, **attributes: str) -> list[str]:
        """Text of the elements that have such attributes (of `class`: one of the classes)."""
        return [
            " ".join(" ".join(text).split())
            for name, found, text in self.elements
            if name == tag and all(value in found.get(key, "").split() for key, value in attributes.items())
        ]


@pytest.fixture(scope="session")
def page(viewed: Viewed) -> Page:
    return Page(render(viewed.view))


def boundary_shapes(net: SuperNet, config: Config) -> dict[str, tuple[int, ...]]:
    """Module name -> the shape of its result without the batch, by running the built SubNet."""
    built = net.build(config)
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str, module: nn.Module) -> None:
        def hook(_module: nn.Module, _inputs: object, result: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            if isinstance(result, torch.Tensor):
                shapes[name] = tuple(result.shape[1:])

        module.register_forward_hook(hook)

    for name, module in built.named_children():
        note(name, module)
    with torch.no_grad():
        built(torch.zeros(net.input_shape(config)))
    return shapes


def test_totals_and_blocks_add_up_to_the_built_subnets(viewed: Viewed) -> None:
    net, view = viewed.net, viewed.view
    assert view.parameters.largest == built_parameters(net, net.max_config)
    assert view.parameters.smallest == built_parameters(net, net.min_config)
    assert (view.macs.largest, view.macs.smallest) == (net.macs(net.max_config), net.macs(net.min_config))
    for size in ("largest", "smallest"):
        for what in ("parameters", "macs"):
            total = sum(getattr(getattr(block, what), size) for block in view.blocks)
            assert total == getattr(getattr(view, what), size)


def test_operators_are_all_nodes_once_and_add_up_to_their_block(viewed: Viewed) -> None:
    names = [operator.name for block in viewed.view.blocks for operator in block.operators]
    assert sorted(names) == sorted(node.name for node in viewed.net.structure.graph.nodes)
    for block in viewed.view.blocks:
        assert sum(operator.parameters for operator in block.operators) == block.parameters.largest
        assert sum(operator.macs for operator in block.operators) == block.macs.largest


@pytest.mark.parametrize("size", ["largest", "smallest"])
def test_shapes_at_block_boundaries_are_those_of_a_run(viewed: Viewed, size: str) -> None:
    net = viewed.net
    config = net.max_config if size == "largest" else net.min_config
    run = boundary_shapes(net, config)
    checked = 0
    for block, seen in zip(net.structure.regions.blocks, viewed.view.blocks, strict=True):
        module = re.sub(r"\W+", "_", block.nodes[-1].name).strip("_")
        if block.nodes[-1].outputs[0] == block.exit and module in run:
            assert getattr(seen.exit, size) == run[module]
            checked += 1
    assert checked >= len(viewed.view.blocks) // 2


def skipped_blocks(net: tailor_ir.SuperNet, config: tailor_ir.Config) -> set[int]:
    """Positions of the blocks that a SubNet has no node of."""
    left = {node.name for node in net.structure.subnet(net.space.row(config)).nodes}
    blocks = net.structure.regions.blocks
    return {at for at, block in enumerate(blocks) if left.isdisjoint(node.name for node in block.nodes)}


def test_skipping_marks_the_blocks_that_a_depth_leaves_out(viewed: Viewed) -> None:
    net = viewed.net
    for position, block in enumerate(viewed.view.blocks):
        texts = []
        for variable in net.space.variables:
            if variable.kind == "depth":
                gone = [
                    f"{choice}"
                    for choice in variable.choices
                    if position in skipped_blocks(net, {variable.name: choice})
                ]
                texts += [f"{variable.name} = {', '.join(gone)}"] if gone else []
        assert block.skipped_by == tuple(texts)
        assert not texts or block.skippable


def test_every_variable_has_its_place_and_the_blocks_that_it_touches(viewed: Viewed) -> None:
    view = viewed.view
    placed = [v.name for v in view.elsewhere]
    placed += [v.name for section in view.sections for v in section.variables]
    placed += [v.name for block in view.blocks for v in block.variables]
    assert sorted(placed) == sorted(v.name for v in viewed.net.space.variables)
    for variable in view.variables:
        touched = [block for block in view.blocks if variable.name in block.touched_by]
        names = {operator.name for block in touched for operator in block.operators}
        assert set(variable.nodes) <= names


def test_axes_tell_sizes_and_what_cuts_them(viewed: Viewed) -> None:
    net, rows = viewed.net, {row.label: row for row in viewed.view.axes}
    sizes = net.space.group_sizes(net.space.row(net.min_config))
    for group, full in net.structure.axis_map.groups.items():
        row = rows.get(f"C{group}") or rows[f"K{group}"]
        assert (row.sizes.largest, row.sizes.smallest) == (full, sizes.get(group, full))
        assert bool(row.variables) == (group in sizes)


def test_page_shows_every_number(viewed: Viewed, page: Page) -> None:
    net, view = viewed.net, viewed.view
    cards = " ".join(page.texts("div", **{"class": "card"}))
    for value in (count(str(net.space.distinct)), count(str(net.space.codes)), str(net.space.modifications)):
        assert value in cards
    blocks = page.texts("details", **{"class": "block"})
    assert len(blocks) == len(view.blocks)
    for text, block in zip(blocks, view.blocks, strict=True):
        assert text.startswith(block.title)
        for label, amounts in (("parameters", block.parameters), ("MACs", block.macs)):
            assert f"{label} {amount(amounts.largest)} {amount(amounts.smallest)}" in text
        for operator in block.operators:
            assert f"{operator.op} {operator.name}" in text
    assert len(page.texts("p", **{"class": "boundary"})) == 1 + len(view.blocks)
    for number, variable in enumerate(view.variables):
        (row,) = page.texts("tr", id=f"variable-{number}")
        assert row.startswith(f"{variable.name} {choices(variable.choices)} {variable.scope} {variable.first_node}")
        assert variable.last_node in row
        assert some(variable.axes) in row
        assert (
            f"{amount(variable.parameters_saved)} {share(variable.parameters_saved, view.parameters.largest):.1f} %"
            in row
        )
        assert f"{amount(variable.macs_saved)} {share(variable.macs_saved, view.macs.largest):.1f} %" in row


def test_bars_fit_and_the_smallest_is_inside_the_largest(page: Page) -> None:
    bars = [
        float(re.fullmatch(r"width:([\d.]+)%", found["style"])[1])  # type: ignore[index]
        for tag, found, _ in page.elements
        if tag == "i"
    ]
    assert all(0 <= width <= 100 for width in bars)
    meters = [
        [float(found["style"][6:-1]) for _, found, _ in (large, small)]
        for large, small in zip(page.elements, page.elements[1:], strict=False)
        if large[1].get("class") == "largest" and small[1].get("class") == "smallest"
    ]
    assert meters
    assert all(small <= large for large, small in meters)
    assert max(large for large, _ in meters) == 100


def test_links_and_marks_lead_somewhere(viewed: Viewed, page: Page) -> None:
    ids = [found["id"] for _, found, _ in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    links = [found["href"] for tag, found, _ in page.elements if tag == "a"]
    assert len(links) == len(viewed.view.variables)
    assert {link.removeprefix("#") for link in links} <= set(ids)
    marks = [found["data-variables"].split() for _, found, _ in page.elements if "data-variables" in found]
    names = [v.name for v in viewed.view.variables]
    assert [tuple(names[int(n)] for n in row) for row in marks] == [block.touched_by for block in viewed.view.blocks]


def with_odd_names(view: SupernetView) -> SupernetView:
    """Foreign texts wherever there can be some."""
    section = view.sections[0]
    block = section.blocks[0]
    operator = dataclasses.replace(block.operators[0], name=HOSTILE, op=HOSTILE)
    block = dataclasses.replace(block, kind=HOSTILE, operators=(operator, *block.operators[1:]))
    section = dataclasses.replace(section, blocks=(block, *section.blocks[1:]))
    variable = dataclasses.replace(view.variables[0], nodes=(HOSTILE, HOSTILE + "2"))
    axis = dataclasses.replace(view.axes[0], first_node=HOSTILE)
    frozen = (dataclasses.replace(view.frozen[0], what=HOSTILE, why=HOSTILE), *view.frozen[1:])
    return dataclasses.replace(
        view, title=HOSTILE, dropped=(HOSTILE,), sections=(section, *view.sections[1:]),
        variables=(variable, *view.variables[1:]), axes=(axis, *view.axes[1:]), frozen=frozen,
    )  # fmt: skip


def test_page_loads_nothing_and_runs_only_its_own_script(viewed: Viewed) -> None:
    odd = render(with_odd_names(viewed.view))
    page = Page(odd)
    for tag, attributes, _ in page.elements:
        assert not {"src", "srcset", "onerror", "action", "data", "onclick"} & attributes.keys()
        assert tag not in {"link", "iframe", "object", "base", "form", "img", "embed", "svg"}
        assert attributes.get("href", "#").startswith("#")
    assert len(page.texts("script")) == len(Page(render(viewed.view)).texts("script")) == 1
    assert "url(" not in odd
    assert "@import" not in odd
    assert not re.search(r"https?://", render(viewed.view))
    assert page.texts("title") == [f"{HOSTILE} – AutoTailor"]
    body = " ".join(page.texts("body"))
    assert body.count(HOSTILE) >= 8
    policy = next(a["content"] for _, a, _ in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")


class FixedResolution(nn.Module):
    """Every position has weights of its own, so the resolution cannot change; nothing else can either."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 1, 3, padding=1)
        self.classifier = nn.Linear(8 * 8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.conv(x).flatten(1))


def test_what_cannot_change_is_said_with_its_reason() -> None:
    net = tailor_ir.compile(FixedResolution().eval(), torch.zeros(1, 3, 8, 8))
    view = gather(net, "fixed")
    assert view.variables == ()
    assert [section.name for section in view.sections] == ["network"]
    frozen = {row.what: row.why for row in view.frozen}
    assert frozen["the resolution"] == net.structure.axis_map.resolution_frozen != ""
    assert any(what.startswith("5 channels of Linear") and "output" in why for what, why in frozen.items())
    words = " ".join(Page(render(view)).texts("body"))
    assert net.structure.axis_map.resolution_frozen in words
    assert all(text in words for text in net.space.dropped)
    assert "None: this network can only be used as it is." in words


class ColourAndDepth(nn.Module):
    """Two images of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.colour, self.depth, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(1, 4, 3), nn.Linear(4, 5)

    def forward(self, colour: torch.Tensor, depth: torch.Tensor) -> torch.Tensor:
        return self.head((self.colour(colour) + self.depth(depth)).mean((2, 3)))


def test_all_inputs_stand_at_the_beginning() -> None:
    net = tailor_ir.compile(ColourAndDepth().eval(), (torch.zeros(1, 3, 8, 8), torch.zeros(1, 1, 8, 8)))
    view = gather(net, "two images")
    assert [given.largest for given in view.inputs] == [(3, 8, 8), (1, 8, 8)]
    assert view.inputs[1].smallest == net.input_shapes(net.min_config)["depth"][1:]
    words = " ".join(Page(render(view)).texts("body"))
    assert words.index("3 × 8 × 8") < words.index("1 × 8 × 8")


@pytest.mark.long
def test_a_page_is_made_in_a_moment() -> None:
    network, example = from_timm("mobilenetv3_large_100")
    net = tailor_ir.compile(network, example)
    started_s = time.process_time()
    render(gather(net, "mobilenetv3_large_100"))
    assert time.process_time() - started_s < 15.0  # 1 on a machine of today


def test_texts() -> None:
    assert [amount(n) for n in (0, 592, 999, 1000, 11_449, 999_999, 25_557_032, 4_089_184_256)] == [
        "0", "592", "999", "1 k", "11.4 k", "1 M", "25.6 M", "4.09 G"
    ]  # fmt: skip
    assert shape((64, 56, 56)) == "64 × 56 × 56"
    assert shape(()) == "one number"
    assert shapes([(64,), (3, 3), (64,)]) == ["64 (2 of them)", "3 × 3"]
    assert choices((0.65, 0.8, 1)) == "0.65, 0.8, 1"
    assert choices(range(128, 225, 4)) == "128, 132, 136, … 224 (25)"
    assert some([f"C{i}" for i in range(9)]) == "C0, C1, C2, C3, C4 … (9)"
    assert share(1, 0) == 0


@pytest.mark.long
def test_alternatives_stand_with_their_block_and_heads_behind_their_place() -> None:
    model, sample = from_timm("resnet26")
    net = tailor_ir.compile(model, sample, {"alternatives": ["pruned_0.5"], "exits": ["stage.1.block.1", "stage.2"]})
    view = gather(net, "resnet26")
    assert "exit/stage.2/linear" in render(view)
    blocks = [block for section in view.sections for block in section.blocks]
    operators = {block.name: block.operators for block in blocks}
    for name in ("stage.1.block.1", "stage.2.block.2"):
        own = [one for one in operators[name] if "/pruned_0.5/" in one.name]
        assert sum(one.op == "Conv" for one in own) >= 3, name
    for name, place in (("stage.1.block.1", "stage.1.block.1"), ("stage.2.block.2", "stage.2")):
        heads = [one for one in operators[name] if one.name.startswith("exit/")]
        assert {one.name.split("/")[1] for one in heads} == {place}
        assert sum(one.macs for one in heads) > 0
    listed = [one.name for block in blocks for one in block.operators]
    assert sorted(listed) == sorted(node.name for node in net.structure.graph)
