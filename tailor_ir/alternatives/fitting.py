"""First weights of alternatives from data: a trained network and a few hundred images, before any training.

Each kind fits the layers that it replaces to their inputs, by moments of these. BatchNorm statistics are recomputed.
Then the last layer compensates for the loss before it, and statistics are recomputed once more. The remaining error is
measured on other images. `tailor_ir.alternatives.least_squares` has the moments and the least squares.

The last layer of every kind is fitted so that the alternative gives the result of the blocks. It is found from the exit
backwards: through an activation that the blocks end with, too, a sum whose other operand is left unchanged, and a
BatchNorm, which afterwards passes the layer's result through unchanged.

Legend: N patches, O output channels, I input channels, K positions of a kernel.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import prod

import numpy as np
import torch

from tailor_ir.alternatives.adding import ALTERNATIVES, named_rows, prefix_of
from tailor_ir.alternatives.layers import dense_layers
from tailor_ir.alternatives.least_squares import (
    EPSILON,
    MOST_NUMBERS,
    PATCHES_FOR_EACH,
    PatchMoments,
    PatchSums,
    ReplacedLayer,
    chosen,
    layers_to_read,
    norm_factors,
    of_rank,
    regression,
    results,
    windows,
)
from tailor_ir.alternatives.site import GivenNetwork, Site
from tailor_ir.alternatives.sketch import AlternativeKind, Sketch
from tailor_ir.graph import GivenInputs, Node, Tensors
from tailor_ir.ops.elementwise import ACTIVATIONS
from tailor_ir.spaces.space import Structure
from tailor_ir.subnets.elastic import Branch, Branches, Elastic, Features

BIAS = 2  # position of the bias among a layer's inputs
FOLDS = 2
RIDGES = (1e-3, 1e-2, 0.1, 1.0, 10.0)
"""Ridges to try, as shares of the mean of the diagonal: with few patches only a heavy ridge helps on other patches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLayer:
    """A layer of an alternative. norm: the BatchNorm behind it. addend: the value that is added to it.

    inner: a 1×1 map that only this layer reads, if the layer is a 1×1 map, too: both together are one map of lower rank.
    target: the original's value that the sum of layer and addend approximates.
    """

    layer: Node
    norm: Node | None
    inner: Node | None
    addend: str | None
    target: str

    @property
    def reader(self) -> Node:
        """The node whose input is mapped."""
        return self.inner or self.layer


def find_last_layer(
    branch: Branch, producers: Mapping[str, Node], shapes: Mapping[str, tuple[int, ...]]
) -> LastLayer | None:
    """The last layer of a branch; None if anything but activation, sum and BatchNorm follows it.

    producers, shapes: those of the graph.
    """
    own = set(branch.parameters)
    value, target = branch.producer, branch.exit
    while (node := producers[value]).op in ACTIVATIONS:
        given = producers.get(target)
        if given is None or (given.op, given.attributes, given.inputs[1:]) != (
            node.op,
            node.attributes,
            node.inputs[1:],
        ):
            return None
        value, target = node.inputs[0], given.inputs[0]
    if node.op != "Add":
        found = _dense(value, producers, own)
        if found is None:
            return None
        inner = _inner(found[0], branch, producers, shapes)
        return LastLayer(layer=found[0], norm=found[1], inner=inner, addend=None, target=target)
    for value, addend in (node.inputs, node.inputs[::-1]):
        found = _dense(value, producers, own)
        if found is not None and shapes[value] == shapes[addend]:
            inner = _inner(found[0], branch, producers, shapes)
            return LastLayer(layer=found[0], norm=found[1], inner=inner, addend=addend, target=target)
    return None


def _dense(value: str, producers: Mapping[str, Node], own: set[str]) -> tuple[Node, Node | None] | None:
    """The layer over all channels that gives a value, and the BatchNorm between both."""
    node, norm = producers.get(value), None
    if node is not None and node.op == "BatchNormalization":
        if not own.issuperset(node.inputs[1:3]):
            return None
        norm, node = node, producers.get(node.inputs[0])
    if node is None or node.op not in ("Conv", "Linear") or node.int("group", 1) != 1 or node.inputs[1] not in own:
        return None
    return node, norm


def _inner(
    layer: Node, branch: Branch, producers: Mapping[str, Node], shapes: Mapping[str, tuple[int, ...]]
) -> Node | None:
    """The 1×1 map without a bias that only this layer of the branch reads, if the layer is a 1×1 map, too."""
    inner = producers.get(layer.inputs[0])
    if inner is None or inner.op != layer.op or len(inner.inputs) > BIAS or inner.int("group", 1) != 1:
        return None
    points = all(
        prod(shapes[node.inputs[1]][2:]) == 1 and max(node.ints("strides", (1,))) == 1 for node in (inner, layer)
    )
    reads = sum(inner.outputs[0] in each.operands for each in branch.instructions)
    return inner if points and reads == 1 and inner.inputs[1] in branch.parameters else None


@dataclass(frozen=True, slots=True)
class _Fold:
    """Sums over some patches: their number, and sums of x xᵀ (n, n), y xᵀ (O, n), x (n,) and y (O,)."""

    count: int
    xx: torch.Tensor
    yx: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor

    @classmethod
    def of(cls, x_NI: torch.Tensor, y_NO: torch.Tensor) -> "_Fold":
        return cls(len(x_NI), x_NI.T @ x_NI, y_NO.T @ x_NI, x_NI.sum(0), y_NO.sum(0))

    def __add__(self, other: "_Fold") -> "_Fold":
        return _Fold(
            self.count + other.count, self.xx + other.xx, self.yx + other.yx, self.x + other.x, self.y + other.y
        )

    def moments(self, *, centred: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """E[x xᵀ] and E[y xᵀ]; centred: the covariances."""
        second, cross, x, y = (each / self.count for each in (self.xx, self.yx, self.x, self.y))
        if centred:
            second, cross = second - torch.outer(x, x), cross - torch.outer(y, x)
        return second, cross


@dataclass(slots=True)
class LastLayerSums:
    """Sums over the patches that a last layer reads, and over its target results, in two folds of the batches."""

    last: LastLayer
    weight_shape: tuple[int, ...]
    images: int
    rng: np.random.Generator
    folds: list[_Fold] = field(default_factory=list)
    batches: int = 0

    @property
    def fits(self) -> bool:
        """Whether the moments fit into memory."""
        return prod(self.weight_shape[1:]) <= MOST_NUMBERS

    def add(self, values: Mapping[str, torch.Tensor], features: Features) -> None:
        """Add the values of the branch on a batch, and the features of the original network."""
        last, node = self.last, self.last.layer
        target = features[last.target]
        if last.addend is not None:
            target = target - (values[last.addend] if last.addend in values else features[last.addend])
        x = values[last.reader.inputs[0]]
        read = windows(x, last.reader, self.weight_shape[2:])
        wanted = -(-PATCHES_FOR_EACH * prod(self.weight_shape[1:]) * len(x) // self.images)
        places = chosen(read.places, wanted, self.rng)
        found = _Fold.of(read.at(places).double().cpu(), results(target, node, places).double().cpu())
        at = self.batches % FOLDS
        self.batches += 1
        if at < len(self.folds):
            self.folds[at] = self.folds[at] + found
        else:
            self.folds.append(found)

    def fitted(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """New values of tensors by name; empty if no change helps on the other fold of batches.

        tensors: the present values.
        """
        node, norm = self.last.layer, self.last.norm
        has_bias = len(node.inputs) > BIAS and bool(node.inputs[BIAS])
        centred = has_bias or norm is not None
        weight = tensors[node.inputs[1]].cpu()
        before, inner = weight.double().flatten(1), self.last.inner
        rank = before.shape[1]
        if inner is not None:
            before = before @ tensors[inner.inputs[1]].cpu().double().flatten(1)
        if norm is not None:
            before = before * norm_factors(norm, tensors)[:, None]
        ridge = self._ridge(before, rank, centred=centred)
        if ridge is None:
            return {}
        whole = sum(self.folds[1:], self.folds[0])
        second, cross = whole.moments(centred=centred)
        after = before + _change(cross - before @ second, second, ridge)
        outer, found = after, {}
        if inner is not None:
            down, outer = of_rank(after, rank, second)
            after = outer @ down
            found[inner.inputs[1]] = down.reshape(tensors[inner.inputs[1]].shape)
        x, y = whole.x / whole.count, whole.y / whole.count
        mean = after @ x
        found[node.inputs[1]] = outer.reshape(weight.shape)
        if has_bias:
            found[node.inputs[BIAS]] = y - mean if norm is None else torch.zeros_like(mean)
        if norm is not None:
            variance = ((after @ second) * after).sum(1).clamp_min(0)
            statistics = (variance + norm.float("epsilon", EPSILON)).sqrt(), y, mean, variance
            found |= dict(zip(norm.inputs[1:5], statistics, strict=True))
        return {name: value.to(tensors[name]) for name, value in found.items()}

    def _ridge(self, before: torch.Tensor, rank: int, *, centred: bool) -> float | None:
        """The ridge that improves the other fold most, with weights of a given rank; None if none improves it."""
        if len(self.folds) < FOLDS:
            return None
        moments = [fold.moments(centred=centred) for fold in self.folds]
        missing = [cross - before @ second for second, cross in moments]
        losses: dict[float | None, float] = {None: sum(_lost(before, *each) for each in moments)}
        for ridge in RIDGES:
            changed = [before + _change(own, second, ridge) for own, (second, _) in zip(missing, moments, strict=True)]
            if rank < min(before.shape):
                cut = [of_rank(w, rank, second) for w, (second, _) in zip(changed, moments, strict=True)]
                changed = [up @ down for down, up in cut]
            losses[ridge] = sum(_lost(w, *each) for w, each in zip(changed, reversed(moments), strict=True))
        return min(losses, key=lambda ridge: losses[ridge])


def _change(missing: torch.Tensor, second: torch.Tensor, ridge: float) -> torch.Tensor:
    """The change (O, n) of a weight by least squares, with a ridge relative to the mean of the diagonal.

    missing: E[y xᵀ] (O, n) of the part of y that the weight does not give yet.
    """
    heavy = second.clone()
    heavy.diagonal().add_(ridge * second.diagonal().mean())
    return regression(missing, heavy)


def _lost(weight: torch.Tensor, second: torch.Tensor, cross: torch.Tensor) -> float:
    """The mean square of y - W x, without the terms that do not depend on W."""
    return float((weight @ second * weight).sum() - 2 * (weight * cross).sum())


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

    def described(batches: Sequence[GivenInputs]) -> Iterator[GivenInputs]:
        for x in batches:
            yield x
            advance()

    count = sum(len(x) if isinstance(x, torch.Tensor) else len(x[0]) for x in images)
    moments = _moments(elastic, branches, places, described(images), count, rng)
    for _, own in groupby(places, key=lambda place: place.branch.variable):
        layers: dict[str, ReplacedLayer] = {}
        for place in own:
            sketch = Sketch(place.site, prefix_of(place.site, place.branch.choice), moments, layers)
            place.kind.write(sketch, place.number)
            _store(elastic, {**sketch.parameters, **sketch.statistics})
    del moments, layers
    _store(elastic, branches.observe(described(images)))
    _fit_last_layers(elastic, branches, described(images), count, rng)
    _store(elastic, branches.observe(described(images)))
    return _errors(elastic, branches, described(held_out)) if held_out else ()


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
