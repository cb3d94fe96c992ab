"""The result of a partition as JSON: cuts, and for each bandwidth a plan with other methods' plans."""

from typing import ClassVar

from tasks.base.schemas.placed import PlanRow
from tasks.base.schemas.stored import Config, Record, Stored


class OperatorRow(Record):
    """An operator in running order. compute_ms: by device. flow: its number. beside: whether other flows run beside it."""

    title: str
    place: str
    macs: int
    parameters: int
    compute_ms: dict[str, float]
    flow: int
    beside: bool


class CutRow(Record):
    """A cut. cut: number of operators before it. values: names of the values that cross it. bytes: of all of them together."""

    cut: int
    values: tuple[str, ...]
    bytes: int


class PartitionAnswer(Stored):
    """Content of `autotailor partition --json FILE`. network: digest of the SubNet. returns: the answer goes back."""

    STAGE: ClassVar[str] = "partition"
    KIND: ClassVar[str] = "partition"

    network: str
    config: Config
    devices: tuple[str, ...]
    objective: str
    returns: bool
    private: int
    operators: tuple[OperatorRow, ...]
    cuts: tuple[CutRow, ...]
    plans: tuple[PlanRow, ...]
