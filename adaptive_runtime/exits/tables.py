"""Measurements of exits on one device, as a file: the choices among which `ResourcePolicy` looks up."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from adaptive_runtime.base.message_files import FileMessage
from adaptive_runtime.exits.resources import NO_EXIT, ExitChoice, ResourcePolicy


class ExitTable(FileMessage):
    """SubNets by name, exits by name, and the measured choices.

    subnets, exits: the names that the numbers of an `ExitChoice` index. choices: as measured on the device.
    """

    WHERE: ClassVar[str] = "exit table"
    NEXT_STEP: ClassVar[str] = "make the table again"

    version: Literal[1] = 1
    subnets: tuple[str, ...]
    exits: tuple[str, ...]
    choices: tuple[ExitChoice, ...]

    @model_validator(mode="after")
    def _numbers_are_of_names(self) -> Self:
        for choice in self.choices:
            if not 0 <= choice.subnet < len(self.subnets):
                raise ValueError(f"subnet {choice.subnet} of {len(self.subnets)}")
            if not NO_EXIT <= choice.exit < len(self.exits):
                raise ValueError(f"exit {choice.exit} of {len(self.exits)}")
        return self

    def policy(self) -> ResourcePolicy:
        """The look-up."""
        return ResourcePolicy(self.choices)
