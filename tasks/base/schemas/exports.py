"""`exports.json`: the files of the winners of one device; `DIGEST.json`: the model card of one SubNet."""

from typing import ClassVar, Literal

from pydantic import Field

from adaptive_runtime.bundle.bundles import BundleDevice, BundleOrigin
from adaptive_runtime.bundle.chains import ImagePreparation, InputsPreparation
from adaptive_runtime.samples.inputs import GivenPreparation, TextPreparation
from profiling_agents.messages import Capabilities, LayerTiming
from tasks.base.schemas.predictions import Uncertainty
from tasks.base.schemas.stored import Named, Predicted, Record, Stored

EXPORTS_FILE = "exports.json"
AS_GIVEN = "as_given"
"""In the place of a digest: the network as it was given, with its weights before any training. It is no SubNet."""


LABELLED = "labelled"
"""In the place of a split: samples with targets, whose accuracy is the true score beside the fidelity."""


class Latency(Record):
    """A measurement of one SubNet (`profiling_agents.messages.Measurement`, without its key)."""

    state: Literal["ok", "failed"]
    reason: str | None
    p50_ms: float | None
    p90_ms: float | None
    spread: float | None
    n: int
    repeats: int
    noisy: bool
    energy_mj: float | None
    layers: tuple[LayerTiming, ...]


class Int8File(Record):
    """An int8 file compared with the same SubNet in fp32. Accuracies and losses by split, as computed by onnxruntime.

    layers: number of layers with weights; kept_fp32: layers that stay in fp32 so that the first split loses at most
    `allowed_points`. calibration_images: training images behind the ranges. latency, fp32_ms: both files on the device, one
    after the other; None if it takes no ONNX files.
    """

    accuracy: dict[str, float]
    lost_points: dict[str, float]
    allowed_points: float
    layers: int
    kept_fp32: tuple[str, ...]
    calibration_images: int
    fp32_bytes: int
    latency: Latency | None = None
    fp32_ms: float | None = None


class PlannedMemory(Record):
    """An ONNX file in the order of least peak activations, compared with the default order, on this machine in one thread.

    kept: whether the exported file has that order, and must be run with `session_options`; otherwise see `reason`. Peaks of a
    first run: predicted, and counted by an allocator in the runtime. optimal: no order has a lower peak.
    """

    kept: bool
    reason: str | None = None
    planned_mib: float | None = None
    default_mib: float | None = None
    planned_counted_mib: float | None = None
    default_counted_mib: float | None = None
    planned_ms: float | None = None
    default_ms: float | None = None
    optimal: bool | None = None
    session_options: dict[str, bool | str] = Field(default_factory=dict)


class FileTensor(Record):
    """An input or output of a file. A size of None is any number. type: written if it is not float32."""

    name: str
    shape: tuple[int | None, ...]
    type: str = "float32"


class Brought(Record):
    """The gain of a choice on the device: time with it over time without (`ratio`), and the network on which it was
    `measured`.
    """

    choice: str
    ratio: float | None
    measured: str


class FileRun(Record):
    """The run of a file in its check, on the device if that takes its format.

    settings: by the names of the runtime's own API, with the options of the engine. masks: of an ncnn file, by layer; each
    leaves the kernel that the device runs fastest. brought: () for a file that was not run on the device.
    """

    runtime: str
    version: str
    build: str
    provider: str
    threads: int
    precision: str
    settings: dict[str, bool | int | str]
    masks: dict[str, int] = Field(default_factory=dict)
    inputs: tuple[FileTensor, ...]
    outputs: tuple[FileTensor, ...]
    brought: tuple[Brought, ...] = ()


class ExportedSegment(Record):
    """The computation between an exit and the one before it.

    macs: multiply-accumulates of one sample, the head's included. latency_ms: p50 of this segment alone, or in ncnn the
    difference between its exit and the one before; None if not measured.
    """

    exit: str
    macs: int
    latency_ms: float | None = None


class ExportedFile(Record):
    """One format of a SubNet: its files with their sha256 and the result of their check, or the reason why there are none.

    relative_difference: from torch; for an int8 file from onnxruntime on this machine. examples: sha256 of example programs, by
    file. run: None without files. segments: of a chain, in order. expected_ms: of a chain with thresholds, the mean latency of
    samples that leave as the test images do, from measured segments.
    """

    state: Literal["ok", "failed"]
    reason: str | None = None
    sha256: dict[str, str] = Field(default_factory=dict)
    bytes: int | None = None
    relative_difference: float | None = None
    tolerance: float | None = None
    images: int | None = None
    on_device: bool | None = None
    runtime: str | None = None
    precision: str | None = None
    int8: Int8File | None = None
    memory: PlannedMemory | None = None
    examples: dict[str, str] = Field(default_factory=dict)
    run: FileRun | None = None
    segments: tuple[ExportedSegment, ...] = ()
    expected_ms: float | None = None

    @property
    def written(self) -> dict[str, str]:
        """sha256 of every file, examples included."""
        return {**self.sha256, **self.examples}


class VariableChoice(Record):
    """A variable of a SubNet: its choice among those of the SuperNet."""

    name: str
    choice: int | float | str
    choices: tuple[int | float | str, ...]


class Architecture(Record):
    """The number of operators of each type, largest first, and the choices."""

    operators: dict[str, int]
    variables: tuple[VariableChoice, ...]


class UsedEngine(Record):
    """The options of the runtime with which the device ran the SubNet; other options are the runtime's defaults.

    speed_up: over the defaults, on SubNets of this SuperNet. kept: by option, the time with its choice over the time without
    it, measured when it was chosen; choices given by the user are not included.
    """

    choices: dict[str, str]
    speed_up: float
    kept: dict[str, float]


class Decoding(Record):
    """The decoding of a raw output into boxes, which no latency includes.

    head: its name in `adaptive_runtime.samples.boxes.HEADS`. p50_ms: of one image, by
    `adaptive_runtime.samples.boxes.detect` on the exporting machine; images: number of decoded ones.
    """

    head: str
    p50_ms: float
    images: int


class AdaptedTensors(Record):
    """The adaptation of a SubNet: the sha256 of its side file, the number of batches, and the number of changed tensors.

    input_deviations: its files bring light and details of each image to within this many deviations of the usual values; None:
    they take images unchanged.
    """

    sha256: str
    steps: int
    tensors: int
    input_deviations: float | None = None


class Card(Named, Stored):
    """All facts on one exported SubNet. classes: their names, in the order of the network's outputs.

    input_shape: of the first input if there are several; the preparation has all.

    predicted_ms: the prediction that the search used. engine: None if none was chosen, i.e. the runtime's defaults. accuracy:
    on an int8 device that of its int8 file, if it has one. problem: the learning problem, whose score the accuracies are;
    written if it is not classification. metric: of that score; None: the problem's first one. decoding: for detectors; None:
    there is nothing to decode. adapted: set if the SubNet is exported in adapted form; accuracies are then of that form,
    predictions of the SubNet before. states: inputs whose value is that of an output of the step before. samples: number behind
    an accuracy, by split, if it is a mean over samples. spread: as in `Uncertainty`.
    """

    STAGE: ClassVar[str] = "export"

    batch: int
    input_shape: tuple[int, ...]
    preparation: ImagePreparation | TextPreparation | GivenPreparation | InputsPreparation
    classes: tuple[str, ...]
    macs: int
    parameters: int
    architecture: Architecture
    accuracy: dict[str, float]
    files: dict[str, ExportedFile]
    predicted_ms: float
    latency: Latency
    device: BundleDevice
    engine: UsedEngine | None = None
    made_from: BundleOrigin
    problem: str = "classification"
    metric: str | None = None
    decoding: Decoding | None = None
    adapted: AdaptedTensors | None = None
    states: dict[str, str] = Field(default={})
    samples: dict[str, int] = Field(default={})
    spread: float = 1.0


class MissedWinner(Record):
    """A SubNet that was chosen for a budget and lost it: its measured latency is larger (None: it could not be measured).

    accuracy: by split, if it keeps the budget but a more accurate SubNet does, too.
    """

    digest: str
    predicted_ms: float
    measured_ms: float | None
    accuracy: dict[str, float] | None = None


class ExportedWinner(Record):
    """A budget with predicted and measured values side by side.

    replaces: the winner of the search or of the refinement, if another SubNet replaced it; subnet: the replacement.
    """

    digest: str
    budget_ms: float
    predicted_ms: float
    measured_ms: float | None
    within_budget: bool
    predicted_accuracy: float
    accuracy: dict[str, float]
    files_ok: bool
    replaces: MissedWinner | None = None
    subnet: Predicted | None = None


class Bundle(Record):
    """All SubNets in one folder. bytes_alone: of their separate ONNX files, if these were exported."""

    state: Literal["ok", "failed"]
    reason: str | None = None
    folder: str | None = None
    bytes: int | None = None
    bytes_alone: int | None = None
    relative_difference: float | None = None
    tolerance: float | None = None


class MeasuredLargest(Record):
    """The largest SubNet, measured beside the winners.

    own_choices: with the runtime's own choices of implementations, if others were chosen. fp32: on an int8 device, for the gain
    of int8 alone.
    """

    latency: Latency
    own_choices: Latency | None = None
    fp32: Latency | None = None


class MeasuredBaseline(Record):
    """A uniformly shrunk SubNet, measured."""

    digest: str
    measured_ms: float | None
    reason: str | None
    accuracy: dict[str, float]


class Exports(Stored):
    """The winners of one device. subnets: a card for each exported SubNet, even if it lost all its budgets; `AS_GIVEN` last.

    uncertainty: as in the search.
    """

    STAGE: ClassVar[str] = "export"

    version: int = 2
    device: Capabilities
    winners: tuple[ExportedWinner, ...]
    subnets: tuple[Card, ...]
    largest: MeasuredLargest
    bundle: Bundle | None = None
    baseline: tuple[MeasuredBaseline, ...]
    uncertainty: Uncertainty = Uncertainty()


class IndexedWinner(Record):
    """A budget, and the names of its files in the folder."""

    budget_ms: float
    measured_ms: float | None
    accuracy: dict[str, float]
    digest: str
    files: tuple[str, ...]


class ExportIndex(Stored):
    """`index.json` of the folder with readable names: the files of each budget, and the sha256 of every file that a run
    wrote.
    """

    STAGE: ClassVar[str] = "export"

    winners: tuple[IndexedWinner, ...]
    sha256: dict[str, str]
