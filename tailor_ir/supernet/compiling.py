"""Compilation of networks to SuperNets, and loading of saved SuperNets."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from torch import nn

from tailor_ir import storage
from tailor_ir.alternatives import add_alternatives
from tailor_ir.errors import CheckFailed, InputError, MixedSamples
from tailor_ir.exits import add_exits
from tailor_ir.graph import NO_BATCH, GivenInputs, Graph, Tensors
from tailor_ir.reading.comparison import PlacesOfValues, compare, remarks_on
from tailor_ir.reading.files import Float32Module
from tailor_ir.reading.inputs import GivenExample
from tailor_ir.rewriting.passes import transform_kernels
from tailor_ir.spaces.proposal import few_subnets, propose
from tailor_ir.spaces.selectors import SpaceSpec
from tailor_ir.spaces.space import Structure
from tailor_ir.structure.regions import find_axes_and_regions
from tailor_ir.supernet.checking import Reference
from tailor_ir.supernet.network import SuperNet
from tailor_ir.supernet.opening import with_opened_norms
from tailor_ir.supernet.reading import Batching, PlainFile, ReadNetwork, read_network

NOTHING_TRAINED = "the network has no weights that could be trained"
NOT_COMPARED = "the original network does not run on drawn inputs: its answers could not be compared"


def compile(
    model: nn.Module | onnx.ModelProto | str | Path,
    example_input: GivenExample | None = None,
    space: SpaceSpec | None = None,
    kernel_transform: bool = False,
    calibration: Iterable[GivenInputs] = (),
) -> SuperNet:
    """Turn a network into a SuperNet.

    model: a module (`example_input`: one sample (1, C, H, W) at full resolution), or the path or content of an ONNX file (an
    example is needed only if it leaves the input's height or width open). A network with several inputs takes one sample of
    each, in a tuple in order or in a mapping by name; integers (tokens) count as examples of the legal ones. space: selectors
    of variable names -> choices or "auto"; everything else stays fixed. None proposes a space. kernel_transform: smaller
    kernels are learned transforms of larger ones, initialised as their centre (OFA, ICLR 2020). calibration: batches
    at full resolution, of a few hundred samples; by their statistics BatchNorms are put back that an exporter folded into
    convolutions (`tailor_ir.rewriting.opened_norms`), and a remark tells how many. ImportFailed if the network cannot be
    read. SpaceError if the space requests something that this network does not support.
    """
    batches = tuple(calibration)
    refused: list[MixedSamples | InputError] = []
    for network in read_network(model, example_input):
        try:
            net = _compiled(network, space, kernel_transform, batches)
        except (InputError, MixedSamples) as error:
            refused.append(error)
        else:
            net.remarks += tuple(_batch_elsewhere(net.structure.graph)) if refused or network.other_batch else ()
            for remark in net.remarks:
                logging.getLogger(__name__).warning(remark)
            return net
    raise refused[0]


def _batch_elsewhere(graph: Graph) -> Iterator[str]:
    """A message for each input whose first axis is not the batch."""
    for name in graph.inputs:
        if axis := graph.batch_axis(name):
            place = "no axis" if axis == NO_BATCH else f"axis {axis}"
            yield f"{place} of input '{name}' is the batch: along the first axis the network does not treat all alike"


def _compiled(
    given: ReadNetwork, space: SpaceSpec | None, kernel_transform: bool, calibration: Sequence[GivenInputs]
) -> SuperNet:
    def read(graph: Graph, tensors: Tensors, spec: SpaceSpec | None = space) -> Structure:
        with given.located():
            axis_map, regions = find_axes_and_regions(graph, tensors)
            return propose(graph, axis_map, regions, spec)

    network = with_opened_norms(given, calibration, partial(read, spec={}))
    graph, tensors, refused = add_alternatives(network.graph, network.tensors, space, read)
    graph, tensors, no_exits = add_exits(graph, tensors, space, read)
    if kernel_transform:
        graph, tensors = transform_kernels(graph, tensors, read(graph, tensors))
    net = SuperNet(graph, tensors, space)
    net.refused = (*refused, *no_exits)
    net.remarks = (*network.remarks, *network.folded, *_compared(net, network.origin))
    net.remarks += few_subnets(net.structure, space) if graph.parameters else (NOTHING_TRAINED,)
    return net


def _compared(net: SuperNet, origin: Float32Module | PlainFile) -> tuple[str, ...]:
    """Store the original's answers; return remarks. ImportFailed if the compiled network answers differently."""
    draw = partial(_drawn, net)
    remarks: tuple[str, ...] = ()
    if isinstance(origin, PlainFile):
        where = "file"
        net.original = Reference.of_file(origin.model, draw, Batching.of(net.structure), origin.constants)
        _refuse_other_answers(net, where)
    else:
        module, examples = origin.reference
        examples = replace(examples, batch_axes=net.structure.graph.batch_axes)
        where = f"network '{type(module).__name__}'"
        places: PlacesOfValues = {}
        net.original = Reference.of_module(module, examples, draw, places)
        try:
            _refuse_other_answers(net, where)
        except MixedSamples:
            compare(module, net.elastic, examples, places)  # raises an error of its own if code decides by values
            raise
        if places or not net.original.is_complete:
            places = compare(module, net.elastic, examples, places)
        remarks = remarks_on(module, examples, places)
    _refuse_mixed_samples(net, net.original, where)
    return remarks if net.original.answers else (*remarks, NOT_COMPARED)


def _drawn(net: SuperNet, rng: np.random.Generator, batch: int) -> Sequence[np.ndarray]:
    return net.sample_inputs(net.max_config, rng, batch)


def _refuse_mixed_samples(net: SuperNet, original: Reference, where: str) -> None:
    """Raise MixedSamples if the network's answer to a sample in a batch differs from that to the sample alone.

    Compares the original's answers, or the SuperNet's if the original takes no batch, like files of one sample.
    """
    batching = Batching.of(net.structure)
    if not original.is_complete:
        original = Reference.of_network(net.elastic, partial(_drawn, net), batching)
    if difference := original.mixed_samples(batching, net.elastic):
        raise MixedSamples(
            f"{where}: its answer to a sample is another one beside other samples ({difference}): its first axis is not the "
            "batch, or it mixes samples; allowed: networks that treat all samples alike; give an example of one sample, "
            "whose axis of samples has one entry"
        )


def _refuse_other_answers(net: SuperNet, where: str) -> None:
    """Raise MixedSamples if the compiled network answers differently from the given one."""
    try:
        net.check_against(where=where)
    except CheckFailed as error:
        found = str(error).partition("; allowed:")[0]
        raise MixedSamples(
            f"{found}; allowed: networks that treat all samples alike, in batches of any size; export it with an open batch, "
            "from a contiguous example"
        ) from error


def load(path: str | Path, *, batch: int = 1) -> SuperNet:
    """Read a SuperNet that `SuperNet.save` wrote. batch: batch size of exported SubNets, and of their operators."""
    graph, tensors, spec = storage.load(Path(path))
    net = SuperNet(graph, tensors, spec, batch)
    net.folder = Path(path).resolve()
    return net
