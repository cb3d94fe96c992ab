"""`operators.json`: every operator that any SubNet has."""

from typing import Any, ClassVar

from tasks.schemas.stored import Config, Record, Stored

OPERATORS_FILE = "operators.json"


class UniqueOperator(Record):
    """`feature`: `OperatorFeature.to_json`. `witness`: where a SubNet that has it differs from the largest one."""

    digest: str
    feature: dict[str, Any]
    witness: Config


class Operators(Stored):
    """By rising digest."""

    STAGE: ClassVar[str] = "enumerate"
    KIND: ClassVar[str] = "operators"

    operators: tuple[UniqueOperator, ...]
