"""The stages: a table, and one walk through it as Prefect tasks. The body of a stage is one call into `tasks`."""

from flows.stages.spec import SUPERNET, Outputs
from flows.stages.table import ADAPTATION, PIPELINE, table_of
from flows.stages.walk import results, walk

__all__ = ["ADAPTATION", "PIPELINE", "SUPERNET", "Outputs", "results", "table_of", "walk"]
