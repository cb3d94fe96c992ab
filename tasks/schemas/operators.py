"""`operators.json`: every operator that any SubNet has; `implementations.json`: those of operators that count on one device."""

from typing import Any, ClassVar

from tasks.schemas.stored import Config, Record, Stored

OPERATORS_FILE = "operators.json"
IMPLEMENTATIONS_FILE = "implementations.json"
LUT_FOLDER = "lut"
"""Of the look-up table of a device."""
PARTS = "part-*.parquet"
"""Files of a look-up table."""


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


class ChosenImplementations(Stored):
    """`operators`: implementations by operator (digest), of those that do not run by the runtime's own choice."""

    STAGE: ClassVar[str] = "profile"
    KIND: ClassVar[str] = "implementations"

    operators: dict[str, str]


OWN_CHOICES = ChosenImplementations(operators={})
"""Every operator runs as the runtime chooses."""
