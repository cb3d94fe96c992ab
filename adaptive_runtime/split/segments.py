"""The segments of a SubNet from a chain's folder: what home loads, and what other devices are told and sent."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from adaptive_runtime.chains import SEGMENTS_FILE, ChainManifest, ChainSegment, ChainTensor
from adaptive_runtime.errors import AdaptiveError
from profiling_agents.messages import JobMessage, RuntimeSettings, ServedSubNet, one_line


@dataclass(frozen=True, slots=True)
class SplitSubNet:
    """A SubNet that may be split. files: contents by sha256. settings: of the runtime at home."""

    subnet: ServedSubNet
    files: dict[str, bytes]
    settings: RuntimeSettings

    @classmethod
    def open(cls, folder: str | Path, manifest: str = SEGMENTS_FILE) -> Self:
        """The chain of a folder, whose files are checked. AdaptiveError: it cannot be split as it is.

        Answers of exits before the last one are not computed.
        """
        file = Path(folder) / manifest
        found = ChainManifest.read(file)
        if found.format != "onnx":
            raise AdaptiveError(str(file), f"its format is {found.format}", allowed="onnx")
        shared = sorted(set(found.files) - {str(one.file) for one in found.segments})
        if shared:
            raise AdaptiveError(
                str(file),
                f"its segments keep their weights in {shared[0]}",
                allowed="segments with weights of their own",
                next_step="export the chain outside of a bundle",
            )
        files = {found.files[str(one.file)]: (Path(folder) / str(one.file)).read_bytes() for one in found.segments}
        try:
            return cls(_served(found, files), files, dict(found.settings))
        except ValidationError as error:
            raise AdaptiveError(str(file), one_line(error), next_step="export the SubNet again") from error


def _served(found: ChainManifest, files: dict[str, bytes]) -> ServedSubNet:
    read = {tensor.name for segment in found.segments for tensor in segment.inputs}
    answer = found.segments[-1].outputs[0].name
    segments = []
    for number, one in enumerate(found.segments):
        given = [tensor for tensor in one.outputs if tensor.name in read or tensor.name == answer]
        segments.append(_job(number, one, found.files[str(one.file)], given))
    sizes = {digest: len(content) for digest, content in files.items()}
    return ServedSubNet(segments=tuple(segments), input=found.input.name, answer=answer, file_bytes=sizes)


def _job(number: int, segment: ChainSegment, digest: str, given: list[ChainTensor]) -> JobMessage:
    fields = {
        "key": f"segment {number}",
        "format": "onnx",
        "files": (digest,),
        "input_names": tuple(tensor.name for tensor in segment.inputs),
        "input_shapes": tuple(tensor.shape for tensor in segment.inputs),  # None of a free size is refused
        "output_names": tuple(tensor.name for tensor in given),
        "output_shapes": tuple(tensor.shape for tensor in given),
    }
    return JobMessage.model_validate(fields)
