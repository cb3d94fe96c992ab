"""One inference request, from its bytes to the bytes of its answer.

Legend: N samples, C channels, H height, W width.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundles import TakenSamples
from adaptive_runtime.deployed import DeployedModel, ModelAnswer
from adaptive_runtime.deployed.decoding import SEGMENTATION
from adaptive_runtime.service.protocol import InferRequest
from adaptive_runtime.service.recent import by_sample
from adaptive_runtime.service.refusals import RequestRefused
from adaptive_runtime.service.tensors import NAMES, NamedTensor, PackedBody, pack, shown, split, unpack, values_of

INPUT = "input"
DATATYPES_OUT = {"logits": "FP32", "classes": "INT64", "confidence": "FP64", "boxes": "FP32", "scores": "FP32"}
NOTHING = -1
"""The class of rows of boxes that fill up an image which has fewer than another one."""
MOST_SAMPLES = 256


class InferenceFormat(NamedTuple):
    """What a model takes and gives: samples, number of classes; None: unknown. form: of its files.

    problem: as the bundle's manifest names it.
    """

    taken: TakenSamples
    classes: int | None
    form: str
    problem: str | None = None

    @classmethod
    def of(cls, model: DeployedModel) -> "InferenceFormat":
        """By the first SubNet of the bundle: all take samples in the data's own size."""
        first, form = model.pool.bundle.manifest.subnets[0], model.pool.form
        shape = first.nets[form].output.shape if form in first.nets else ()
        classes = shape[-1] if shape else None
        return cls(model.taken, classes, form, model.pool.bundle.manifest.problem)

    @property
    def datatype(self) -> str:
        """Of the input."""
        return NAMES[self.taken.dtype]

    @property
    def outputs(self) -> dict[str, list[int]]:
        """Shapes of what an answer may have, by name; −1: any size."""
        if self.problem is None:
            return {"logits": [-1, self.classes or -1], "classes": [-1], "confidence": [-1]}
        if self.problem == SEGMENTATION:
            return {"classes": [-1, *self.taken.shape[1:]]}
        return {"boxes": [-1, -1, 4], "scores": [-1, -1], "classes": [-1, -1]}

    def require(self, shape: tuple[int, ...]) -> None:
        """Refuse samples of another shape. RequestRefused (400)."""
        wanted = self.taken.shape
        if len(shape) != 1 + len(wanted) or shape[1:] != wanted or not 1 <= shape[0] <= MOST_SAMPLES:
            sizes = ", ".join(map(str, wanted))
            got = f"input '{INPUT}': shape {shown(list(shape))}"
            raise RequestRefused(400, f"{got}; allowed: [N, {sizes}], N from 1 to {MOST_SAMPLES}")

    def metadata(self, name: str, version: str) -> dict[str, Any]:
        """The model's metadata, as the protocol has it; −1: any size."""
        return {
            "name": name,
            "versions": [version],
            "platform": f"autotailor_{self.form}",
            "inputs": [{"name": INPUT, "datatype": self.datatype, "shape": [-1, *self.taken.shape]}],
            "outputs": [
                {"name": one, "datatype": DATATYPES_OUT[one], "shape": shape} for one, shape in self.outputs.items()
            ],
        }


class ReadRequest(NamedTuple):
    """A request that can be answered."""

    message: InferRequest
    images_NCHW: NDArray[Any]


def read(body: bytes, length: str | None, wanted: InferenceFormat) -> ReadRequest:
    """A request, checked. RequestRefused (400)."""
    message, binary = unpack(body, length)
    if len(message.inputs) != 1 or message.inputs[0].name != INPUT:
        got = ", ".join(one.name for one in message.inputs) or "none"
        raise RequestRefused(400, f"inputs: {shown(got)}; allowed: one, of the name '{INPUT}'")
    (tensor,) = message.inputs
    if tensor.datatype != wanted.datatype:
        got = f"input '{INPUT}': datatype {shown(tensor.datatype)}"
        raise RequestRefused(400, f"{got}; allowed: {wanted.datatype}")
    wanted.require(tensor.shape)
    names = [one.name for one in message.outputs]
    if unknown := [name for name in names if name not in wanted.outputs]:
        raise RequestRefused(400, f"output '{shown(unknown[0])}'; allowed: {', '.join(wanted.outputs)}")
    if len(set(names)) < len(names):
        raise RequestRefused(400, "outputs: one is there twice; allowed: each once")
    (blob,) = split(message.inputs, binary)
    values = values_of(tensor, blob)
    if fault := wanted.taken.fault(values):
        raise RequestRefused(400, f"input '{INPUT}': {fault}; allowed: from 0, below {wanted.taken.words}")
    return ReadRequest(message, values)


def _values(answer: ModelAnswer) -> dict[str, NDArray[Any]]:
    """The tensors of an answer by name. Boxes (N, M, 4), M the most of an image; what an image lacks has class `NOTHING`."""
    if answer.masks is not None:
        return {"classes": answer.masks}
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
