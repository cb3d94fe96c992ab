"""`result.json` of the stages whose results others read, and the files of a training beside it."""

from typing import ClassVar, TypedDict

from tasks.schemas.stored import Config, Record, Stored

HISTORY_FILE = "history.jsonl"
WEIGHTS_FILE = "weights.safetensors"
"""Of a trained network."""
RANGES_FILE = "ranges.json"
RANGE_ACCURACIES_FILE = "range_accuracies.jsonl"


class Result(Stored):
    """What a stage returned; `seconds`: how long it worked."""

    seconds: float | None = None


class NetworkAccuracy(Record):
    """Accuracies of the user's network, in [0, 1], and of how many samples they are."""

    validation_accuracy: float
    test_accuracy: float
    validation_samples: int | None = None
    test_samples: int | None = None


class EndsAccuracy(Record):
    """Accuracies of a SuperNet's largest and smallest SubNets, in [0, 1], and of how many samples they are."""

    largest_validation_accuracy: float
    smallest_validation_accuracy: float
    largest_test_accuracy: float
    smallest_test_accuracy: float
    validation_samples: int | None = None
    test_samples: int | None = None


class BaseResult(NetworkAccuracy, Result):
    """Of the base network. `micro_batch`: in the end, where it was trained."""

    STAGE: ClassVar[str] = "base"
    COMMAND: ClassVar[str] = "compile"

    trained: bool
    micro_batch: int | None = None


class BeforeTuning(Record):
    """The SuperNet before it was fine-tuned, beside what became of it.

    largest_validation_accuracy: as the network came, in [0, 1]. change_points: what the fine-tuned largest SubNet has more,
    with its standard error. kept: the weights before fine-tuning are the result.
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
    """Of the SuperNet. `strategy`: that of each phase. `before`: None where the network itself was not trained."""

    STAGE: ClassVar[str] = "finetune"

    strategy: str
    steps: int
    micro_batch: int
    before: BeforeTuning | None = None


class BackboneResult(Result):
    """Of the backbone's SuperNet: numbers of its variables, its distinct SubNets, and the tensors that the whole has, too.

    validation_accuracy: of the largest SubNet on the first data, with the fitted classifier, in [0, 1].
    """

    STAGE: ClassVar[str] = "backbone"
    COMMAND: ClassVar[str] = "finetune"

    variables: int
    distinct: int
    shared_tensors: int
    validation_accuracy: float


class JoinResult(EndsAccuracy, Result):
    """Of the SuperNet whose backbone was trained on other data.

    tensors: that came from the backbone's SuperNet. moved: the weights of the network itself are among them, and others now.
    """

    STAGE: ClassVar[str] = "join"
    COMMAND: ClassVar[str] = "finetune"

    tensors: int
    moved: bool


class GivenFile(NetworkAccuracy, Result):
    """Of a network in an .onnx file."""

    STAGE: ClassVar[str] = "given"
    COMMAND: ClassVar[str] = "run"


class GivenSuperNet(EndsAccuracy, Result):
    """Of a SuperNet that no run of this folder made."""

    STAGE: ClassVar[str] = "given"
    COMMAND: ClassVar[str] = "adapt"


class EnumerateResult(Result):
    """Of the SuperNet's space. `operators`: how many of each type, most first."""

    STAGE: ClassVar[str] = "enumerate"

    variables: int
    modifications: int
    codes: int
    distinct: int
    unique_operators: int
    operators: dict[str, int]
    enumerate_s: float


class WatchedSubNet(Record):
    """A SubNet by whose accuracy a training is followed. `range`: that of its multiply-accumulates, from 0."""

    config: Config
    digest: str
    macs: int
    range: int


class WatchedSubNets(Stored):
    """`ranges.json`: all of them. `bounds_macs`: of the ranges, ascending, one more than ranges."""

    STAGE: ClassVar[str] = "finetune"

    bounds_macs: tuple[float, ...]
    subnets: tuple[WatchedSubNet, ...]


class RangeLine(TypedDict):
    """A line of `range_accuracies.jsonl`: what the SubNets, in order, get right of `total` images after `step` steps.

    correct: `tasks.evaluation.subnets.Accuracy.correct`.
    """

    step: int
    correct: list[float]
    total: int
