"""`operators.json`: every operator of any SubNet; `implementations.json`: the chosen implementations of operators on one
device.
"""

from typing import Any, ClassVar

from tasks.base.schemas.stored import Config, Record, Stored

OPERATORS_FILE = "operators.json"
IMPLEMENTATIONS_FILE = "implementations.json"
LUT_FOLDER = "lut"
"""The folder of a device's look-up table."""
PARTS = "part-*.parquet"
"""Files of a look-up table."""


class UniqueOperator(Record):
    """An operator. feature: `OperatorFeature.to_json`. witness: difference between a SubNet that has it and the largest one."""

    digest: str
    feature: dict[str, Any]
    witness: Config


class Operators(Stored):
    """All unique operators, by rising digest."""

    STAGE: ClassVar[str] = "enumerate"
    KIND: ClassVar[str] = "operators"

    operators: tuple[UniqueOperator, ...]


class ChosenImplementations(Stored):
    """operators: implementations by operator (digest), for operators that do not run by the runtime's own choice."""

    STAGE: ClassVar[str] = "profile"
    KIND: ClassVar[str] = "implementations"

    operators: dict[str, str]


OWN_CHOICES = ChosenImplementations(operators={})
"""Every operator runs by the runtime's own choice."""
