"""The segments of a SubNet from a chain's folder: files for the coordinator, and messages and files for other devices."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains import SEGMENTS_FILE, ChainFormat, ChainManifest, ChainSegment, ChainTensor
from adaptive_runtime.exits import Thresholds
from profiling_agents.messages import Digest, Format, JobMessage, RuntimeSettings, ServedSubNet, one_line

WITH_NCNN = "write it with partition.ncnn=true"


@dataclass(frozen=True, slots=True)
class SplitSubNet:
    """A SubNet that may be split. subnets: the same segments by the format of their files, ONNX first.

    files: contents by sha256. settings: of onnxruntime on the coordinator. home: the format of the files that the coordinator
    runs. exits: answers of segments at which samples may leave as long as all earlier segments ran on the coordinator, in
    order. thresholds: of the exits.
    """

    subnets: dict[Format, ServedSubNet]
    files: dict[str, bytes]
    settings: RuntimeSettings
    home: ChainFormat = "onnx"
    exits: tuple[ChainTensor, ...] = ()
    thresholds: Thresholds | None = None

    @property
    def subnet(self) -> ServedSubNet:
        """The segments in ONNX, with the digest that plans refer to. Names and shapes are the same in all formats."""
        return self.subnets["onnx"]

    @classmethod
    def open(
        cls,
        folder: str | Path,
        manifest: str = SEGMENTS_FILE,
        home: ChainFormat = "onnx",
        thresholds: Thresholds | None = None,
    ) -> Self:
        """Open and check the chain of a folder. AdaptiveError: it cannot be split in this form.

        home: `ncnn`: the coordinator runs its segments in ncnn. thresholds: of the exits on the coordinator; None: those of the
        file that the manifest names, if it names one. Without thresholds answers of exits before the last one are not computed.
        """
        file = Path(folder) / manifest
        found = ChainManifest.read(file)
        thresholds = thresholds or found.own_thresholds(Path(folder))
        whole, found = found, _until_full(found, thresholds, str(file))
        if found.format != "onnx":
            raise AdaptiveError(str(file), f"its format is {found.format}", allowed="onnx")
        formats: list[ChainFormat] = ["onnx"]
        if all(one.ncnn is not None for one in found.segments):
            formats.append("ncnn")
        if home not in formats:
            raise AdaptiveError(str(file), f"has no files of {home}", allowed=", ".join(formats), next_step=WITH_NCNN)
        named = {name for one in found.segments for form in formats for name in _names(one, form)}
        behind = {name for one in whole.segments for name in (str(one.file), *(one.ncnn or ()))}
        if shared := sorted(set(found.files) - named - behind):
            raise AdaptiveError(
                str(file),
                f"its segments keep their weights in {shared[0]}",
                allowed="segments with weights of their own",
                next_step="export the chain outside of a bundle",
            )
        contents = {name: (Path(folder) / name).read_bytes() for name in named}
        try:
            subnets: dict[Format, ServedSubNet] = {form: _served(found, contents, form) for form in formats}
        except ValidationError as error:
            raise AdaptiveError(str(file), one_line(error), next_step="export the SubNet again") from error
        files = {found.files[name]: contents[name] for name in named}
        exits = () if thresholds is None else tuple(one.outputs[0] for one in found.segments[:-1])
        return cls(subnets, files, dict(found.settings), home, exits, thresholds)


def _until_full(found: ChainManifest, thresholds: Thresholds | None, where: str) -> ChainManifest:
    """The chain up to the exit that gives the full answer. AdaptiveError: thresholds of another SubNet."""
    if thresholds is None:
        return found
    last = len(found.segments) - 1
    if thresholds.full_exit > last:
        got = f"{thresholds.full_exit} thresholds for {last + 1} exits"
        raise AdaptiveError(where, got, allowed=f"at most {last}", next_step="make them for this SubNet")
    if found.input.shape[0] != 1:
        got = f"batches of {found.input.shape[0]}"
        raise AdaptiveError(where, got, allowed="1, since samples leave one by one", next_step="export it with batch=1")
    return found.model_copy(update={"segments": found.segments[: thresholds.full_exit + 1]})


def _names(segment: ChainSegment, form: ChainFormat) -> tuple[str, ...]:
    """Files of a segment in one format."""
    return (str(segment.file),) if form == "onnx" else segment.ncnn or ()


def _served(found: ChainManifest, contents: dict[str, bytes], form: ChainFormat) -> ServedSubNet:
    read = {tensor.name for segment in found.segments for tensor in segment.inputs}
    answer = found.segments[-1].outputs[0].name
    segments, sizes = [], dict[Digest, int]()
    for number, one in enumerate(found.segments):
        names = _names(one, form)
        digests = tuple(found.files[name] for name in names)
        sizes |= zip(digests, (len(contents[name]) for name in names), strict=True)
        given = [tensor for tensor in one.outputs if tensor.name in read or tensor.name == answer]
        segments.append(_job(number, one, form, digests, given))
    return ServedSubNet(segments=tuple(segments), input=found.input.name, answer=answer, file_bytes=sizes)


def _job(
    number: int, segment: ChainSegment, form: ChainFormat, digests: tuple[Digest, ...], given: list[ChainTensor]
) -> JobMessage:
    fields = {
        "key": f"segment {number}",
        "format": form,
        "files": digests,
        "input_names": tuple(tensor.name for tensor in segment.inputs),
        "input_shapes": tuple(tensor.shape for tensor in segment.inputs),  # a free size (None) is refused
        "output_names": tuple(tensor.name for tensor in given),
        "output_shapes": tuple(tensor.shape for tensor in given),
    }
    return JobMessage.model_validate(fields)
