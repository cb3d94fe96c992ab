"""The stages: a table of them, and one walk through it as Prefect tasks. The body of a stage is one call into `tasks`."""

from flows.pipeline.stages.spec import SUPERNET, Outputs
from flows.pipeline.stages.table import ADAPTATION, PIPELINE, table_of

__all__ = ["ADAPTATION", "PIPELINE", "SUPERNET", "Outputs", "table_of"]
