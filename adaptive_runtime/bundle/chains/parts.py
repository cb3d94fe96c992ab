"""`parts.json`: a split SubNet, as ONNX files that run one after the other, each on one device.

A part reads values of the network's input and of all earlier parts, not only of its neighbour; a value with several readers
has one name everywhere, so that it is sent only once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from adaptive_runtime.base.message_files import FileMessage
from adaptive_runtime.bundle.chains.manifest import AGAIN, FileName, NcnnPair, check_files
from profiling_agents.messages import Digest, Message

PARTS_FILE = "parts.json"
VERSION = 1

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

    home: the coordinator, which has input and output. parts: in running order. difference: of the parts' answer from the whole
    SubNet's, relative to the largest value.
    """

    WHERE: ClassVar[str] = PARTS_FILE
    NEXT_STEP: ClassVar[str] = AGAIN
    READ_VERSION: ClassVar[int | None] = VERSION
    CONTENT: ClassVar[str] = "segments"

    version: int = VERSION
    digest: str
    files: dict[FileName, Digest]
    home: str
    input: PartTensor
    outputs: Annotated[tuple[PartTensor, ...], Field(min_length=1)]
    parts: Annotated[tuple[SubnetPart, ...], Field(min_length=1)]
    difference: float

    @model_validator(mode="after")
    def _runs_in_order(self) -> Self:
        known = {self.input.name: self.input}
        for number, part in enumerate(self.parts):
            if missing := [name for name in (part.file, *(part.ncnn or ())) if name not in self.files]:
                raise ValueError(f"part {number} is in '{missing[0]}', which is not among the files")
            for tensor in part.inputs:
                if known.get(tensor.name) != tensor:
                    raise ValueError(f"part {number} reads '{tensor.name}', which no part before it gives so")
            known |= {tensor.name: tensor for tensor in part.outputs}
        for tensor in self.outputs:
            if known.get(tensor.name) != tensor:
                raise ValueError(f"the answer '{tensor.name}' is not what a part gives")
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
