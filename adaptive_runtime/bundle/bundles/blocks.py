"""`blocks.json`: segments of a bundle's SuperNet, so that a device can assemble further SubNets as chains of segments.

Boundaries are counted from the network's input, 0, to its answer. A segment reads the value at one boundary and gives the
value at a later one. `bundle.json` has the digests of all files.
"""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from adaptive_runtime.base.message_files import FileMessage
from adaptive_runtime.bundle.bundles.subnets import Choice
from adaptive_runtime.bundle.chains import ChainTensor, ImagePreparation
from adaptive_runtime.bundle.chains.manifest import FileName
from profiling_agents.messages import Message

BLOCKS_FILE = "blocks.json"
VERSION = 1
AGAIN = "export the bundle again"


class BundledSegment(Message):
    """A segment that leads from one boundary to a later one.

    variable, choice: the alternative that the segment implements; None: the network's own layers. bytes: size of its weights.
    macs: for one sample. predicted_ms: None if unknown. accuracy_loss: loss of the largest SubNet with this alternative alone,
    as a share of images; None: unknown.
    """

    start: int = Field(ge=0)
    end: int
    variable: str | None = None
    choice: str | None = None
    file: FileName
    input: ChainTensor
    output: ChainTensor
    bytes: int
    macs: int
    predicted_ms: float | None = None
    accuracy_loss: float | None = None


class BlocksManifest(FileMessage):
    """All segments of one SuperNet; its variables of other kinds than `block` have the values of `config`.

    weights: the file that segments refer to. accuracy: of the network's own layers, by split. relative_difference: largest
    difference from torch over the checked SubNets, relative to the largest value.
    """

    WHERE: ClassVar[str] = BLOCKS_FILE
    NEXT_STEP: ClassVar[str] = AGAIN
    READ_VERSION: ClassVar[int | None] = VERSION
    CONTENT: ClassVar[str] = "blocks"

    version: int = VERSION
    config: dict[str, Choice]
    preparation: ImagePreparation
    weights: FileName
    accuracy: dict[str, float]
    segments: Annotated[tuple[BundledSegment, ...], Field(min_length=1)]
    relative_difference: float = 0.0

    @model_validator(mode="after")
    def _leads_from_input_to_answer(self) -> Self:
        own = {(one.start, one.end) for one in self.segments if one.variable is None}
        wanted = {(at, at + 1) for at in range(self.boundaries - 1)}
        if own != wanted:
            raise ValueError(f"the network's own layers do not lead from boundary 0 to {self.boundaries - 1}")
        for number, one in enumerate(self.segments):
            if one.end <= one.start:
                raise ValueError(f"segment {number} leads from boundary {one.start} to {one.end}")
            if (one.variable is None) != (one.choice is None):
                raise ValueError(f"segment {number} has a variable without a choice, or a choice without a variable")
        if wrong := [n for n, one in enumerate(self.segments) if one.input.shape != self._shapes[one.start]]:
            raise ValueError(f"segment {wrong[0]} reads another shape than those before it give")
        return self

    @property
    def boundaries(self) -> int:
        """The number of boundaries, the input and the answer included."""
        return 1 + max(one.end for one in self.segments)

    @property
    def largest(self) -> tuple[int, ...]:
        """The network's own layers: positions of their segments in order."""
        own = [number for number, one in enumerate(self.segments) if one.variable is None]
        return tuple(sorted(own, key=lambda number: self.segments[number].start))

    @property
    def _shapes(self) -> dict[int, tuple[int | None, ...]]:
        own = [self.segments[number] for number in self.largest]
        return {one.start: one.input.shape for one in own}

    def config_of(self, path: tuple[int, ...]) -> dict[str, Choice]:
        """The config of a chain, without the variables of blocks that the chain passes over with another alternative."""
        taken = [self.segments[number] for number in path]
        ends = {one.variable: one.end for one in self.segments if one.variable is not None}
        passed = {name for name, end in ends.items() for one in taken if one.start < end < one.end}
        chosen = {one.variable: one.choice for one in taken if one.variable is not None and one.choice is not None}
        return {name: choice for name, choice in {**self.config, **chosen}.items() if name not in passed}
