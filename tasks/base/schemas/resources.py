"""`resources.json`: needs of the largest and the smallest SubNet on one device besides time."""

from typing import Any, ClassVar, Literal

from tasks.base.schemas.agreement import RelativeErrors
from tasks.base.schemas.stored import Record, Stored
from tasks.base.schemas.subnets import Named

RESOURCES_FILE = "resources.json"
ENERGY_FILE = "energy.json"
"""The file of the predictor of energy."""


class Metered(Record):
    """The number of operators with measured energy, out of all operators."""

    measured: int
    all: int


class ResourceNeeds(Named):
    """Needs of a SubNet for one sample."""

    kind: Literal["largest", "smallest"]
    memory_mib: float
    peak_activations_mib: float
    peak_arena_mib: float
    parameters: int
    macs: int
    energy_mj: float


class Resources(Stored):
    """energy_from: source of the predicted energies. energy_calibration: `tasks.prediction.calibration.Calibration`."""

    STAGE: ClassVar[str] = "predict"

    energy_from: Literal["model", "operators", "sensor"]
    energy_operators: Metered
    subnets: tuple[ResourceNeeds, ...]
    energy_calibration: dict[str, Any] | None = None
    energy_held_out: RelativeErrors | None = None
