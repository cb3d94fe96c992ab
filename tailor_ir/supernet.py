"""The SuperNet: what `compile` gives back, and everything that can be asked of it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tailor_ir import storage
from tailor_ir.batch_norms import Statistics
from tailor_ir.build import build
from tailor_ir.common import CommonWeights, write_together
from tailor_ir.describe import describe
from tailor_ir.dims import Windows
from tailor_ir.elastic import Elastic
from tailor_ir.emit import subnet_onnx, write_onnx
from tailor_ir.errors import ImportFailed
from tailor_ir.features import OperatorFeature
from tailor_ir.graph import Graph, Tensors
from tailor_ir.importer import import_onnx
from tailor_ir.kernels import matrices_of, transform_kernels
from tailor_ir.lifetimes import MemoryTable, MemoryTerms
from tailor_ir.lowering import apply_config
from tailor_ir.operators import OperatorTable, OperatorTerm, PlacedOperators
from tailor_ir.passes import simplify
from tailor_ir.propagate import AxisMap, propagate
from tailor_ir.propose import propose
from tailor_ir.regions import Regions, find_regions, repeats
from tailor_ir.resolution import Resolutions
from tailor_ir.samples import repeat_for_samples
from tailor_ir.space import Choice, Config, Space
from tailor_ir.steps import ONNXRUNTIME, Rules
from tailor_ir.templates import element_types
from tailor_ir.trace import load_onnx, trace_module
from tailor_ir.weights import sort_channels
from tailor_ir.wishes import Wish


class SuperNet:
    """A network whose SubNets share its weights. Made by `compile` or `load`.

    batch: of the SubNets that are exported, and of the operators that they have; 1 unless `load` says otherwise.
    """

    def __init__(self, graph: Graph, tensors: Tensors, wish: Wish | None, batch: int = 1) -> None:
        self.batch = batch
        self._operator_tables: dict[int, OperatorTable] = {}
        axis_map, regions = _read(graph, tensors)
        space = replace(propose(graph, axis_map, regions, wish), describe=lambda: describe(self))
        self._wish = wish
        self._memory_tables: dict[Rules, MemoryTable] = {}
        self.elastic = Elastic(graph, tensors, axis_map, regions, space)

    @property
    def space(self) -> Space:
        """Variables, choices and counts."""
        return self.elastic.space

    @property
    def max_config(self) -> Config:
        """The network as it was given."""
        return self.space.max_config

    @property
    def min_config(self) -> Config:
        """The smallest SubNet."""
        return self.space.min_config

    @property
    def kernel_matrices(self) -> tuple[torch.Tensor, ...]:
        """The parameters of learned kernel transforms, which start as identity; none without `kernel_transform`."""
        return tuple(self.elastic.tensor(name) for name in matrices_of(self.elastic.graph))

    def sort_channels(self) -> None:
        """Put the channels of every elastic group in falling importance (L1), so that SubNets keep the important ones.

        The function stays the same up to rounding. Do it once, before fine-tuning. Source: OFA (ICLR 2020) §3.3.
        """
        groups = [w.group for w in self.space.widths if w.group is not None and w.variable is not None]
        groups += [g for e in self.space.expansions for g in e.groups]
        elastic = self.elastic
        sorted_tensors = sort_channels(elastic.graph, elastic.tensors(), elastic.axis_map, groups)
        with torch.no_grad():
            for name, tensor in sorted_tensors.items():
                elastic.tensor(name).copy_(tensor)

    def input_shape(self, config: Mapping[str, Choice], batch: int | None = None) -> tuple[int, ...]:
        """(B, C, H, W) of a SubNet's input."""
        channels = self.elastic.graph.shapes[self.elastic.graph.inputs[0]][1:2]
        return (self.batch if batch is None else batch, *channels, *self.space.spatial(self.space.row(config)))

    def recalibrate(self, config: Mapping[str, Choice], batches: Iterable[torch.Tensor]) -> Statistics:
        """BatchNorm statistics of one SubNet from batches at its resolution; the shared ones stay as they are."""
        self.elastic.activate(config)
        return self.elastic.observe(batches)

    def set_statistics(self, statistics: Statistics) -> None:
        """Store BatchNorm statistics of the largest SubNet as the shared ones."""
        with torch.no_grad():
            for name, value in statistics.items():
                self.elastic.tensor(name).copy_(value)

    def build(self, config: Mapping[str, Choice], statistics: Statistics | None = None) -> nn.Module:
        """A stand-alone network of ordinary torch layers with its own copy of the SubNet's weights, in eval mode."""
        return build(self.elastic, self.space.row(config), statistics)

    def export(
        self,
        config: Mapping[str, Choice],
        path: str | Path,
        *,
        statistics: Statistics | None = None,
        fold_batch_norm: bool = False,
        batch: int | None = None,
        weights: bool = True,
    ) -> None:
        """Write one SubNet as an ONNX file (opset 17, fixed batch size).

        weights=False: a few kilobytes with the same operators, whose weights are all equal; for timing the SubNet.
        """
        model = subnet_onnx(
            self.elastic,
            self.space.row(config),
            statistics=statistics,
            fold_batch_norm=fold_batch_norm,
            batch=self.batch if batch is None else batch,
            weights=weights,
        )
        write_onnx(model, Path(path))

    def export_together(
        self, subnets: Mapping[str, tuple[Mapping[str, Choice], Statistics | None]], folder: str | Path
    ) -> None:
        """Write SubNets by name, each with its statistics, as `NAME.onnx` into a folder; common weights are there once.

        Beside them is `weights.safetensors`, which the ONNX files refer to. BatchNorm is not folded: runtimes do that.
        """
        rows = {name: self.space.row(config) for name, (config, _) in subnets.items()}
        elastic = self.elastic
        parts = [apply_config(elastic.graph, elastic.regions, self.space, row, self.batch) for row in rows.values()]
        common = CommonWeights(elastic, parts)
        models = (
            (
                name,
                subnet_onnx(
                    elastic,
                    row,
                    statistics=subnets[name][1],
                    fold_batch_norm=False,
                    batch=self.batch,
                    weights=True,
                    take=common.take,
                ),
            )
            for name, row in rows.items()
        )
        write_together(models, Path(folder))

    def _operator_table(self, batch: int) -> OperatorTable:
        if batch not in self._operator_tables:
            self._operator_tables[batch] = OperatorTable(self.elastic, batch)
        return self._operator_tables[batch]

    def operators(self, config: Mapping[str, Choice]) -> tuple[OperatorFeature, ...]:
        """The SubNet's operators in order, as a runtime executes them."""
        return self._operator_table(self.batch).operators(self.space.row(config))

    def placed_operators(self, config: Mapping[str, Choice]) -> PlacedOperators:
        """The SubNet's operators in order, with the values that each reads and writes."""
        return self._operator_table(self.batch).placed(self.space.row(config))

    def unique_operators(self) -> Mapping[OperatorFeature, Config]:
        """Every operator that any SubNet has, each with one config that has it."""
        return self._operator_table(self.batch).unique()

    def operator_terms(self) -> tuple[OperatorTerm, ...]:
        """The operators of the largest network as functions of the few variables that each depends on."""
        return tuple(self._operator_table(self.batch).terms())

    def macs(self, config: Mapping[str, Choice]) -> int:
        """Multiply-accumulates of one sample."""
        return sum(feature.macs for feature in self._operator_table(1).operators(self.space.row(config)))

    def parameters(self, config: Mapping[str, Choice]) -> int:
        """Number of parameters, BatchNorm folded."""
        return sum(feature.parameters for feature in self.operators(config))

    def peak_activation_bytes(self, config: Mapping[str, Choice], rules: Rules = ONNXRUNTIME) -> int:
        """What a SubNet's activations take up at most at once (batch 1), without its input.

        rules: what the runtime does with memory. Nothing is built: sizes are the axes', lifetimes the graph's.
        """
        return self._memory_table(rules).peak_bytes(self.space.row(config))

    def peak_arena_bytes(self, config: Mapping[str, Choice], rules: Rules = ONNXRUNTIME) -> int:
        """What onnxruntime's arena has in use at most for a SubNet's activations in a first run (batch 1).

        More than `peak_activation_bytes`: chunks may be up to twice what was asked for (`arena`).
        """
        return self._memory_table(rules).arena_bytes(self.space.row(config))

    def memory_terms(self, rules: Rules = ONNXRUNTIME) -> MemoryTerms:
        """What `peak_activation_bytes` works with, over all configs, as functions of few variables."""
        return self._memory_table(rules).terms()

    def _memory_table(self, rules: Rules) -> MemoryTable:
        if rules not in self._memory_tables:
            graph, tensors = self.elastic.graph, self.elastic.tensors()
            types = element_types(graph, {name: tensors[name] for name in graph.constants})
            sizes = {name: np.dtype(kind).itemsize for name, kind in types.items()}
            self._memory_tables[rules] = MemoryTable(self.elastic, sizes, rules)
        return self._memory_tables[rules]

    def save(self, path: str | Path) -> None:
        """Write the SuperNet into a folder: JSON and safetensors."""
        tensors = {name: tensor.cpu() for name, tensor in self.elastic.tensors().items()}
        storage.save(Path(path), self.elastic.graph, tensors, self._wish)


def _read(graph: Graph, tensors: Tensors) -> tuple[AxisMap, Regions]:
    """Axes and regions of a network.

    Windows of positions are many or large, whichever leaves resolutions to choose from. Where nothing can be skipped,
    layers that keep the shape are given the same axes on both sides, so that they can.
    """
    windows: Windows = "number"
    axis_map = propagate(graph, tensors)
    shape = graph.shapes[graph.inputs[0]]
    if len(shape) == 4 and len(set(shape[2:])) == 1 and _choices(axis_map, shape[2]) == 1:
        other = propagate(graph, tensors, windows="size")
        if _choices(other, shape[2]) > 1:
            axis_map, windows = other, "size"
    regions = find_regions(graph, axis_map)
    joins = () if any(stage.trailing for stage in regions.stages) else repeats(graph, regions)
    if joins:
        axis_map = propagate(graph, tensors, windows, joins)
        regions = find_regions(graph, axis_map, joins)
    return axis_map, regions


def _choices(axis_map: AxisMap, base: int) -> int:
    return 1 if axis_map.resolution_frozen else len(Resolutions(axis_map, base).proposed())


def compile(
    model: nn.Module | str | Path,
    example_input: torch.Tensor | None = None,
    space: Wish | None = None,
    kernel_transform: bool = False,
) -> SuperNet:
    """Turn a network into a SuperNet.

    model: a module (`example_input`: one sample (1, C, H, W) at full resolution) or the path of an ONNX file (an example
    is needed only where the file leaves the input's height or width open).
    space: selectors of variable names -> choices or "auto"; what is not named stays as it is. None proposes a space.
    kernel_transform: smaller kernels are learned transforms of larger ones, which start as their centre (OFA, ICLR 2020).
    ImportFailed: the network cannot be read. SpaceError: the space asks for what this network cannot do.
    """
    if isinstance(model, nn.Module):
        if example_input is None:
            raise ImportFailed("network: no example input; give one sample, a tensor (1, C, H, W)")
        proto, state = trace_module(model, example_input)
        graph, tensors = import_onnx(proto, state)
    else:
        shape = None if example_input is None else tuple(example_input.shape)
        graph, tensors = import_onnx(load_onnx(Path(model)), example_shape=shape)
    graph, tensors = repeat_for_samples(*simplify(graph, tensors))
    if kernel_transform:
        axis_map, regions = _read(graph, tensors)
        proposed = propose(graph, axis_map, regions, space)
        graph, tensors = transform_kernels(graph, tensors, axis_map, regions, proposed)
    return SuperNet(graph, tensors, space)


def load(path: str | Path, *, batch: int = 1) -> SuperNet:
    """Read a SuperNet that `SuperNet.save` wrote. batch: of the SubNets to export, and of their operators."""
    graph, tensors, wish = storage.load(Path(path))
    return SuperNet(graph, tensors, wish, batch)
