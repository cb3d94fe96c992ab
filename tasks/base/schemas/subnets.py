"""SubNets as rows of files."""

from tasks.base.schemas.stored import Config, Record


class Named(Record):
    """A SubNet by its digest and its config."""

    digest: str
    config: Config


class Predicted(Named):
    """A SubNet, its size, and its predictions. Predicted costs are set if they had a limit."""

    predicted_ms: float
    predicted_accuracy: float
    predicted_score: float
    macs: int
    parameters: int
    predicted_energy_mj: float | None = None
    predicted_memory_mib: float | None = None
