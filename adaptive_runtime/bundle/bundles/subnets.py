"""SubNets of a bundle: their figures, their files by format, and the samples that they take.

A format names the files that a runtime reads, and the precision in which it computes with them. Formats of one runtime
may share files: ncnn computes in bf16 with fp32 files. Samples are images, texts as numbers of words, or several
inputs.

Legend: N samples, C channels, H height, W width, T words.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field, model_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains import (
    ChainFormat,
    ChainTensor,
    ImagePreparation,
    InputsPreparation,
    SamplePreparation,
    text_of,
)
from adaptive_runtime.bundle.chains.manifest import FileName
from adaptive_runtime.exits import Thresholds
from adaptive_runtime.samples.inputs import GivenPreparation, TextPreparation, packed
from profiling_agents.messages import ActivationCoding, Message

BundleFormat = Literal["onnx", "onnx_int8", "ncnn", "ncnn_fp16", "ncnn_bf16"]
BUNDLE_FORMATS: tuple[BundleFormat, ...] = get_args(BundleFormat)
CHAIN_FORMATS: Mapping[BundleFormat, ChainFormat] = {
    "onnx": "onnx",
    "onnx_int8": "onnx",
    "ncnn": "ncnn",
    "ncnn_fp16": "ncnn",
    "ncnn_bf16": "ncnn",
}
"""The kind of files that a runtime reads in each format."""


class TakenSamples(NamedTuple):
    """shape: of one sample: an image (C, H, W) float32, or a text (T,) int64; () for several inputs.

    words: upper bound (exclusive) of numbers of words; None: samples are no texts. inputs: each of several inputs by name; a
    batch is one array with a field for each (`adaptive_runtime.samples.inputs`); None: one input.
    """

    shape: tuple[int, ...]
    words: int | None = None
    inputs: Mapping[str, "TakenSamples"] | None = None

    @classmethod
    def of(cls, preparation: SamplePreparation, input_shape: tuple[int, ...]) -> "TakenSamples":
        """The samples for a preparation and a SubNet's input shape."""
        if isinstance(preparation, TextPreparation):
            return cls((preparation.length,), preparation.words)
        if isinstance(preparation, GivenPreparation):
            return cls(preparation.shape, preparation.words)
        if isinstance(preparation, InputsPreparation):
            worded = {
                name: one
                for name, one in preparation.inputs.items()
                if isinstance(one, TextPreparation | GivenPreparation)
            }
            words = {name: one.words for name, one in worded.items()}
            return cls((), inputs={name: cls(shape, words.get(name)) for name, shape in preparation.shapes.items()})
        return cls((input_shape[1], preparation.resolution, preparation.resolution))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers of a sample, or of a sample with several inputs."""
        if self.inputs is not None:
            return np.dtype([(name, one.dtype, one.shape) for name, one in self.inputs.items()])
        return np.dtype(np.float32 if self.words is None else np.int64)

    def packed(self, given: NDArray[Any] | Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Samples as one array, also if given by the names of their inputs. AdaptiveError for other inputs or shapes."""
        if not isinstance(given, Mapping):
            return given
        if set(given) != set(self.inputs or ()):
            allowed = ", ".join(self.inputs) if self.inputs else "one array"
            raise AdaptiveError("inputs", ", ".join(given) or "none", allowed=allowed)
        for name, one in (self.inputs or {}).items():
            one.check(given[name], f"input '{name}'")
        return packed({name: given[name] for name in self.inputs or ()})

    def check(self, x: NDArray[Any], where: str = "input") -> None:
        """Raise AdaptiveError for samples of another kind, or for none."""
        if x.dtype != self.dtype or x.shape[1:] != self.shape or not len(x):
            if self.inputs is not None:
                described = ", ".join(f"{name} {('N', *one.shape)}" for name, one in self.inputs.items()).replace(
                    "'", ""
                )
                raise AdaptiveError(where, f"{x.dtype} {x.shape}", allowed=f"an array by name for each of {described}")
            got, sizes = f"{x.dtype} {x.shape}", ", ".join(map(str, ("N", *self.shape)))
            raise AdaptiveError(where, got, allowed=f"{self.dtype} ({sizes}), N from 1 on")
        for name, one in (self.inputs or {}).items():
            if one.words is not None:
                one.check(x[name], f"input '{name}'")
        if fault := self.fault(x):
            raise AdaptiveError(where, fault, allowed=f"0 to {self.words - 1}" if self.words else "")

    def fault(self, x: NDArray[Any]) -> str | None:
        """For a text, a line about numbers that are no words of the vocabulary; None if all are."""
        if self.words is None or (x.min() >= 0 and x.max() < self.words):
            return None
        return f"numbers of words from {x.min()} to {x.max()}"


Choice = int | float | str
ONNX_END = ".onnx"


class AdaptableNorm(Message):
    """A BatchNorm of a SubNet: the names of its mean and its variance (channels,) in the ONNX file."""

    mean: str
    variance: str
    channels: int = Field(ge=1)


class AdaptableNet(Message):
    """Files for adapting the BatchNorm statistics of a SubNet in ONNX.

    file: the SubNet with additional outputs for the statistics of its BatchNorms' inputs, for `images` images at once; it
    refers
    to the bundle's common weights. norms: in the order of these outputs. source: file of
    `adaptive_runtime.bundle.bundles.AdaptationSource`.
    """

    file: FileName
    images: int = Field(ge=2)
    norms: Annotated[tuple[AdaptableNorm, ...], Field(min_length=1)]
    source: FileName


class SubNetMemory(Message):
    """Predicted memory of a SubNet [MiB]: its weights, and its activations at the peak of a run of one batch."""

    weights_mib: float
    activations_mib: float

    @property
    def total_mib(self) -> float:
        """Weights and activations together [MiB]."""
        return self.weights_mib + self.activations_mib


class NetFigures(Message):
    """Figures of a SubNet in one format, on the device of the bundle.

    accuracy: by split, of whole answers. latency_error: standard deviation of `latency_ms`, relative; 0: it was measured.
    energy_mj: of one sample; None: unknown.
    """

    accuracy: dict[str, float]
    latency_ms: float = Field(ge=0)
    latency_error: float = Field(0.0, ge=0)
    energy_mj: float | None = None
    memory: SubNetMemory

    @property
    def first_accuracy(self) -> float:
        """The accuracy on the first split; it is used to compare SubNets."""
        return next(iter(self.accuracy.values()), 0.0)


class BundledNet(Message):
    """A SubNet in one format.

    files: of the whole SubNet: ONNX: one file, or several that run one behind the other, and the bundle's common weights; ncnn:
    `.param` and `.bin`. chain: name of the manifest of its segments; chain_files: the files that the manifest names; None, ():
    the SubNet passes no exits. relative_difference: largest difference from torch, relative to the largest value. adaptable:
    None: it cannot adapt. figures: set in formats other than the one in which the SubNet was measured; None: this is that
    format, or nothing is known.
    """

    files: Annotated[tuple[FileName, ...], Field(min_length=1)]
    input: ChainTensor
    output: ChainTensor
    chain: FileName | None = None
    chain_files: tuple[FileName, ...] = ()
    relative_difference: float
    adaptable: AdaptableNet | None = None
    figures: NetFigures | None = None

    @property
    def onnx_files(self) -> tuple[FileName, ...]:
        """The ONNX files in running order."""
        return tuple(name for name in self.files if name.endswith(ONNX_END))

    @property
    def weights_files(self) -> tuple[FileName, ...]:
        """The weights files that the ONNX files refer to."""
        return tuple(name for name in self.files if not name.endswith(ONNX_END))


class BundledPlacement(Message):
    """A SubNet split over several devices, as planned by `autotailor partition`.

    segments: name of a `ChainManifest` whose `files` have weights of their own; plans: of `PlacementPlans`. devices: besides
    the coordinator. latency_ms: predicted latency of the fastest plan over links of `bandwidth_mbps`; latency_error: its
    standard deviation, relative. coordinator_share: computing time of the coordinator in the plan, as a share of its time
    for the whole SubNet. sent_mj: modelled energy of the coordinator for sending and waiting; None: unknown. coding:
    coding, besides fp32, in which values may cross; accuracy: measured on the first split, with all values coded that some
    plan sends; None: the SubNet's own accuracy, since values cross in fp32.
    """

    segments: FileName
    plans: FileName
    files: Annotated[tuple[FileName, ...], Field(min_length=1)]
    devices: Annotated[tuple[str, ...], Field(min_length=1)]
    bandwidth_mbps: float = Field(gt=0)
    latency_ms: float = Field(gt=0)
    latency_error: float = Field(0.0, ge=0)
    coordinator_share: float = Field(ge=0, validation_alias=AliasChoices("coordinator_share", "home_share"))
    sent_mj: float | None = Field(None, ge=0)
    coding: ActivationCoding = "fp32"
    accuracy: float | None = Field(None, ge=0, le=1)

    @model_validator(mode="after")
    def _coded_values_were_judged(self) -> Self:
        if (self.coding == "fp32") != (self.accuracy is None):
            raise ValueError(f"placement with coding {self.coding} and accuracy {self.accuracy}: one needs the other")
        return self


class SubNetLatency(Message):
    """Latency on the device [ms]. spread: (p90 − p10) / p50 of `n` samples; noisy: the spread was too large, twice."""

    p50_ms: float
    p90_ms: float
    spread: float
    n: int
    noisy: bool


class BundledExit(Message):
    """An exit of a SubNet's chain. macs, latency_ms: from the input up to the exit.

    latency_ms: sum over measured segments; None: not measured. accuracy: by split, if all samples leave there; None: unknown.
    threshold: None: no sample leaves there, or all remaining ones do.
    """

    exit: str
    macs: int
    latency_ms: float | None = None
    accuracy: dict[str, float] | None = None
    threshold: float | None = None


class EarlyAnswers(Message):
    """Answers by thresholds, on test images that were not used to choose them. Latencies of one sample [ms], as measured."""

    accuracy: float
    images: int
    expected_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float


class BundledSubNet(Message):
    """A SubNet. accuracy: by split, of whole answers. latency: measured; None: it failed. predicted_ms: led to its choice.

    input_shape: for several inputs, that of the first. nets: by format; at least one. exits: of its chain, in order.
    thresholds: decide which samples leave; early: the resulting figures. adapted: sha256 of the side file whose tensors replace
    shared weights; None: the SubNet has not adapted. placement: None: other devices do not take part.
    """

    digest: str
    config: dict[str, Choice]
    input_shape: tuple[int, ...]
    preparation: SamplePreparation
    nets: Annotated[dict[BundleFormat, BundledNet], Field(min_length=1)]
    macs: int
    parameters: int
    accuracy: dict[str, float]
    latency: SubNetLatency | None
    predicted_ms: float
    energy_mj: float | None = None
    memory: SubNetMemory
    exits: tuple[BundledExit, ...] = ()
    thresholds: Thresholds | None = None
    early: EarlyAnswers | None = None
    adapted: str | None = None
    placement: BundledPlacement | None = None

    @property
    def named_files(self) -> Iterator[str]:
        """The files that the SubNet names, of all formats."""
        if (text := text_of(self.preparation)) is not None:
            yield text.vocabulary
        for net in self.nets.values():
            yield from (*net.files, *net.chain_files)
            if net.chain is not None:
                yield net.chain
            if net.adaptable is not None:
                yield from (net.adaptable.file, net.adaptable.source)
        if self.placement is not None:
            yield from (self.placement.segments, self.placement.plans, *self.placement.files)

    @property
    def taken(self) -> TakenSamples:
        """The samples that applications give, in the data's own size; this SubNet may take them in a smaller one."""
        return TakenSamples.of(self.preparation, self.input_shape)

    @property
    def own_sizes(self) -> tuple[int, ...]:
        """Sizes of one sample as the SubNet takes it; for several inputs, those of all, one behind the other."""
        if isinstance(self.preparation, InputsPreparation):
            return tuple(size for shape in self.preparation.own_shapes.values() for size in shape)
        return self.input_shape[1:]

    @property
    def of_images(self) -> ImagePreparation:
        """The preparation of images. AdaptiveError if the SubNet takes texts or several inputs."""
        if isinstance(self.preparation, ImagePreparation):
            return self.preparation
        got = "takes texts" if isinstance(self.preparation, TextPreparation) else "takes several inputs"
        raise AdaptiveError(f"SubNet {self.digest}", got, allowed="images")

    @property
    def likely_ms(self) -> float:
        """The measured latency [ms], or the predicted one if it was not measured."""
        return self.predicted_ms if self.latency is None else self.latency.p50_ms

    @property
    def first_accuracy(self) -> float:
        """The accuracy on the first split; it is used to compare SubNets."""
        return next(iter(self.accuracy.values()), 0.0)

    def figures_of(self, form: BundleFormat) -> NetFigures:
        """Figures of the SubNet in a format: the format's own, else those with which the SubNet was measured."""
        return self.nets[form].figures or NetFigures(
            accuracy=self.accuracy, latency_ms=self.likely_ms, energy_mj=self.energy_mj, memory=self.memory
        )

    def formats_among(self, forms: Sequence[BundleFormat]) -> tuple[BundleFormat, ...]:
        """The given formats in which the SubNet can serve: the first of them, and others for which it has figures."""
        return tuple(
            one for one in forms if one in self.nets and (one == forms[0] or self.nets[one].figures is not None)
        )
