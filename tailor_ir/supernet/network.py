"""The SuperNet: the result of `compile`, with all its operations."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from tailor_ir import storage
from tailor_ir.alternatives import FirstWeights, Refused, fit_alternatives
from tailor_ir.errors import InputError
from tailor_ir.exits import FirstExit, fit_exits
from tailor_ir.graph import GivenInputs, Graph, Tensors
from tailor_ir.memory.activations import ActivationMemory
from tailor_ir.memory.layouts import ONNXRUNTIME, Rules
from tailor_ir.operators.features import OperatorFeature
from tailor_ir.operators.table import OperatorTable, OperatorTerm, PlacedOperators
from tailor_ir.operators.templates import element_types
from tailor_ir.partition import PrePartition, split_parts
from tailor_ir.rewriting.passes import matrices_of
from tailor_ir.spaces.proposal import propose
from tailor_ir.spaces.selectors import Choice, Config, SpaceSpec
from tailor_ir.spaces.space import Space, Structure
from tailor_ir.spaces.stage_kinds import EXIT
from tailor_ir.structure.regions import find_axes_and_regions
from tailor_ir.subnets.batch_norms import Statistics
from tailor_ir.subnets.elastic import Branches, Elastic
from tailor_ir.subnets.onnx_export import answers_onnx, parts_onnx, subnet_onnx, write_onnx
from tailor_ir.subnets.plans import sort_channels
from tailor_ir.subnets.segments import (
    BlockPart,
    BlockSegment,
    Segment,
    exits_of,
    find_block_parts,
    find_parts,
    with_all_answers,
)
from tailor_ir.subnets.standalone import build, build_nodes, own_tensors
from tailor_ir.summary import describe
from tailor_ir.supernet.checking import (
    BATCHES,
    ChannelOrder,
    Reference,
    check_forms,
    check_saved,
    correlation,
    narrower,
    put_together,
    sortable,
)
from tailor_ir.supernet.exporting import WithStatistics, export_together
from tailor_ir.supernet.joining import take_part
from tailor_ir.supernet.reading import Batching

NUMBERS = {"uint8": (0, 256), "int8": (-128, 128)}
"""Ranges of drawn integers by type; longer integers are drawn as masks."""


class SuperNet:
    """A network whose SubNets share its weights. Made by `compile` or `load`.

    batch: batch size of exported SubNets and of their operators; 1 unless `load` sets another.
    """

    def __init__(self, graph: Graph, tensors: Tensors, spec: SpaceSpec | None, batch: int = 1) -> None:
        self.batch = batch
        self.remarks: tuple[str, ...] = ()
        """Messages for the user from `compile`; logged, and not saved."""
        self.original: Reference | None = None
        """Answers of the network that `compile` was given, to check the largest SubNet against; not saved."""
        self.refused: tuple[Refused, ...] = ()
        """Alternatives and exits that `compile` refused, with the reasons; not saved."""
        self.folder: Path | None = None
        """The folder from which `load` read it; its weights may be older than those in memory. None: not loaded."""
        self._operator_tables: dict[int, OperatorTable] = {}
        self._pre_partition: PrePartition | None = None
        axis_map, regions = find_axes_and_regions(graph, tensors)
        structure = propose(graph, axis_map, regions, spec)
        self._spec = spec
        self._memories: dict[Rules, ActivationMemory] = {}
        space = replace(structure.space, describe=lambda: describe(structure))
        self.elastic = Elastic(replace(structure, space=space), tensors)

    @property
    def structure(self) -> Structure:
        """Graph, axes, regions and space, without weights."""
        return self.elastic.structure

    @property
    def space(self) -> Space:
        """Variables, choices and counts."""
        return self.structure.space

    @property
    def max_config(self) -> Config:
        """The config of the original network."""
        return self.space.max_config

    @property
    def min_config(self) -> Config:
        """The config of the smallest SubNet."""
        return self.space.min_config

    @property
    def kernel_matrices(self) -> tuple[torch.Tensor, ...]:
        """The parameters of learned kernel transforms, initialised as identity; empty without `kernel_transform`."""
        return tuple(self.elastic.tensor(name) for name in matrices_of(self.structure.graph))

    def sort_channels(self) -> None:
        """Sort the channels of every elastic group by falling importance, so that SubNets keep the important ones.

        The function stays the same up to rounding: channels that an operator reads in their order, as neighbours or by
        position, are not sorted (`structure.axis_map.ordered`). Call it once, before fine-tuning. Source: OFA (ICLR 2020) §3.3.
        """
        structure = self.structure
        groups = sortable(self.space, structure.axis_map)
        self._store(sort_channels(structure.graph, self.elastic.tensors(), structure.axis_map, groups))

    def sort_channels_if_closer(
        self, images: Sequence[GivenInputs], held_out: Sequence[GivenInputs], rng: np.random.Generator
    ) -> ChannelOrder:
        """Sort channels as `sort_channels`; undo it unless it brings smaller SubNets closer to the network's answers.

        images: batches at the largest SubNet's resolution, or of all inputs, for BatchNorm statistics of the smaller SubNets;
        held_out: holdout batches, on which their answers are compared with the network's. Call it once, before fine-tuning.
        """
        configs = narrower(self.space, sortable(self.space, self.structure.axis_map), rng)
        if not configs:
            return ChannelOrder(0.0, 0.0)
        before = {name: tensor.detach().clone() for name, tensor in self.elastic.tensors().items()}
        expected = self._answers_to(held_out, self.max_config, {})

        def closeness() -> float:
            found = []
            for config in configs:
                statistics = self.recalibrate(config, images) if self.structure.graph.statistics else {}
                found.append(correlation(expected, self._answers_to(held_out, config, statistics)))
            return float(np.mean(found))

        own = closeness()
        self.sort_channels()
        order = ChannelOrder(own, closeness())
        if not order.is_sorted:
            self._store(before)
        return order

    @torch.no_grad()
    def _answers_to(
        self, batches: Sequence[GivenInputs], config: Mapping[str, Choice], statistics: Statistics
    ) -> list[torch.Tensor]:
        self.elastic.activate(config, statistics)
        with self.elastic.evaluated():
            found = [self.elastic(*((x,) if isinstance(x, torch.Tensor) else x)) for x in batches]
        return put_together(found)

    @torch.no_grad()
    def _store(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            self.elastic.tensor(name).copy_(tensor)

    def answers(self) -> Reference:
        """Present answers of the largest SubNet, for a check after steps that must not change them."""
        batches = [self._drawn_batch(np.random.default_rng(size), size) for size in BATCHES]
        return Reference.of(self._largest, batches)

    def check_against(self, reference: Reference | None = None, where: str = "network") -> None:
        """Compare the largest SubNet with its original network, on several inputs and in batches of two sizes.

        reference: answers of a network, from `answers` or `Reference.of`; None: those of the network that `compile` was given,
        if known. where: the step that was just done. CheckFailed if the answers differ.
        """
        known = self.original if reference is None else reference
        if known is not None:
            known.check(lambda given: self._largest(*given), where, "the original")

    def check_forms(
        self,
        config: Mapping[str, Choice] | None = None,
        statistics: Statistics | None = None,
        where: str = "network",
        adapted: Callable[..., object] | None = None,
    ) -> None:
        """Compare a SubNet elastic, built and exported, in batches of two sizes; BatchNorm is folded for one of them.

        config: None: the largest. adapted: an adapted form of the SubNet, which replaces the elastic one, since that has not
        adapted. CheckFailed if the answers of two forms differ.
        """
        codes = self.space.row(self.max_config if config is None else config)
        chosen = self.space.decode(codes)

        def elastic(given: Sequence[torch.Tensor]) -> object:
            if adapted is not None:
                return adapted(*given)
            self.elastic.activate(chosen, statistics)
            with self.elastic.evaluated():
                return self.elastic(*given)

        def exported(batch: int) -> onnx.ModelProto:
            folded = batch == max(BATCHES)
            return subnet_onnx(
                self.elastic, codes, statistics=statistics, fold_batch_norm=folded, batch=batch, weights=True
            )

        check_forms(
            elastic,
            self.build(chosen, statistics),
            {batch: exported(batch) for batch in BATCHES},
            lambda rng, batch: self.sample_inputs(chosen, rng, batch),
            Batching.of(self.structure),
            where,
            "the elastic one" if adapted is None else "the one that has adapted",
        )

    def _largest(self, *given: torch.Tensor) -> object:
        self.elastic.activate(self.max_config)
        with self.elastic.evaluated():
            return self.elastic(*given)

    def _drawn_batch(self, rng: np.random.Generator, batch: int) -> tuple[torch.Tensor, ...]:
        return tuple(map(torch.from_numpy, self.sample_inputs(self.max_config, rng, batch)))

    def fit_alternatives(
        self,
        images: Sequence[GivenInputs],
        held_out: Sequence[GivenInputs],
        rng: np.random.Generator,
        advance: Callable[[], None] = lambda: None,
    ) -> tuple[FirstWeights, ...]:
        """Fit first weights of alternatives to a few hundred images; call it once, before fine-tuning.

        images, held_out: batches (B, C, H, W) at the largest SubNet's resolution, or of all inputs. Returns the error of each
        alternative on the holdout batches. `tailor_ir.alternatives.fitting` describes the method, and `advance`.
        """
        return fit_alternatives(self.elastic, images, held_out, rng, advance)

    def fit_exits(
        self,
        images: Sequence[torch.Tensor],
        held_out: Sequence[torch.Tensor],
        advance: Callable[[], None] = lambda: None,
    ) -> tuple[FirstExit, ...]:
        """Fit first weights of the heads of exits to the network's answers on a few hundred images.

        images, held_out: as in `fit_alternatives`. Returns how often each exit agrees with the network on the holdout batches.
        """
        return fit_exits(self.elastic, images, held_out, advance)

    def input_shape(self, config: Mapping[str, Choice], batch: int | None = None) -> tuple[int, ...]:
        """(B, C, H, W) of a SubNet's only input. InputError if the network has several; then use `input_shapes`."""
        shapes = self.input_shapes(config, batch)
        if len(shapes) != 1:
            raise InputError(
                f"network: {len(shapes)} inputs ({', '.join(shapes)}); allowed: one, where a single shape is asked for; "
                "ask for input_shapes"
            )
        return next(iter(shapes.values()))

    def input_size(self, config: Mapping[str, Choice]) -> tuple[int, ...]:
        """(height, width) of a SubNet's images, or (length,) of its token sequences."""
        return self.space.spatial(self.space.row(config))

    def sample_input(
        self, config: Mapping[str, Choice], rng: np.random.Generator, batch: int | None = None
    ) -> np.ndarray:
        """A batch of a SubNet's only input, drawn as in `sample_inputs`. InputError if the network has several inputs."""
        self.input_shape(config, batch)
        return self.sample_inputs(config, rng, batch)[0]

    def sample_inputs(
        self, config: Mapping[str, Choice], rng: np.random.Generator, batch: int | None = None
    ) -> tuple[np.ndarray, ...]:
        """A batch of each input of a SubNet in order: normal numbers, truth values, bytes, or tokens within its look-up tables.

        Longer integers that are read as numbers are masks of zeros and ones.
        """
        graph, found = self.structure.graph, []
        for name, shape in self.input_shapes(config, batch).items():
            tokens, kind = graph.tokens_of(name), graph.input_type(name)
            drawn: np.ndarray
            if kind == "bool":
                drawn = rng.random(shape) < 0.5
            elif tokens is None:
                drawn = rng.standard_normal(shape, dtype=np.float32)
            elif graph.is_numeric(name):
                drawn = rng.integers(*NUMBERS.get(kind, (0, 2)), shape)
            else:
                drawn = rng.integers(tokens, size=shape)
            found.append(np.asarray(drawn).astype(kind))
        return tuple(found)

    def input_shapes(self, config: Mapping[str, Choice], batch: int | None = None) -> dict[str, tuple[int, ...]]:
        """Input name -> its shape in a SubNet, in the order of the network's call arguments."""
        sizes = self.space.sizes(self.space.row(config), self.batch if batch is None else batch)
        axes = self.structure.axis_map.axes
        return {name: sizes.shape(axes[name]) for name in self.structure.graph.inputs}

    def recalibrate(self, config: Mapping[str, Choice], batches: Iterable[GivenInputs]) -> Statistics:
        """BatchNorm statistics of one SubNet from batches at its resolution; the shared ones stay unchanged.

        batches: of the only input, or of all inputs in order.
        """
        self.elastic.activate(config)
        return self.elastic.observe(batches)

    def recalibrate_alternatives(self, batches: Iterable[GivenInputs]) -> Statistics:
        """BatchNorm statistics of all alternatives, from batches at the largest SubNet's resolution; nothing shared is written.

        Each alternative runs separately at full size, on the largest SubNet's features before the blocks that it replaces;
        heads of exits likewise, on the features at their places.
        """
        kinds = [branches for branches in map(self._branches, ("block", EXIT.name)) if branches.branches]
        kept = list(batches) if len(kinds) > 1 else batches
        return {name: tensor for branches in kinds for name, tensor in branches.observe(kept).items()}

    def _branches(self, kind: str) -> Branches:
        return Branches(self.elastic, kind)

    def set_statistics(self, statistics: Statistics) -> None:
        """Store BatchNorm statistics as the shared ones: those of the largest SubNet, and of alternatives."""
        self._store(statistics)

    def own_statistics(self, config: Mapping[str, Choice]) -> Statistics | None:
        """A copy of the stored BatchNorm statistics, for the SubNets to which they belong; None: the SubNet needs images.

        They belong to the largest SubNet, and to SubNets that leave it early at an exit: both normalise the same values.
        """
        codes = self.space.row(config)
        sizes = [column for column, variable in enumerate(self.space.variables) if variable.kind != EXIT.name]
        if (codes[sizes] != (self.space.cardinalities - 1)[sizes]).any():
            return None
        nodes = self.structure.subnet(codes).nodes
        names = [name for node in nodes if node.op == "BatchNormalization" for name in node.inputs[3:5]]
        return {name: self.elastic.tensor(name).detach().clone() for name in names}

    def take(self, part: str, other: "SuperNet") -> tuple[str, ...]:
        """Copy the tensors of a part that another network also has from its SuperNet; return their names.

        part: the path of a module, such as "backbone". Its weights, statistics and alternatives are copied; SubNets then
        compute the same in it as the other's. JoinError if the other network's part differs, or has other alternatives.
        """
        return take_part(self.elastic, other.elastic, part)

    def build(self, config: Mapping[str, Choice], statistics: Statistics | None = None) -> nn.Module:
        """A stand-alone network of ordinary torch layers with its own copy of the SubNet's weights, in eval mode."""
        return build(self.elastic, self.space.row(config), statistics)

    def own_tensors(self, config: Mapping[str, Choice], state: Mapping[str, torch.Tensor]) -> Statistics:
        """Tensors of an adapted SubNet, by their names in the network.

        state: tensors that differ from the network that `build` made, by names of its `state_dict`. If given as statistics to
        `build` and to exports, together with those of BatchNorm, they replace shared weights in this SubNet alone. Names that
        the network does not know are ignored; if several layers have one tensor, the last one counts.
        """
        return own_tensors(self.elastic, self.space.row(config), state)

    def exits(self, config: Mapping[str, Choice]) -> tuple[str, ...]:
        """The exits that a SubNet passes, its own as the last one; () for a space without exits."""
        return exits_of(self.structure, self.space.row(config))

    def segments(
        self, config: Mapping[str, Choice], statistics: Statistics | None = None, exits: Sequence[str] | None = None
    ) -> tuple[Segment, ...]:
        """A SubNet as a chain of stand-alone networks (`build`), each up to one exit that it passes, the last one to its own.

        exits: the requested ones; None: all. statistics: also those of their heads, as `recalibrate` gives them for the SubNets
        that end there. SpaceError for exits that it does not pass.
        """
        parts = find_parts(self.structure, self.space.row(config), exits)
        made = []
        for part, macs in zip(parts, self._macs_of_parts(config, [part.exit for part in parts]), strict=True):
            module = build_nodes(self.elastic, part.subnet, part.inputs, statistics)
            made.append(Segment(exit=part.exit, module=module, inputs=part.inputs, outputs=part.outputs, macs=macs))
        return tuple(made)

    def block_segments(self, config: Mapping[str, Choice] | None = None) -> tuple[BlockSegment, ...]:
        """The segments of all SubNets that differ from `config` in alternatives alone, in the order of their files.

        config: None: the largest SubNet. `export_together` writes them. SpaceError if no block has alternatives.
        """
        parts = find_block_parts(self.structure, self.space.row(self.max_config if config is None else config))
        return tuple(map(self._block_segment, parts))

    def _block_segment(self, part: BlockPart) -> BlockSegment:
        names = {node.name for node in part.subnet.nodes}
        own = [one.feature for one in self._operator_table(1).placed(part.codes).operators if one.names & names]
        return BlockSegment(
            start=part.start,
            end=part.end,
            variable=part.variable,
            choice=part.choice,
            macs=sum(feature.macs for feature in own),
            parameters=sum(feature.parameters for feature in own),
        )

    def _macs_of_parts(self, config: Mapping[str, Choice], exits: Sequence[str]) -> Iterator[int]:
        """Multiply-accumulates of one sample that each exit needs in addition to those before it."""
        table, known = self._operator_table(1), set[int]()
        for name in exits:
            operators = table.numbered(self.space.row({**config, EXIT.name: name}))
            yield sum(operator.macs for position, operator in operators.items() if position not in known)
            known |= operators.keys()

    def export_segments(
        self,
        config: Mapping[str, Choice],
        folder: str | Path,
        *,
        statistics: Statistics | None = None,
        exits: Sequence[str] | None = None,
        fold_batch_norm: bool = False,
        batch: int | None = None,
    ) -> None:
        """Write the segments of a SubNet (`segments`) as `0.onnx`, `1.onnx`, … into a folder.

        Inputs and outputs have the names listed in the segments; a value passed from one to another has the same name in both.
        """
        parts = find_parts(self.structure, self.space.row(config), exits, self.batch if batch is None else batch)
        models = parts_onnx(self.elastic, parts, statistics=statistics, fold_batch_norm=fold_batch_norm, weights=True)
        for number, model in enumerate(models):
            write_onnx(model, Path(folder) / f"{number}.onnx")

    def export_answers(
        self,
        config: Mapping[str, Choice],
        path: str | Path,
        *,
        statistics: Statistics | None = None,
        exits: Sequence[str] | None = None,
        fold_batch_norm: bool = False,
        batch: int | None = None,
    ) -> None:
        """Write a SubNet with the heads of exits (`segments`) as one ONNX file, whose outputs are their answers in order.

        For runtimes like ncnn that compute what one requested output needs, and continue from there for the next one.
        """
        subnet = with_all_answers(self.structure, self.space.row(config), exits, self.batch if batch is None else batch)
        model = answers_onnx(self.elastic, subnet, statistics=statistics, fold_batch_norm=fold_batch_norm)
        write_onnx(model, Path(path))

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

        weights=False: a few kilobytes with the same operators and one repeated number as weights, for timing the SubNet.
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
        self,
        subnets: Mapping[str, WithStatistics],
        folder: str | Path,
        chains: Mapping[str, Sequence[str]] | None = None,
        blocks: WithStatistics | None = None,
        observed_images: int | None = None,
    ) -> None:
        """Write SubNets by name, each with its statistics, as `NAME.onnx` into a folder; common weights are stored once.

        The ONNX files refer to `weights.safetensors` in the same folder. BatchNorm is not folded: runtimes do that. chains:
        exits by name, whose segments (`segments`), up to the last of these exits, are also written, as `NAME.0.onnx`,
        `NAME.1.onnx`, … blocks: a config, and BatchNorm statistics of the largest SubNet and of alternatives; its
        `block_segments` are written as `blocks.0.onnx`, `blocks.1.onnx`, … observed_images: each SubNet with BatchNorm is also
        written as `NAME.statistics.onnx`, for that many images at once, with the statistics of its BatchNorms' inputs
        (`with_statistics`). Mean and variance of BatchNorms are then stored outside the ONNX files, whatever their size, so
        that a runtime can override them.
        """
        export_together(self.elastic, self.batch, subnets, Path(folder), chains or {}, blocks, observed_images)

    def _operator_table(self, batch: int) -> OperatorTable:
        if batch not in self._operator_tables:
            self._operator_tables[batch] = OperatorTable(self.structure, self.constants(), batch)
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
        """The operators of the largest network as functions of the few variables on which each depends."""
        return tuple(self._operator_table(self.batch).terms())

    def macs(self, config: Mapping[str, Choice]) -> int:
        """Multiply-accumulates of one sample."""
        return sum(feature.macs for feature in self._operator_table(1).operators(self.space.row(config)))

    def parameters(self, config: Mapping[str, Choice]) -> int:
        """Number of parameters, BatchNorm folded."""
        return sum(feature.parameters for feature in self.operators(config))

    def peak_activation_bytes(self, config: Mapping[str, Choice], rules: Rules = ONNXRUNTIME) -> int:
        """The peak memory of a SubNet's activations (batch 1), without its input.

        rules: the runtime's memory rules. Nothing is built: sizes come from the axes, lifetimes from the graph.
        """
        return int(self.activation_memory(rules).peak_bytes(self.space.row(config)[None])[0])

    def peak_arena_bytes(self, config: Mapping[str, Choice], rules: Rules = ONNXRUNTIME) -> int:
        """The peak use of onnxruntime's arena for a SubNet's activations in a first run (batch 1).

        More than `peak_activation_bytes`: chunks may be up to twice the requested size (`arena`).
        """
        return self.activation_memory(rules).arena_bytes(self.space.row(config))

    def activation_memory(self, rules: Rules = ONNXRUNTIME) -> ActivationMemory:
        """Memory of activations for whole populations of SubNets."""
        if rules not in self._memories:
            self._memories[rules] = ActivationMemory.of(self.structure, self._element_bytes(), rules)
        return self._memories[rules]

    def pre_partition(self) -> PrePartition:
        """Operators, values and cuts of all SubNets, for splitting SubNets over devices; computed once."""
        if self._pre_partition is None:
            table = self._operator_table(self.batch)
            self._pre_partition = PrePartition(self.structure, table, self._element_bytes(), self.batch)
        return self._pre_partition

    def export_parts(
        self,
        config: Mapping[str, Choice],
        groups: Sequence[Sequence[int]],
        folder: str | Path,
        *,
        statistics: Statistics | None = None,
        fold_batch_norm: bool = False,
    ) -> None:
        """Write the parts of a split SubNet as `0.onnx`, `1.onnx`, … into a folder.

        groups: positions of operators in `PrePartition.under`, one group for each part, in the order in which parts run. A
        value passed from one part to another has the same name in both. SpaceError if groups cannot run in this order.
        """
        codes = self.space.row(config)
        parts = split_parts(self.structure, codes, self.pre_partition().under(codes), groups, self.batch)
        models = parts_onnx(self.elastic, parts, statistics=statistics, fold_batch_norm=fold_batch_norm, weights=True)
        for number, model in enumerate(models):
            write_onnx(model, Path(folder) / f"{number}.onnx")

    def parts(
        self, config: Mapping[str, Choice], groups: Sequence[Sequence[int]], statistics: Statistics | None = None
    ) -> tuple[nn.Module, ...]:
        """The parts of a split SubNet as stand-alone networks (`build`); groups and errors as in `export_parts`."""
        codes = self.space.row(config)
        parts = split_parts(self.structure, codes, self.pre_partition().under(codes), groups, self.batch)
        return tuple(build_nodes(self.elastic, part.subnet, part.inputs, statistics) for part in parts)

    def _element_bytes(self) -> dict[str, int]:
        """Bytes of an element, by value, for values that are not float32."""
        types = element_types(self.structure.graph, self.constants())
        return {name: np.dtype(kind).itemsize for name, kind in types.items()}

    def constants(self) -> Tensors:
        """The stored tensors that are neither trained nor statistics, by name, on the CPU."""
        return {name: self.elastic.tensor(name).detach().cpu() for name in self.structure.graph.constants}

    def save(self, path: str | Path) -> None:
        """Write the SuperNet into a folder: JSON and safetensors. CheckFailed if reading it back gives something else."""
        tensors = {name: tensor.detach().cpu() for name, tensor in self.elastic.tensors().items()}
        storage.save(Path(path), self.structure.graph, tensors, self._spec)
        check_saved(Path(path), self.structure.graph, tensors)
