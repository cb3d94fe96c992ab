"""Manifests of chains: `segments.json` of a SubNet with exits, and `parts.json` of a SubNet split over devices.

Host programs need no other file to run a SubNet segment by segment. Parts are ONNX files that run one after the other,
each on one device. A part reads values of the network's input and of all earlier parts, not only of its neighbour; a
value with several readers has one name everywhere, so that it is sent only once.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AliasChoices, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import FileMessage, read_bytes
from adaptive_runtime.exits import Thresholds
from adaptive_runtime.samples.inputs import GivenPreparation, NumbersPreparation, Spectrogram, TextPreparation
from profiling_agents.messages import Digest, Message

SEGMENTS_FILE = "segments.json"
VERSION = 1
AGAIN = "export the SubNet again"

ChainFormat = Literal["onnx", "ncnn"]
FileName = Annotated[str, Field(pattern=r"^\w[\w.-]*$")]
"""A file name in the manifest's own folder."""
NcnnPair = tuple[FileName, FileName]
"""Names of a .param and a .bin."""


class ChainTensor(Message):
    """An input or output by name. A size of None stands for any number. type: int64 for numbers of words.

    beside: for a network with several inputs, those behind the first, in order.
    """

    name: str
    shape: tuple[int | None, ...]
    type: Literal["float32", "int64"] = "float32"
    beside: tuple["ChainTensor", ...] = ()

    @property
    def every(self) -> tuple["ChainTensor", ...]:
        """The tensor and those beside it."""
        return (self, *self.beside)

    @model_serializer(mode="wrap")
    def _written(self, content_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the type float32 and an empty `beside`: earlier run times do not know these fields."""
        content: dict[str, Any] = content_of(self)
        usual = {"type": "float32", "beside": ()}
        return {name: value for name, value in content.items() if name not in usual or value != usual[name]}


class ChainSegment(Message):
    """The computation between an exit and the previous one.

    file: ONNX file; None: the segment is in the one net of ncnn, which continues from its computed values. inputs: the
    network's
    input or values of earlier segments. outputs: the answer of the exit (B, K), then values for later segments. If a SubNet is
    cut to be split over devices, `exit` names the value that crosses the cut, which is the first output. ncnn: the same segment
    as .param and .bin of ncnn, whose blobs have the names of inputs and outputs; None: no such files. macs:
    multiply-accumulates
    of one sample. latency_ms: of this segment alone, p50 on the device; None: not measured.
    """

    exit: str
    file: FileName | None = None
    ncnn: NcnnPair | None = None
    inputs: tuple[ChainTensor, ...]
    outputs: Annotated[tuple[ChainTensor, ...], Field(min_length=1)]
    macs: int
    latency_ms: float | None = None


class ImagePreparation(Message):
    """The preparation of an image, with values in [0, 1], by the application before the first segment. In this order:

    `crop`; scaled to height and width `resolution` by `interpolation`; minus `mean`, divided by `deviation`, by channel; and
    scaled to `size` (height, width) by `size_interpolation` if that differs. layout: samples, channels, height, width.
    spectrogram: for signals; it makes the image, and nothing is cut or scaled before the mean is subtracted.
    """

    layout: Literal["NCHW"] = "NCHW"
    colours: Literal["RGB", "grey"]
    crop: str
    resolution: int
    interpolation: str
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    size: tuple[int, int]
    size_interpolation: str
    spectrogram: Spectrogram | None = None

    @model_serializer(mode="wrap")
    def _written(self, content_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out an empty spectrogram: run times before 0.11.0 do not know the field."""
        content: dict[str, Any] = content_of(self)
        return {name: value for name, value in content.items() if name != "spectrogram" or value is not None}


InputPreparation = ImagePreparation | NumbersPreparation | TextPreparation | GivenPreparation
"""The preparation of one of several inputs: an image, or the spectrogram of a sound; numbers; a text; the owner's own."""


class InputsPreparation(Message):
    """The preparation of each input of a sample with several inputs, by name, in the network's order.

    layout: each input has its own. All texts have one vocabulary and length.
    """

    layout: Literal["each"] = "each"
    inputs: Annotated[dict[str, InputPreparation], Field(min_length=2)]

    @model_validator(mode="after")
    def _has_like_texts(self) -> Self:
        texts = [one for one in self.inputs.values() if isinstance(one, TextPreparation)]
        if any(one != texts[0] for one in texts):
            raise ValueError("inputs: texts of different vocabularies or lengths")
        return self

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one sample as applications give it: images in the data's own size."""
        return {name: _given_shape(one) for name, one in self.inputs.items()}

    @property
    def own_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one sample as the SubNet takes it."""
        return {name: _own_shape(one) for name, one in self.inputs.items()}


def _given_shape(one: InputPreparation) -> tuple[int, ...]:
    if isinstance(one, ImagePreparation):
        return len(one.mean), *(one.resolution,) * 2
    return (one.length,) if isinstance(one, TextPreparation) else one.shape


def _own_shape(one: InputPreparation) -> tuple[int, ...]:
    if isinstance(one, ImagePreparation):
        return len(one.mean), *one.size
    return one.size if isinstance(one, TextPreparation | GivenPreparation) else one.shape


SamplePreparation = Annotated[
    ImagePreparation | TextPreparation | GivenPreparation | InputsPreparation, Field(discriminator="layout")
]


def text_of(prepared: SamplePreparation | None) -> TextPreparation | None:
    """The preparation of the text of a sample, or of each of several inputs; None if it has no text."""
    inputs = prepared.inputs.values() if isinstance(prepared, InputsPreparation) else [prepared]
    return next((one for one in inputs if isinstance(one, TextPreparation)), None)


class ChainManifest(FileMessage):
    """A SubNet with exits as files in the folder of this manifest.

    files: sha256 by name. input: the network's; for several inputs the first one, with the others beside it. segments: in
    running order, each up to its exit; the last one gives the SubNet's own answer. classes: names, in the order of answers.
    runtime, settings: with which the files were checked, by the names of the runtime's own API. thresholds: name of a file of
    `adaptive_runtime.exits.Thresholds`; None: it has none yet.
    """

    WHERE: ClassVar[str] = SEGMENTS_FILE
    NEXT_STEP: ClassVar[str] = AGAIN
    READ_VERSION: ClassVar[int | None] = VERSION
    CONTENT: ClassVar[str] = "segments"

    version: int = VERSION
    format: ChainFormat
    digest: str
    files: dict[FileName, Digest]
    input: ChainTensor
    segments: Annotated[tuple[ChainSegment, ...], Field(min_length=1)]
    classes: tuple[str, ...] = ()
    preparation: SamplePreparation | None = None
    runtime: str
    settings: dict[str, bool | int | str] = Field(default_factory=dict)
    thresholds: FileName | None = None

    @model_validator(mode="after")
    def _is_a_chain(self) -> Self:
        known = {one.name for one in self.input.every}
        for number, segment in enumerate(self.segments):
            unknown = [one.name for one in segment.inputs if one.name not in known]
            if unknown:
                raise ValueError(f"segment {number} reads '{unknown[0]}', which none before it gives")
            if (segment.file is None) == (self.format == "onnx"):
                raise ValueError(f"segment {number} has {'no' if segment.file is None else 'a'} file in {self.format}")
            named = (*filter(None, [segment.file]), *(segment.ncnn or ()))
            if missing := [name for name in named if name not in self.files]:
                raise ValueError(f"segment {number} is in '{missing[0]}', which is not among the files")
            known |= {one.name for one in segment.outputs}
        if self.format == "ncnn" and sorted(name.rpartition(".")[2] for name in self.files) != ["bin", "param"]:
            raise ValueError(f"files {', '.join(self.files)}; ncnn has one .param and one .bin")
        return self

    @property
    def exits(self) -> tuple[str, ...]:
        """The exits in the order in which they are reached."""
        return tuple(segment.exit for segment in self.segments)

    @property
    def until_ms(self) -> tuple[float | None, ...]:
        """Latency [ms] from the input to each exit, without decisions; None from the first unmeasured one on."""
        found: list[float | None] = []
        so_far: float | None = 0.0
        for segment in self.segments:
            known = segment.latency_ms
            so_far = None if so_far is None or known is None else so_far + known
            found.append(so_far)
        return tuple(found)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the manifest and check its files against their digests. AdaptiveError in one line."""
        found = cls.from_file(file)
        check_files(file, found.files)
        return found

    def own_thresholds(self, folder: Path) -> Thresholds | None:
        """The thresholds of the file that the manifest names; None if it names none. AdaptiveError if it cannot be read."""
        if self.thresholds is None:
            return None
        file = folder / self.thresholds
        return Thresholds.from_json(read_bytes(file, AGAIN), str(file))

    def written(self) -> Iterator[str]:
        """Names of all files of the chain but the manifest's own."""
        yield from self.files
        if self.thresholds is not None:
            yield self.thresholds


def check_files(manifest: Path, digests: Mapping[str, str]) -> None:
    """Raise AdaptiveError in one line if a file beside a manifest does not have its digest."""
    for name, digest in digests.items():
        if hashlib.sha256(read_bytes(manifest.parent / name, AGAIN)).hexdigest() != digest:
            got = f"is not the file that {manifest.name} names"
            raise AdaptiveError(str(manifest.parent / name), got, next_step=AGAIN)


PARTS_FILE = "parts.json"

ElementType = Literal["float32", "float64", "int32", "int64", "bool"]


class PartTensor(Message):
    """A value that a part reads or gives, by its name in the file."""

    name: str
    shape: tuple[int, ...]
    element_type: ElementType = "float32"


class SubnetPart(Message):
    """Operators between two cuts. device: its device in the plan. operators: their number. macs: multiply-accumulates.

    ncnn: the same part as .param and .bin of ncnn, whose blobs have the names of inputs and outputs; None: no such files.
    """

    file: FileName
    ncnn: NcnnPair | None = None
    device: str
    inputs: tuple[PartTensor, ...]
    outputs: Annotated[tuple[PartTensor, ...], Field(min_length=1)]
    operators: int
    macs: int


class PartsManifest(FileMessage):
    """A SubNet in parts, in the folder of this file. digest: of the SubNet. files: sha256 by name.

    coordinator: it has input and output. parts: in running order. difference: of the parts' answer from the whole
    SubNet's, relative to the largest value.
    """

    WHERE: ClassVar[str] = PARTS_FILE
    NEXT_STEP: ClassVar[str] = AGAIN
    READ_VERSION: ClassVar[int | None] = VERSION
    CONTENT: ClassVar[str] = "segments"

    version: int = VERSION
    digest: str
    files: dict[FileName, Digest]
    coordinator: str = Field(validation_alias=AliasChoices("coordinator", "home"))
    input: PartTensor
    outputs: Annotated[tuple[PartTensor, ...], Field(min_length=1)]
    parts: Annotated[tuple[SubnetPart, ...], Field(min_length=1)]
    difference: float

    @model_validator(mode="after")
    def _runs_in_order(self) -> Self:
        known = {self.input.name: self.input}
        for number, part in enumerate(self.parts):
            if missing := [name for name in (part.file, *(part.ncnn or ())) if name not in self.files]:
                raise ValueError(f"segment {number} is in '{missing[0]}', which is not among the files")
            for tensor in part.inputs:
                if known.get(tensor.name) != tensor:
                    raise ValueError(f"segment {number} reads '{tensor.name}', which no segment before it gives so")
            known |= {tensor.name: tensor for tensor in part.outputs}
        for tensor in self.outputs:
            if known.get(tensor.name) != tensor:
                raise ValueError(f"the answer '{tensor.name}' is not what a segment gives")
        return self

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the manifest and check its files against their digests. AdaptiveError in one line."""
        found = cls.from_file(file)
        check_files(file, found.files)
        return found

    def needed_after(self, part: int) -> Iterator[PartTensor]:
        """The values, each once, that later parts and the answer need from the input and the first `part` parts."""
        later = {tensor.name for one in self.parts[part:] for tensor in one.inputs} | {one.name for one in self.outputs}
        known = {tensor.name: tensor for one in self.parts[:part] for tensor in one.outputs}
        for name, tensor in ({self.input.name: self.input} | known).items():
            if name in later:
                yield tensor
