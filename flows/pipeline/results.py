"""Parses results of stages, which are JSON, into their schemas."""

from collections.abc import Callable
from typing import TypeVar

from tasks.base.schemas.stored import StageResult, Stored

Schema = TypeVar("Schema", bound=Stored)
Told = TypeVar("Told")
SECONDS = "seconds"
"""Key of the work's duration [s]: in each result, but not part of its schema."""


def of(schema: type[Schema], tell: Callable[[Schema], Told]) -> Callable[[StageResult], Told]:
    """Adapt the function `tell` of a schema to a function of JSON results."""

    def told(result: StageResult) -> Told:
        return tell(schema.model_validate({name: value for name, value in result.items() if name != SECONDS}))

    return told
