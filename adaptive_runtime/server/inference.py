"""One inference request, from its bytes to the bytes of its answer.

Legend: N samples, C channels, H height, W width.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundle.bundles import TakenSamples
from adaptive_runtime.model.answers import SEGMENTATION, SEVERAL_CLASSES, TAGGING, UPSCALES, ModelAnswer, targets_of
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.samples.inputs import packed
from adaptive_runtime.server.protocol import (
    NAMES,
    InferRequest,
    NamedTensor,
    PackedBody,
    RequestRefused,
    SentTensor,
    pack,
    shown,
    split,
    unpack,
    values_of,
)
from adaptive_runtime.server.recent import by_sample

INPUT = "input"
DATATYPES_OUT = {"logits": "FP32", "confidence": "FP64", "boxes": "FP32", "scores": "FP32", "images": "FP32"}
"""The other outputs are classes, INT64."""
NOTHING = -1
"""Class of padding rows, for images with fewer boxes than others of the batch."""
MOST_SAMPLES = 256


class InferenceFormat(NamedTuple):
    """Input and output of a model: samples, number of classes (None: unknown). form: of its files.

    problem: as named in the bundle's manifest. targets: names of the targets, if samples have several classes.
    """

    taken: TakenSamples
    classes: int | None
    form: str
    problem: str | None = None
    targets: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: DeployedModel) -> "InferenceFormat":
        """From the first SubNet of the bundle: all take samples in the data's own size."""
        first, form = model.pool.bundle.manifest.subnets[0], model.pool.form
        shape = first.nets[form].output.shape if form in first.nets else ()
        classes = shape[-1] if shape else None
        manifest = model.pool.bundle.manifest
        targets = tuple(targets_of(manifest.classes)) if manifest.problem == SEVERAL_CLASSES else ()
        return cls(model.taken, classes, form, manifest.problem, targets)

    @property
    def inputs(self) -> dict[str, TakenSamples]:
        """Each input by name."""
        if self.taken.inputs is None:
            return {INPUT: self.taken}
        return dict(self.taken.inputs)

    @property
    def outputs(self) -> dict[str, list[int]]:
        """Shapes of the possible outputs, by name; −1: any size."""
        if self.problem is None:
            return {"logits": [-1, self.classes or -1], "classes": [-1], "confidence": [-1]}
        if self.problem == SEVERAL_CLASSES:
            return {"logits": [-1, self.classes or -1], **{name: [-1] for name in self.targets}}
        if (upscale := UPSCALES.get(self.problem)) is not None:
            channels, height, width = self.taken.shape
            return {"images": [-1, channels, upscale * height, upscale * width]}
        if self.problem == TAGGING:
            return {"classes": [-1, *self.taken.shape]}
        if self.problem == SEGMENTATION:
            return {"classes": [-1, *self.taken.shape[1:]]}
        return {"boxes": [-1, -1, 4], "scores": [-1, -1], "classes": [-1, -1]}

    def require(self, shape: tuple[int, ...], name: str = INPUT) -> None:
        """Refuse samples of another shape. RequestRefused (400)."""
        wanted = self.inputs[name].shape
        if len(shape) != 1 + len(wanted) or shape[1:] != wanted or not 1 <= shape[0] <= MOST_SAMPLES:
            sizes = ", ".join(map(str, wanted))
            got = f"input '{name}': shape {shown(list(shape))}"
            raise RequestRefused(400, f"{got}; allowed: [N, {sizes}], N from 1 to {MOST_SAMPLES}")

    def require_words(self, values: NDArray[Any]) -> None:
        """Refuse numbers outside of the vocabulary; values of images are not checked. RequestRefused (400)."""
        for name, one in self.inputs.items():
            if fault := one.fault(values if self.taken.inputs is None else values[name]):
                raise RequestRefused(400, f"input '{name}': {fault}; allowed: from 0, below {one.words}")

    def metadata(self, name: str, version: str) -> dict[str, Any]:
        """The model's metadata in the protocol's form; −1: any size."""
        return {
            "name": name,
            "versions": [version],
            "platform": f"autotailor_{self.form}",
            "inputs": [
                {"name": one, "datatype": NAMES[taken.dtype], "shape": [-1, *taken.shape]}
                for one, taken in self.inputs.items()
            ],
            "outputs": [
                {"name": one, "datatype": DATATYPES_OUT.get(one, "INT64"), "shape": shape}
                for one, shape in self.outputs.items()
            ],
        }


class ReadRequest(NamedTuple):
    """A valid request. images_NCHW: its samples; several inputs are packed."""

    message: InferRequest
    images_NCHW: NDArray[Any]


def read(body: bytes, length: str | None, wanted: InferenceFormat) -> ReadRequest:
    """Parse and check a request. RequestRefused (400)."""
    message, binary = unpack(body, length)
    names = [one.name for one in message.inputs]
    if sorted(names) != sorted(wanted.inputs):
        one_alone = list(wanted.inputs) == [INPUT]
        allowed = f"one, of the name '{INPUT}'" if one_alone else f"{', '.join(wanted.inputs)}, each once"
        raise RequestRefused(400, f"inputs: {shown(', '.join(names) or 'none')}; allowed: {allowed}")
    for tensor in message.inputs:
        _check_input(tensor, wanted)
    if len({tensor.shape[0] for tensor in message.inputs}) > 1:
        got = ", ".join(f"{tensor.shape[0]} of '{tensor.name}'" for tensor in message.inputs)
        raise RequestRefused(400, f"inputs: samples: {shown(got)}; allowed: as many of each")
    _check_outputs([one.name for one in message.outputs], wanted)
    blobs = split(message.inputs, binary)
    found = {one.name: values_of(one, blob) for one, blob in zip(message.inputs, blobs, strict=True)}
    values = packed({name: found[name] for name in wanted.inputs})
    wanted.require_words(values)
    return ReadRequest(message, values)


def _check_input(tensor: SentTensor, wanted: InferenceFormat) -> None:
    """Refuse an input of another type or shape. RequestRefused (400)."""
    datatype = NAMES[wanted.inputs[tensor.name].dtype]
    if tensor.datatype != datatype:
        got = f"input '{tensor.name}': datatype {shown(tensor.datatype)}"
        raise RequestRefused(400, f"{got}; allowed: {datatype}")
    wanted.require(tensor.shape, tensor.name)


def _check_outputs(names: list[str], wanted: InferenceFormat) -> None:
    """Refuse unknown and duplicate outputs. RequestRefused (400)."""
    if unknown := [name for name in names if name not in wanted.outputs]:
        raise RequestRefused(400, f"output '{shown(unknown[0])}'; allowed: {', '.join(wanted.outputs)}")
    if len(set(names)) < len(names):
        raise RequestRefused(400, "outputs: one is there twice; allowed: each once")


def _values(answer: ModelAnswer) -> dict[str, NDArray[Any]]:
    """The tensors of an answer by name.

    Boxes are (N, M, 4) with M the largest number in an image; padding rows have class `NOTHING`.
    """
    if answer.labels is not None:
        return {"logits": answer.logits, **answer.labels}
    if answer.images is not None:
        return {"images": answer.images}
    if answer.masks is not None:
        return {"classes": answer.masks}
    if answer.tags is not None:
        return {"classes": answer.tags}
    if answer.detections is None:
        return {"logits": answer.logits, "classes": answer.classes, "confidence": answer.confidence}
    shape = (len(answer.detections), max(len(one.scores_N) for one in answer.detections))
    boxes, scores = np.zeros((*shape, 4), np.float32), np.zeros(shape, np.float32)
    classes = np.full(shape, NOTHING, np.int64)
    for row, one in enumerate(answer.detections):
        found = len(one.scores_N)
        boxes[row, :found], scores[row, :found], classes[row, :found] = one.boxes_N4, one.scores_N, one.classes_N
    return {"boxes": boxes, "scores": scores, "classes": classes}


def written(
    request: InferRequest, answer: ModelAnswer, waited_ms: float, late_ms: float, *, model: tuple[str, str]
) -> PackedBody:
    """The answer to a request. model: name and version. late_ms: after the deadline; 0: in time. RequestRefused (500)."""
    parameters: dict[str, Any] = {
        "subnet": by_sample(answer.subnets),
        "exit": by_sample(answer.exits),
        "format": by_sample(answer.formats),
        "latency_ms": answer.latency_ms,
        "waited_ms": waited_ms,
    }
    if late_ms > 0:
        parameters["late_ms"] = late_ms
    if answer.devices:
        parameters["devices"] = ",".join(answer.devices)
    head = {"model_name": model[0], "model_version": model[1], "parameters": parameters}
    if request.id:
        head["id"] = request.id
    values = _values(answer)
    of_all = request.parameters.binary_data_output
    wanted = {one.name: one.parameters.binary_data for one in request.outputs} or dict.fromkeys(values)
    tensors = [NamedTensor(name, values[name], of_all if binary is None else binary) for name, binary in wanted.items()]
    try:
        return pack(head, "outputs", tensors)
    except ValueError as error:
        line = "the answer has NaN or infinite values, which JSON has no number for; ask for binary outputs"
        raise RequestRefused(500, line, outcome="failed") from error
