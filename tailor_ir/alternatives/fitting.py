"""First weights of alternatives from data: a trained network and a few hundred images, before any training.

Each kind fits the layers that it replaces to their inputs, by moments of these. BatchNorm statistics are recomputed. Then the
last layer compensates for the loss before it, and statistics are recomputed once more. The remaining error is measured on other
images. `tailor_ir.alternatives.least_squares` has the moments and the last layer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from tailor_ir.alternatives.adding import ALTERNATIVES, named_rows, prefix_of
from tailor_ir.alternatives.layers import dense_layers
from tailor_ir.alternatives.least_squares.last_layer import LastLayerSums, find_last_layer
from tailor_ir.alternatives.least_squares.moments import PatchMoments, PatchSums, layers_to_read
from tailor_ir.alternatives.least_squares.replaced_layer import ReplacedLayer
from tailor_ir.alternatives.record import AlternativeKind
from tailor_ir.alternatives.site import GivenNetwork, Site
from tailor_ir.alternatives.sketch import Sketch
from tailor_ir.graph import GivenInputs, Tensors
from tailor_ir.spaces.structure import Structure
from tailor_ir.subnets.branches import Branch, Branches
from tailor_ir.subnets.elastic import Elastic

PASSES = 4
"""Passes over the images: moments, statistics, last layers, statistics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstWeights:
    """An alternative with its first weights.

    error: mean square of the difference to the blocks' result, over the variance of that result; 0: equal, 1: as good as the
    mean of each channel. Measured on images that the weights were not fitted to.
    """

    variable: str
    choice: str
    error: float


@dataclass(frozen=True, slots=True)
class _Place:
    branch: Branch
    site: Site
    kind: AlternativeKind

    @property
    def number(self) -> float:
        return self.kind.choices[self.branch.choice]


def fit_alternatives(
    elastic: Elastic,
    images: Sequence[GivenInputs],
    held_out: Sequence[GivenInputs],
    rng: np.random.Generator,
    advance: Callable[[], None] = lambda: None,
) -> tuple[FirstWeights, ...]:
    """Give every alternative first weights from data; return its error on holdout images.

    images, held_out: batches (B, C, H, W) of the largest SubNet's resolution, or of all inputs in order; without holdout images
    the result is empty. The original's own tensors stay unchanged. advance: called once for each batch in each of the passes
    over `images` (`PASSES`), and for each of `held_out`.
    """
    branches = Branches(elastic)
    places = list(_places(elastic, branches))
    if not places:
        return ()

    def told(batches: Sequence[GivenInputs]) -> Iterator[GivenInputs]:
        for x in batches:
            yield x
            advance()

    count = sum(len(x) if isinstance(x, torch.Tensor) else len(x[0]) for x in images)
    moments = _moments(elastic, branches, places, told(images), count, rng)
    for _, own in groupby(places, key=lambda place: place.branch.variable):
        layers: dict[str, ReplacedLayer] = {}
        for place in own:
            sketch = Sketch(place.site, prefix_of(place.site, place.branch.choice), moments, layers)
            place.kind.write(sketch, place.number)
            _store(elastic, {**sketch.parameters, **sketch.statistics})
    del moments, layers
    _store(elastic, branches.observe(told(images)))
    _fit_last_layers(elastic, branches, told(images), count, rng)
    _store(elastic, branches.observe(told(images)))
    return _errors(elastic, branches, told(held_out)) if held_out else ()


def _places(elastic: Elastic, branches: Branches) -> Iterator[_Place]:
    """The branches, each with the blocks that it replaces."""
    network = given_network(elastic.structure, elastic.tensors())
    rows = dict(named_rows(elastic.structure))
    kinds = {choice: kind for kind in ALTERNATIVES.values() for choice in kind.choices}
    for branch in branches.branches:
        kind = kinds[branch.choice]
        count = kind.blocks(kind.choices[branch.choice])
        yield _Place(branch, Site(network, tuple(rows[branch.variable][-count:])), kind)


def given_network(structure: Structure, tensors: Tensors) -> GivenNetwork:
    """The original network within a network with alternatives; its tensors on the CPU."""
    graph = structure.graph.original()
    own = {name: tensors[name].cpu() for name in graph.initializers}
    return GivenNetwork(graph, own, structure.axis_map, structure.regions.carriers)


@torch.no_grad()
def _moments(
    elastic: Elastic,
    branches: Branches,
    places: Sequence[_Place],
    batches: Iterator[GivenInputs],
    count: int,
    rng: np.random.Generator,
) -> dict[str, PatchMoments]:
    """The moments of the inputs of the layers of all replaced blocks, by node."""
    shapes = dict(elastic.structure.graph.shapes)
    layers = layers_to_read([node for place in places for node in dense_layers(place.site)], shapes)
    sums = {node.name: PatchSums(node, shapes[node.inputs[1]], count, rng) for node in layers}
    read_by: dict[str, list[PatchSums]] = {}
    for node in layers:
        read_by.setdefault(node.inputs[0], []).append(sums[node.name])

    def see(name: str, value: torch.Tensor) -> None:
        for each in read_by.get(name, ()):
            each.add(value)

    for x in batches:
        branches.watch(x, see)
    return {name: each.moments() for name, each in sums.items()}


@torch.no_grad()
def _fit_last_layers(
    elastic: Elastic, branches: Branches, batches: Iterator[GivenInputs], count: int, rng: np.random.Generator
) -> None:
    graph = elastic.structure.graph
    producers = graph.producers()
    found = [(branch, find_last_layer(branch, producers, graph.shapes)) for branch in branches.branches]
    sums = [
        (branch, own)
        for branch, last in found
        if last is not None and (own := LastLayerSums(last, graph.shapes[last.reader.inputs[1]], count, rng)).fits
    ]
    original = {name for node in graph.original().nodes for name in node.outputs}
    more = {own.last.target for _, own in sums} | {
        own.last.addend for _, own in sums if own.last.addend is not None and own.last.addend in original
    }
    with elastic.evaluated():
        for x in batches:
            features = branches.features(x, more)
            for branch, own in sums:
                own.add(branches.values(branch, features), features)
    for _, own in sums:
        _store(elastic, own.fitted(elastic.tensors()))


@torch.no_grad()
def _errors(elastic: Elastic, branches: Branches, batches: Iterator[GivenInputs]) -> tuple[FirstWeights, ...]:
    """The error of each branch's result, relative to the variance of the blocks' result."""
    own = {branch.producer: _Spread() for branch in branches.branches}
    with elastic.evaluated():
        for x in batches:
            features = branches.features(x)
            for branch in branches.branches:
                own[branch.producer].add(branches.run(branch, features), features[branch.exit])
    return tuple(
        FirstWeights(variable=branch.variable, choice=branch.choice, error=own[branch.producer].error)
        for branch in branches.branches
    )


@dataclass(slots=True)
class _Spread:
    """Sums over results (B, C, …) or (B, …, C)."""

    lost: float = 0.0
    squares: float = 0.0
    numbers: int = 0
    first: torch.Tensor | float = 0.0

    def add(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        over = 1 if wanted.ndim == 4 else -1
        channels_CN = wanted.movedim(over, 0).flatten(1).double()
        self.lost += float((found - wanted).double().square().sum())
        self.squares += float(channels_CN.square().sum())
        self.first = self.first + channels_CN.sum(1)
        self.numbers += channels_CN.shape[1]

    @property
    def error(self) -> float:
        mean = torch.as_tensor(self.first) / self.numbers
        variance = self.squares - self.numbers * float(mean.square().sum())
        return self.lost / max(variance, 1e-30)


@torch.no_grad()
def _store(elastic: Elastic, tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        elastic.tensor(name).copy_(tensor)
