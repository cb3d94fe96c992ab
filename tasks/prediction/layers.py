"""A SubNet layer by layer: the place of each operator, its shapes, and its contribution to the predicted latency.

A layer is an operator of the largest SubNet. Every SubNet has some of them, each with its own shapes, so SubNets can be
compared side by side.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tailor_ir import KINDS, Choice, OperatorFeature, PlacedOperator, SuperNet, choice_text
from tasks.base.places import Place, places
from tasks.base.schemas.stored import Record
from tasks.measuring.lut import Lut
from tasks.prediction.latency import Correction, family, operator_ms

Shape = tuple[int, ...]
Outputs = tuple[str, ...]


class SubNetLayer(Record):
    """One layer in one SubNet. Shapes are of one sample; predicted_ms [ms] is None if the table has no latency."""

    title: str
    family: str
    input: Shape
    output: Shape
    channels: tuple[int, int]
    macs: int
    parameters: int
    predicted_ms: float | None


class Section(Record):
    """One stage of a SubNet, or the part before, between or behind stages.

    blocks, all_blocks: numbers in this SubNet and in the largest one. output: of one sample. choices: kind of variable -> the
    different choices, in order, of the remaining blocks; a replaced block, such as `block.2` -> its alternative. Depth and
    width show in `blocks` and `channels`. predicted_ms: sum of its layers [ms]; None if one has no latency.
    """

    name: str
    stage: bool
    blocks: int
    all_blocks: int
    channels: int
    output: Shape
    choices: dict[str, list[Choice]]
    predicted_ms: float | None

    @property
    def text(self) -> str:
        """`stage.1: 1 of 2 blocks, 42 channels, 8×8, expand_ratio 0.5`."""
        parts = [f"{self.blocks} of {self.all_blocks} blocks"] if self.stage else []
        parts.append(f"{self.channels} channels")
        parts += ["×".join(map(str, self.output[1:]))] if len(self.output) == 3 else []
        parts += [f"{kind} {'/'.join(map(choice_text, found))}" for kind, found in self.choices.items()]
        return f"{self.name}: {', '.join(parts)}"


class Layers:
    """The layers of one SuperNet on one device, in the order in which the largest SubNet runs them."""

    def __init__(self, net: SuperNet, lut: Lut, correction: Correction) -> None:
        self._net, self._lut, self._correction = net, lut, correction
        regions = net.structure.regions
        self._place_of = {
            node.name: place
            for block, place in zip(regions.blocks, places(regions), strict=True)
            for node in block.nodes
        }
        placed = self._all_placed()
        self._numbers: dict[Outputs, int] = {one.outputs: number for number, (one, _) in enumerate(placed)}
        self.places: tuple[Place, ...] = tuple(place for _, place in placed)
        self._known: dict[OperatorFeature, SubNetLayer] = {}

    def _all_placed(self) -> list[tuple[PlacedOperator, Place]]:
        """The largest SubNet's operators, those of heads at their exits, and those of alternatives before each block."""
        net = self._net
        largest = []
        for one in net.placed_operators(net.max_config).operators:
            of_names = (self._place_of[name] for name in sorted(one.names) if name in self._place_of)
            largest.append((one, next(of_names, Place("network", False, ""))))
        known = {one.outputs for one, _ in largest}
        starts: dict[Place, int] = {}
        for number, (_, place) in enumerate(largest):
            starts.setdefault(place, number)
        others = self._heads([one for one, _ in largest])
        known.update(one.outputs for own in others.values() for one, _ in own)
        variables = {variable.name: variable for variable in net.space.variables if variable.kind == "block"}
        blocks = ((stage.name, pair) for stage in net.structure.regions.stages for pair in enumerate(stage.blocks, 1))
        for name, (index, block) in blocks:
            variable = variables.get(f"{name}.block.{index}.block")
            for choice in variable.choices[:-1] if variable else ():
                found = net.placed_operators({f"{name}.block.{index}.block": choice}).operators
                place = self._place_of[block.nodes[0].name]
                own = [(one, place) for one in found if one.outputs not in known]
                known.update(one.outputs for one, _ in own)
                others.setdefault(starts[place], []).extend(own)
        return [pair for number, one in enumerate(largest) for pair in (*others.get(number, ()), one)]

    def _heads(self, largest: Sequence[PlacedOperator]) -> dict[int, list[tuple[PlacedOperator, Place]]]:
        """The operators of exits, by the number of the largest SubNet's operator that follows them."""
        numbers = {one.outputs: number for number, one in enumerate(largest)}
        heads: dict[int, list[tuple[PlacedOperator, Place]]] = {}
        for variable in self._net.space.variables:
            for choice in variable.choices[:-1] if variable.kind == "exit" else ():
                found = self._net.placed_operators({variable.name: choice}).operators
                before = max(numbers[one.outputs] for one in found if one.outputs in numbers)
                place = Place(f"{variable.name} {choice}", False, "")
                own = [(one, place) for one in found if one.outputs not in numbers]
                heads.setdefault(before + 1, []).extend(own)
        return heads

    @property
    def offset_ms(self) -> float:
        """The predicted latency of a run beyond its layers."""
        return self._correction.offset_ms

    def of(self, config: Mapping[str, Any]) -> dict[int, SubNetLayer]:
        """Number of a layer -> the layer in this SubNet, in the order of execution; absent layers are left out."""
        placed = self._net.placed_operators(dict(config)).operators
        return {self._numbers[one.outputs]: self._operator(one.feature) for one in placed}

    def sections(self, config: Mapping[str, Any]) -> tuple[Section, ...]:
        """The stages of a SubNet, and the parts before, between and behind them, in order."""
        by_section: dict[str, list[tuple[Place, SubNetLayer]]] = {place.section: [] for place in self.places}
        for number, operator in self.of(config).items():
            by_section[self.places[number].section].append((self.places[number], operator))
        return tuple(self._section(name, found, config) for name, found in by_section.items() if found)

    def _section(self, name: str, found: list[tuple[Place, SubNetLayer]], config: Mapping[str, Any]) -> Section:
        latencies_ms = [operator.predicted_ms for _, operator in found]
        choices: dict[str, dict[Choice, None]] = {}
        for variable in self._net.space.variables:
            if variable.name not in config or not variable.name.startswith(f"{name}.") or KINDS[variable.kind].seen:
                continue
            choice = config[variable.name]
            if variable.kind != "block":
                choices.setdefault(variable.kind, {})[choice] = None
            elif choice != variable.choices[-1]:
                choices[variable.name.removeprefix(f"{name}.").removesuffix(".block")] = {choice: None}
        return Section(
            name=name,
            stage=found[0][0].stage,
            blocks=len({place.block for place, _ in found}),
            all_blocks=len({place.block for place in self.places if place.section == name}),
            channels=found[-1][1].channels[1],
            output=found[-1][1].output,
            choices={kind: list(values) for kind, values in choices.items()},
            predicted_ms=None if None in latencies_ms else math.fsum(ms for ms in latencies_ms if ms is not None),
        )

    def elsewhere(self, config: Mapping[str, Any]) -> dict[str, Choice]:
        """Choices of the variables that belong to no section, such as the resolution."""
        sections = tuple(f"{place.section}." for place in self.places)
        return {name: choice for name, choice in config.items() if not name.startswith(sections)}

    def architecture(self, config: Mapping[str, Any]) -> list[str]:
        """The SubNet as short text: choices outside sections, then a line for each stage; without stages, for each section."""
        first = ", ".join(f"{name} {choice_text(choice)}" for name, choice in self.elsewhere(config).items())
        sections = self.sections(config)
        return [*filter(None, [first]), *(one.text for one in [one for one in sections if one.stage] or sections)]

    def _operator(self, feature: OperatorFeature) -> SubNetLayer:
        if feature not in self._known:
            predicted_ms = operator_ms(self._lut, feature, self._correction)
            batch = self._net.batch
            shapes = [shape[1:] for shape in (*feature.input_shapes[:1], feature.output_shapes[0])]  # of one sample
            self._known[feature] = SubNetLayer(
                title=title(feature),
                family=family(feature),
                input=shapes[0],
                output=shapes[-1],
                channels=(_channels(shapes[0]), _channels(shapes[-1])),
                macs=feature.macs // batch,
                parameters=feature.parameters,
                predicted_ms=None if math.isnan(predicted_ms) else predicted_ms,
            )
        return self._known[feature]


def title(feature: OperatorFeature) -> str:
    """`Conv 3×3 /2 + Relu`: the main operator with its window and stride, and the operators fused into it."""
    attributes = dict(feature.attributes)
    window, strides, group = (attributes.get(name) for name in ("kernel_shape", "strides", "group"))
    words = [feature.operator]
    if isinstance(window, tuple):
        words.append("×".join(map(str, window)))
    if isinstance(strides, tuple) and set(strides) != {1}:
        words.append(f"/{strides[0]}" if len(set(strides)) == 1 else f"/{'×'.join(map(str, strides))}")
    if group not in (None, 1):
        words.append("depthwise" if group == _channels(feature.input_shapes[0][1:]) else f"{group} groups")
    return " + ".join([" ".join(words), *feature.epilogue])


def _channels(shape: Shape) -> int:
    """The number of channels: first in (C, H, W), last in (…, C)."""
    return (shape[0] if len(shape) == 3 else shape[-1]) if shape else 1
