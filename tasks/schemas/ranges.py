"""`ranges.json` of a fine-tuning: the SubNets by whose accuracy it is followed; and the lines of their accuracies beside it."""

from typing import ClassVar, TypedDict

from tasks.schemas.stored import Config, Record, Stored

RANGES_FILE = "ranges.json"
RANGE_ACCURACIES_FILE = "range_accuracies.jsonl"


class WatchedSubNet(Record):
    """A SubNet. `range`: that of its multiply-accumulates, from 0."""

    config: Config
    digest: str
    macs: int
    range: int


class WatchedSubNets(Stored):
    """All of them. `bounds_macs`: of the ranges, ascending, one more than ranges."""

    STAGE: ClassVar[str] = "finetune"

    bounds_macs: tuple[float, ...]
    subnets: tuple[WatchedSubNet, ...]


class RangeLine(TypedDict):
    """After `step` steps: correctly classified images of `total`, for each SubNet in the order of the file."""

    step: int
    correct: list[int]
    total: int
