"""Schemas of results: `result.json` of stages whose results others read, files of a training, and `stream.json`.

`stream.json` has one SubNet on a stream of images that drift, under each method.
"""

from typing import Any, ClassVar, TypedDict

from adaptive_runtime.base.weight_options import GuardEventKind
from tasks.base.schemas.stored import Config, Record, Stored

HISTORY_FILE = "history.jsonl"
WEIGHTS_FILE = "weights.safetensors"
"""The weights of a trained network."""
RANGES_FILE = "ranges.json"
RANGE_ACCURACIES_FILE = "range_accuracies.jsonl"


class Result(Stored):
    """The result of a stage; seconds: its duration."""

    seconds: float | None = None


class NetworkAccuracy(Record):
    """Accuracies of the user's network, in [0, 1], and their numbers of samples. spread: as in `Uncertainty`.

    exchanged: a line if another order of its outputs would be far better; written then.
    """

    validation_accuracy: float
    test_accuracy: float
    validation_samples: int | None = None
    test_samples: int | None = None
    spread: float = 1.0
    exchanged: str | None = None


class EndsAccuracy(Record):
    """Accuracies of a SuperNet's largest and smallest SubNets, in [0, 1], and their numbers of samples.

    spread: as in `Uncertainty`.
    """

    largest_validation_accuracy: float
    smallest_validation_accuracy: float
    largest_test_accuracy: float
    smallest_test_accuracy: float
    validation_samples: int | None = None
    test_samples: int | None = None
    spread: float = 1.0


class BaseResult(NetworkAccuracy, Result):
    """The result for the base network. micro_batch: at the end, if it was trained."""

    STAGE: ClassVar[str] = "base"
    COMMAND: ClassVar[str] = "compile"

    trained: bool
    micro_batch: int | None = None


class BeforeTuning(Record):
    """The SuperNet before fine-tuning, compared with the result.

    largest_validation_accuracy: before fine-tuning, in [0, 1]. change_points: gain of the fine-tuned largest SubNet, with its
    standard error. kept: the weights before fine-tuning are the result.
    """

    largest_validation_accuracy: float
    change_points: float
    error_points: float
    kept: bool = False

    @property
    def is_worse(self) -> bool:
        """Whether fine-tuning made the largest SubNet worse, beyond the standard error."""
        return self.change_points < -self.error_points

    @property
    def line(self) -> str:
        """The effect on the largest SubNet."""
        lost = f"{-self.change_points:.1f} ± {self.error_points:.1f} points of validation accuracy"
        before = f"{100 * self.largest_validation_accuracy:.1f} % before"
        ends = "the weights before it are kept" if self.kept else "smaller SubNets gained more than that"
        return f"fine-tuning costs the largest SubNet {lost} ({before}); {ends}"


class FinetuneResult(EndsAccuracy, Result):
    """The result for the SuperNet. strategy: of each phase. before: None if the network itself was not trained."""

    STAGE: ClassVar[str] = "finetune"

    strategy: str
    steps: int
    micro_batch: int
    before: BeforeTuning | None = None


class BackboneResult(Result):
    """The result for the backbone's SuperNet: its variables, its distinct SubNets, and the tensors shared with the whole.

    validation_accuracy: of the largest SubNet on the first data, with the fitted classifier, in [0, 1].
    """

    STAGE: ClassVar[str] = "backbone"
    COMMAND: ClassVar[str] = "finetune"

    variables: int
    distinct: int
    shared_tensors: int
    validation_accuracy: float


class JoinResult(EndsAccuracy, Result):
    """The result for the SuperNet whose backbone was trained on other data.

    tensors: number taken from the backbone's SuperNet. moved: these include weights of the network itself, which have changed.
    """

    STAGE: ClassVar[str] = "join"
    COMMAND: ClassVar[str] = "finetune"

    tensors: int
    moved: bool


class GivenFile(NetworkAccuracy, Result):
    """The result for a network in an .onnx file."""

    STAGE: ClassVar[str] = "given"
    COMMAND: ClassVar[str] = "run"


class GivenSuperNet(EndsAccuracy, Result):
    """The result for a SuperNet that no run of this folder made."""

    STAGE: ClassVar[str] = "given"
    COMMAND: ClassVar[str] = "retarget"


class EnumerateResult(Result):
    """The result for the SuperNet's space. operators: number of each type, largest first."""

    STAGE: ClassVar[str] = "enumerate"

    variables: int
    modifications: int
    codes: int
    distinct: int
    unique_operators: int
    operators: dict[str, int]
    enumerate_s: float


class WatchedSubNet(Record):
    """A SubNet whose accuracy is followed during training. range: of its multiply-accumulates, from 0."""

    config: Config
    digest: str
    macs: int
    range: int


class WatchedSubNets(Stored):
    """`ranges.json`: all watched SubNets. bounds_macs: of the ranges, ascending, one more than ranges."""

    STAGE: ClassVar[str] = "finetune"

    bounds_macs: tuple[float, ...]
    subnets: tuple[WatchedSubNet, ...]


class RangeLine(TypedDict):
    """A line of `range_accuracies.jsonl`: right answers of the SubNets, in order, for `total` images after `step` steps.

    correct: `tasks.evaluation.subnets.Accuracy.correct`.
    """

    step: int
    correct: list[float]
    total: int


STREAM_FILE = "stream.json"


class StreamPhase(Record):
    """Consecutive images of a stream under one corruption, from `first` on. `name`: the corruption, clean, or mixed."""

    first: int
    images: int
    name: str


class StreamEvent(Record):
    """An event of a guard after `image` images; see `tasks.adaptation.GuardEvent`."""

    image: int
    kind: GuardEventKind
    reason: str


class StreamedMethod(Record):
    """Errors of one method [%]: of all images, of each window, of each phase. `side_file`: its last adapted state."""

    method: str
    error_percent: float
    window_error_percent: tuple[float, ...]
    phase_error_percent: tuple[float, ...]
    events: tuple[StreamEvent, ...]
    side_file: str | None
    images_per_s: float


class StreamedNetwork(Result):
    """A SubNet on a stream. `left_out`: methods that it cannot play, and why.
    `errors_percent`: of all images, by method. `settings`: `tasks.data.settings.DriftSettings`.
    """

    STAGE: ClassVar[str] = "stream"
    KIND: ClassVar[str] = "stream"

    title: str
    digest: str
    config: Config
    images: int
    window_images: int
    settings: dict[str, Any]
    phases: tuple[StreamPhase, ...]
    methods: tuple[StreamedMethod, ...]
    errors_percent: dict[str, float]
    left_out: dict[str, str]
