"""Checks that no step changes the function that a network computes, and whether the order of channels helps SubNets.

The largest SubNet must answer like its original network, and a SubNet must answer the same whether elastic, built or
exported: on several inputs, and in batches of two sizes, since a network may be right for one sample alone. The order
of channels by importance is judged by the answers of smaller SubNets, not by their weights.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import compress
from operator import itemgetter
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from tailor_ir import storage
from tailor_ir.errors import CheckFailed
from tailor_ir.graph import NO_BATCH, GivenInputs, Graph, Tensors
from tailor_ir.reading.comparison import (
    REFUSALS,
    TOLERANCE,
    Answer,
    Batches,
    PlacesOfValues,
    difference_of_answers,
    exceeds,
    recorded_answer,
    shaped_like,
    tolerance_of,
)
from tailor_ir.reading.file_forms import inline_defined
from tailor_ir.reading.inputs import ExampleInputs, evaluated
from tailor_ir.reading.trace import plain_attention, plain_transformers, uncompiled
from tailor_ir.reading.value_reads import tensors_in
from tailor_ir.spaces.selectors import Config
from tailor_ir.spaces.space import Space
from tailor_ir.structure.propagation import AxisMap
from tailor_ir.supernet.reading import Answering, Batching, file_network

SUBNETS = 6
"""Number of smaller SubNets by which an order is judged."""


@dataclass(frozen=True, slots=True)
class ChannelOrder:
    """How close smaller SubNets are to the network, on holdout inputs, with its own order of channels and with the sorted one.

    own, sorted: means over SubNets of the correlation with the network's answers, taken of the differences between inputs: 1
    for equal answers, 0 for answers without information. Equal numbers: no smaller SubNet leaves out sortable channels.
    """

    own: float
    sorted: float

    @property
    def is_sorted(self) -> bool:
        """Whether the sorted order is better, and was therefore kept."""
        return self.sorted > self.own

    @property
    def line(self) -> str:
        """The decision in one line."""
        if self.own == self.sorted:
            return "channels stay in the network's order: sorting changes no smaller SubNet"
        kept = "are sorted by importance" if self.is_sorted else "stay in the network's order"
        return (
            f"channels {kept}: answers of smaller SubNets correlate with the network's by {self.own:.2f} in its own order, by "
            f"{self.sorted:.2f} in the sorted one"
        )


def sortable(space: Space, axis_map: AxisMap) -> list[int]:
    """The channel groups that SubNets cut and that no operator reads in their order."""
    channels = {group for axes in axis_map.axes.values() for axis in axes for group in axis.channel_groups}
    return [one.group for one in space.sizings if one.group in channels and one.group not in axis_map.ordered]


def narrower(space: Space, groups: Sequence[int], rng: np.random.Generator) -> list[Config]:
    """Different SubNets that cut the given channel groups and are otherwise the largest."""
    columns = sorted({column for one in space.sizings if one.group in groups for column in one.variables})
    found: dict[str, Config] = {}
    largest = space.digest(space.max_config)
    for _ in range(4 * SUBNETS):
        codes = space.cardinalities - 1
        for column in columns:
            codes[column] = rng.integers(space.cardinalities[column])
        config = space.decode(codes)
        if len(found) < SUBNETS and space.digest(config) != largest:
            found.setdefault(space.digest(config), config)
    return list(found.values())


def correlation(expected: object, found: object) -> float:
    """The correlation of the differences of two answers between samples, the mean over outputs; 0 if there are none."""
    pairs = zip(tensors_in(expected), tensors_in(found), strict=True)
    return float(np.mean([_correlation(one, other) for one, other in pairs]))


def _correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    a, b = ((x - x.mean(0, keepdim=True)).flatten() for x in (one.double(), other.double()))
    cosine = float(a @ b / (a.norm() * b.norm()).clamp_min(torch.finfo(torch.float64).tiny))
    return cosine if np.isfinite(cosine) else 0.0


def put_together(answers: Sequence[object]) -> list[torch.Tensor]:
    """Answers to several batches, joined as if to one batch."""
    return [torch.cat(each) for each in zip(*(list(tensors_in(answer)) for answer in answers), strict=True)]


BATCHES = (1, 3)
"""Sizes of the batches that are compared."""
BATCHES_OF_MODULES = (1, 2)
"""The same for modules: sizes other than that of the trace, which holds constants that were made for its own batch."""
Draw = Callable[[np.random.Generator, int], Sequence[np.ndarray]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAnswer:
    """A batch of each input in order, and a network's answer."""

    samples: int
    given: Batches
    expected: Answer


@dataclass(frozen=True, slots=True)
class Reference:
    """Answers of a network, to compare others with. tolerance: the largest difference, as a share of the answer."""

    answers: tuple[KnownAnswer, ...]
    tolerance: float = TOLERANCE

    @classmethod
    def of(cls, network: Callable[..., object], batches: Iterable[GivenInputs]) -> "Reference":
        """Answers of a network that is called with a batch of each input, in order; a module is run in eval mode."""
        given = [(one,) if isinstance(one, torch.Tensor) else tuple(one) for one in batches]
        sizes = [next(len(one) for one in each if one.ndim) for each in given]
        with _as_evaluated(network):
            return cls(tuple(_known(_answering(network), sizes, [[one] for one in given])))

    @classmethod
    def of_module(cls, module: nn.Module, examples: ExampleInputs, draw: Draw, places: PlacesOfValues) -> "Reference":
        """Answers of a module to drawn inputs and to its example; batches that the module itself refuses are left out.

        places: lines of the module's code that read values are added to it.
        """
        device = examples.tensors[0].device

        def answer(given: Batches) -> Answer | None:
            return recorded_answer(module, examples, tuple(one.to(device) for one in given), places)

        candidates = _candidates(draw, BATCHES_OF_MODULES, examples.axes, examples)
        with _as_evaluated(module), plain_attention(), plain_transformers(module), uncompiled():
            return cls(tuple(_known(answer, BATCHES_OF_MODULES, candidates)), tolerance_of(module, examples))

    @classmethod
    def of_file(
        cls, model: onnx.ModelProto, draw: Draw, batching: Batching, constants: Mapping[str, np.ndarray]
    ) -> "Reference":
        """Answers of an ONNX model in onnxruntime to drawn inputs; empty if onnxruntime cannot run the model.

        constants: inputs that are not drawn, by name. Operators that ONNX defines by others are run as defined, because some
        kernels of onnxruntime leave out the definition's small summands and so divide by zero.
        """
        network = file_network(inline_defined(model), batching, constants)
        candidates = _candidates(draw, BATCHES, batching.inputs)
        return cls(() if network is None else tuple(_known(partial(_tried, network), BATCHES, candidates)))

    @classmethod
    def of_network(cls, network: nn.Module, draw: Draw, batching: Batching) -> "Reference":
        """Answers of a torch network to drawn inputs."""
        with _as_evaluated(network):
            return cls(tuple(_known(_answering(network), BATCHES, _candidates(draw, BATCHES, batching.inputs))))

    @property
    def is_complete(self) -> bool:
        """Whether there are answers to a single sample and to a batch."""
        return [known.samples == 1 for known in self.answers] == [True, False]

    def mixed_samples(self, batching: Batching, in_torch: nn.Module) -> str:
        """How the answer to a sample in a batch differs from that to the sample alone; "" if it does not.

        Outputs in which samples are inside another axis are ignored. in_torch: a network of the same function, to estimate the
        effect of rounding.
        """
        if not self.is_complete:
            return "no answer" if any(known.samples == 1 for known in self.answers) else ""
        alone, among = self.answers
        if not all(map(torch.equal, alone.given, map(_second_sample, among.given, batching.inputs))):
            return ""
        parted = [axis is not None for axis in batching.outputs]
        axes = [axis for axis in batching.outputs if axis is not None]
        one = [*compress(alone.expected, parted)]
        other = shaped_like([*map(_second_sample, compress(among.expected, parted), axes)], one)
        difference = difference_of_answers(one, other)
        with _as_evaluated(in_torch):
            answer = _answering(in_torch)
            if difference <= self.tolerance or not all(
                exceeds(difference, known.given, answer) for known in self.answers
            ):
                return ""
        return f"{difference:.2g} of the largest number" if difference < float("inf") else "other shapes"

    def difference(self, network: Answering, in_torch: Answering | None = None) -> tuple[float, int]:
        """The largest difference of a network's answers as a share of the largest output, and the batch that has it.

        0 if rounding explains it; infinite if shapes differ, or the network cannot run. in_torch: the same network in torch, to
        estimate the effect of rounding; None: this one.
        """
        found = [(_excess(known, network, in_torch or network), known.samples) for known in self.answers]
        return max(found, default=(0.0, 0))

    def check(self, network: Answering, where: str, other: str, subject: str = "the largest SubNet") -> None:
        """Raise CheckFailed if a network's answers differ from those of `other`. where: the step that was just done.

        subject: name of the network in the message.
        """
        difference, batch = self.difference(network)
        if difference > self.tolerance:
            size = (
                f"{difference:.2g} of the largest output" if difference < float("inf") else "other shapes, or no answer"
            )
            raise CheckFailed(
                f"{where}: {subject} answers otherwise than {other} ({size}, batch {batch}); allowed: "
                f"{self.tolerance:g}; nothing of this step was kept; report it with the network"
            )


def check_forms(
    elastic: Answering,
    built: nn.Module,
    exported: Mapping[int, onnx.ModelProto],
    draw: Draw,
    batching: Batching,
    where: str,
    other: str = "the elastic one",
) -> None:
    """Raise CheckFailed if a stand-alone SubNet, or a file (by its batch), answers differently from the active elastic one.

    other: name of the elastic one in the message.
    """
    for batch, model in exported.items():
        (given,) = _batches_of(draw, (batch,))
        with torch.no_grad():
            reference = Reference(tuple(_known(partial(_tried, elastic), [batch], [[given]])))
        for form, network in (
            ("the SubNet that stands alone", lambda inputs: built(*inputs)),
            ("the exported SubNet", file_network(model, batching, {}) or _refusing),
        ):
            difference, _ = reference.difference(network, elastic)
            if difference > TOLERANCE or not reference.answers:
                raise CheckFailed(
                    f"{where}: {form} answers otherwise than {other} ({difference:.2g} of the largest output, batch "
                    f"{batch}); allowed: {TOLERANCE:g}; nothing of this step was kept; report it with the network"
                )


def _refusing(given: Batches) -> object:
    raise RuntimeError("onnxruntime does not load it")


def check_saved(folder: Path, graph: Graph, tensors: Tensors) -> None:
    """Raise CheckFailed if reading a folder gives something else than was written."""
    read_graph, read, _ = storage.load(folder)
    same = read_graph == graph and read.keys() == tensors.keys()
    if not same or not all(_equal(tensors[name], tensor) for name, tensor in read.items()):
        for name in (storage.GRAPH_FILE, storage.TENSORS_FILE):
            (folder / name).unlink(missing_ok=True)
        raise CheckFailed(
            f"SuperNet '{folder}': differs from the one that was written there; allowed: the same graph and numbers; "
            "check the disk, and do the step again"
        )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and bool(((one == other) | (one != one)).all())


def _batches_of(draw: Draw, sizes: Sequence[int]) -> list[Batches]:
    return [tuple(map(torch.from_numpy, draw(np.random.default_rng(size), size))) for size in sizes]


def _candidates(
    draw: Draw, sizes: tuple[int, int], axes: Sequence[int], examples: ExampleInputs | None = None
) -> list[list[Batches]]:
    """For each size of batches, some to try in turn: drawn numbers, numbers from 0 to 1, and the example for all samples.

    In the larger batch, the first sample is the example, unless that is one number everywhere, and the first or third sample
    has other signs and magnitudes. The smaller batch is the second sample.
    """
    (large,) = _batches_of(draw, sizes[1:])
    for position, (one, axis) in enumerate(zip(large, axes, strict=True)):
        if axis == NO_BATCH:
            continue
        if one.is_floating_point():
            one.select(axis, 2 if sizes[1] > 2 else 0).mul_(-4)
        first = one.select(axis, 0)
        example = first if examples is None else examples.tensors[position].select(axis, 0).detach().cpu()
        if example.shape == first.shape and not bool((example == example.flatten()[0]).all()):
            first.copy_(example)
    small = tuple(map(_second_sample, large, axes))
    found = [
        [given, tuple(one.sigmoid() if one.is_floating_point() else one for one in given)] for given in (small, large)
    ]
    if examples is None:
        return found
    types = [one.dtype for one in examples.tensors]
    typed = [[tuple(map(torch.Tensor.to, given, types)) for given in each] for each in found]
    return [
        [*each, tuple(one.cpu() for one in examples.batches(size))] for each, size in zip(typed, sizes, strict=True)
    ]


def _second_sample(batch: torch.Tensor, axis: int) -> torch.Tensor:
    return batch if axis == NO_BATCH else batch.narrow(axis, 1, 1)


@contextmanager
def _as_evaluated(network: object) -> Iterator[None]:
    """While inside, a module is in eval mode, and no gradients are recorded."""
    with evaluated(network if isinstance(network, nn.Module) else nn.Identity()), torch.no_grad():
        yield


def _answering(network: Callable[..., object]) -> Callable[[Batches], Answer | None]:
    return partial(_tried, lambda given: network(*given))


def _known(
    tried: Callable[[Batches], Answer | None], sizes: Sequence[int], candidates: Sequence[Sequence[Batches]]
) -> Iterator[KnownAnswer]:
    """Answers to the first batches of each size that the network accepts. tried: None for batches that it refuses."""
    for samples, several in zip(sizes, candidates, strict=True):
        for given, expected in _accepted(tried, several):
            yield KnownAnswer(samples=samples, given=given, expected=expected)


def _accepted(tried: Callable[[Batches], Answer | None], several: Sequence[Batches]) -> list[tuple[Batches, Answer]]:
    """The first batches with the largest share of finite numbers in the answer; none if no batch has an answer."""
    answered: list[tuple[float, Batches, Answer]] = []
    for given in several:
        if (expected := tried(given)) is not None:
            numbers = min((float(one.isfinite().float().mean()) for one in expected if one.numel()), default=1.0)
            answered.append((numbers, given, expected))
            if numbers == 1.0:
                break
    return [max(answered, key=itemgetter(0))[1:]] if answered else []


def _tried(answer: Answering, given: Batches) -> Answer | None:
    """A network's answer; None for inputs that it refuses."""
    try:
        return [tensor.detach().cpu().clone() for tensor in tensors_in(answer(tuple(one.clone() for one in given)))]
    except REFUSALS:
        return None


def _excess(known: KnownAnswer, network: Answering, in_torch: Answering) -> float:
    with torch.no_grad():
        found = _tried(network, known.given)
        if found is not None and known.samples == 1:
            found = shaped_like(found, known.expected)
        difference = float("inf") if found is None else difference_of_answers(known.expected, found)
        explained = difference > TOLERANCE and not exceeds(difference, known.given, partial(_tried, in_torch))
    return 0.0 if explained else difference
