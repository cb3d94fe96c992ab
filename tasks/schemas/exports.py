"""`exports.json`: the files of the winners of one device; `DIGEST.json`: the model card of one SubNet."""

from typing import ClassVar, Literal

from pydantic import Field

from adaptive_runtime.chains import InputsPreparation
from adaptive_runtime.signals import Spectrogram
from adaptive_runtime.texts import TextPreparation
from profiling_agents.messages import Capabilities, LayerTiming
from tasks.schemas.accuracy import Uncertainty
from tasks.schemas.stored import Record, Stored
from tasks.schemas.subnets import Named, Predicted

EXPORTS_FILE = "exports.json"


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
    """An int8 file beside the same SubNet in fp32. Accuracies and losses by split, as onnxruntime computes them.

    `layers`: those with weights; `kept_fp32`: those of them that stay in fp32 so that the first split loses at most
    `allowed_points`. `calibration_images`: training images that the ranges come from. `latency`, `fp32_ms`: both files on the
    device, one after the other; None where it takes no ONNX files.
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
    """An ONNX file in the order with the least peak of activations, beside the default one, on this machine in one thread.

    `kept`: whether the exported file has that order, and is to be run with `session_options`; otherwise `reason`. Peaks of a
    first run: predicted, and counted by an allocator in the runtime. `optimal`: no order has a lower peak.
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
    """An input or output of a file. A size of None is any number. type: written where it is another one than float32."""

    name: str
    shape: tuple[int | None, ...]
    type: str = "float32"


class Brought(Record):
    """What a choice brought on the device: the time with it over the time without (`ratio`), and on what it was `measured`."""

    choice: str
    ratio: float | None
    measured: str


class FileRun(Record):
    """How a file was run when it was checked: on the device if that takes its format.

    `settings`: by the names of the runtime's own API, with the options of the engine. `masks`: of an ncnn file, by layer;
    each leaves the kernel that the device runs fastest. `brought`: () for a file that was not run on the device.
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
    """What is computed between an exit and the one before it.

    `macs`: multiply-accumulates of one sample, the head's included. `latency_ms`: p50 of this segment alone, or in ncnn what
    its exit takes more than the one before it; None where it was not measured.
    """

    exit: str
    macs: int
    latency_ms: float | None = None


class ExportedFile(Record):
    """One format of a SubNet: its files with their sha256 and how they were checked, or why there are none.

    `relative_difference`: from torch; of an int8 file from onnxruntime on this machine. `examples`: sha256 of the programs that
    run it so, by file. `run`: None where there are no files. `segments`: of a chain, in order.
    `expected_ms`: of a chain with thresholds, the mean latency of samples that leave as test images do, by measured segments.
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
    """How many operators of each type, most first; the choices."""

    operators: dict[str, int]
    variables: tuple[VariableChoice, ...]


class Origin(Record):
    """What a SubNet was made from."""

    network: dict[str, str]
    data: str
    digests: dict[str, str]


class CardDevice(Record):
    """Where latencies were measured."""

    backend: str
    version: str
    provider: str
    precision: str
    threads: int
    cpu_model: str
    system: str
    fingerprint: str


class UsedEngine(Record):
    """The options of the runtime with which the device ran the SubNet; others have the runtime's defaults.

    `speed_up`: over the defaults, on SubNets of this SuperNet. `kept`: by option the time with its choice over the time without
    it, as it was when it was chosen; without choices that the user gave.
    """

    choices: dict[str, str]
    speed_up: float
    kept: dict[str, float]


class Preparation(Record):
    """What an application does with an image, with values in [0, 1], before the network sees it. In this order:

    `crop`; scaled to height and width `resolution` by `interpolation`; less `mean`, over `deviation`, by channel; and scaled to
    `size` (height, width) by `size_interpolation` where that is another. Where data are signals, `spectrogram` makes the image,
    in height and width `resolution`, and nothing is cut or scaled before the mean is taken off.
    """

    colours: Literal["RGB", "grey"]
    crop: str
    resolution: int
    interpolation: str
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    size: tuple[int, int]
    size_interpolation: str
    spectrogram: Spectrogram | None = None


class Decoding(Record):
    """How boxes come from a raw output, which no latency includes. head: by its name in `adaptive_runtime.boxes.HEADS`.

    p50_ms: of one image, by `adaptive_runtime.boxes.detect` on the machine that exported; images: that were decoded.
    """

    head: str
    p50_ms: float
    images: int


class AdaptedTensors(Record):
    """What a SubNet has adapted: the sha256 of its side file, the batches it comes from, and how many tensors differ.

    input_deviations: its files bring light and details of each image to within so many deviations of what is usual; None: they
    take images as they are.
    """

    sha256: str
    steps: int
    tensors: int
    input_deviations: float | None = None


class Card(Named, Stored):
    """What is known of one exported SubNet. `classes`: their names, in the order of the network's outputs.

    input_shape: of several inputs that of the first; the preparation has all.

    predicted_ms: what the search chose it by. engine: None where none was chosen, which is the runtime's defaults.
    accuracy: on a device in int8 that of its int8 file, where it has one. problem: the learning problem, whose score accuracies
    are; written where it is another one than classification. metric: by which it is judged; None: by its first
    one. decoding: of detectors; None: there is nothing to decode.
    adapted: where the SubNet is exported as it has adapted; accuracies are of that, predictions of the SubNet before.
    samples: of how many an accuracy is, by split, where it is a share of right answers.
    """

    STAGE: ClassVar[str] = "export"

    batch: int
    input_shape: tuple[int, ...]
    preparation: Preparation | TextPreparation | InputsPreparation
    classes: tuple[str, ...]
    macs: int
    parameters: int
    architecture: Architecture
    accuracy: dict[str, float]
    files: dict[str, ExportedFile]
    predicted_ms: float
    latency: Latency
    device: CardDevice
    engine: UsedEngine | None = None
    made_from: Origin
    problem: str = "classification"
    metric: str | None = None
    decoding: Decoding | None = None
    adapted: AdaptedTensors | None = None
    samples: dict[str, int] = Field(default={})


class MissedWinner(Record):
    """A SubNet that was chosen for a budget and lost it: as measured it takes longer (None: it could not be measured).

    accuracy: by split, of one that keeps the budget, which a more accurate SubNet keeps, too.
    """

    digest: str
    predicted_ms: float
    measured_ms: float | None
    accuracy: dict[str, float] | None = None


class ExportedWinner(Record):
    """A budget: what was predicted and what was measured, side by side.

    `replaces`: the winner of the search or of the refinement, where another SubNet took its place; `subnet`: that one.
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
    """All SubNets in one folder. `bytes_alone`: of their own ONNX files, where these were exported."""

    state: Literal["ok", "failed"]
    reason: str | None = None
    folder: str | None = None
    bytes: int | None = None
    bytes_alone: int | None = None
    relative_difference: float | None = None
    tolerance: float | None = None


class MeasuredLargest(Record):
    """The largest SubNet, measured beside the winners.

    `own_choices`: by the runtime's own choices of implementations, where others were chosen. `fp32`: on a device in int8, for
    what int8 alone brings.
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
    """The winners of one device. `subnets`: a card for each SubNet that was exported, also where it lost all its budgets.

    uncertainty: as the search has it.
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
    """`index.json` of the folder with readable names: what is of each budget, and the sha256 of every file that a run wrote."""

    STAGE: ClassVar[str] = "export"

    winners: tuple[IndexedWinner, ...]
    sha256: dict[str, str]
