"""Results of stages, which are JSON, as the schemas that they are of."""

from collections.abc import Callable
from typing import TypeVar

from tasks.schemas.stored import StageResult, Stored

Schema = TypeVar("Schema", bound=Stored)
Told = TypeVar("Told")
SECONDS = "seconds"
"""How long the work took: in each result, and no part of its schema."""


def of(schema: type[Schema], tell: Callable[[Schema], Told]) -> Callable[[StageResult], Told]:
    """The function `tell` of a schema as a function of results."""

    def told(result: StageResult) -> Told:
        return tell(schema.model_validate({name: value for name, value in result.items() if name != SECONDS}))

    return told
